//! Launches of `kernels/attention.cu`: a query of each sequence over keys and values in pages.

use std::sync::Arc;

use octavo_core::format::Granularity;
use octavo_core::{DType, Format};

use crate::linear::code;
use crate::{Argument, Call, Error, Program, Result};

macro_rules! part {
    ($name:literal) => {
        ($name, include_str!(concat!("../kernels/", $name)))
    };
}

const PLAIN: &[(&str, &str)] = &[part!("base.cu"), part!("linear/values.cu"), part!("attention.cu")];
const PACKED: &[(&str, &str)] = &[
    part!("base.cu"),
    part!("codec/number.cu"),
    part!("codec/scale.cu"),
    part!("linear/values.cu"),
    part!("attention.cu"),
];
/// Positions of a page.
pub const PAGE: usize = 64;
/// Query heads of a block, and its threads.
const HEADS: usize = 16;
const THREADS: u32 = 128;
/// Blocks that share the positions of a sequence, at most: what they give is added up one by one.
const CUTS: usize = 64;
/// Numbers of a key and of a value, at most: registers hold no more of the latter.
const MOST: (usize, usize) = (1024, 512);

/// What is attended to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// Sequences, each with one query.
    pub sequences: usize,
    /// Query heads.
    pub heads: usize,
    /// Heads of keys and values, a divisor of those.
    pub key_heads: usize,
    /// Numbers of a query and of a key, a multiple of 8.
    pub depth: usize,
    /// Numbers of a value, a multiple of 8.
    pub values: usize,
    /// Whether values are the first numbers of the keys.
    pub latent: bool,
    /// Pages of the longest table.
    pub longest: usize,
    /// Last positions that are seen, 0 for all.
    pub window: usize,
    /// Dtype of queries and results, and of what pages hold unless they are packed.
    pub dtype: DType,
    /// Format of the pages' rows, a row a position.
    pub format: Option<Format>,
}

/// What decides how the work is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    /// Streaming multiprocessors.
    pub multiprocessors: usize,
    /// Bytes of shared memory that one block may have.
    pub shared: usize,
}

/// Addresses. Those of the values are 0 where they are part of the keys, those of scales where nothing is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Given {
    /// `[sequences, heads, depth]`.
    pub query: u64,
    /// `[pages, key heads, 64, depth]`.
    pub keys: u64,
    /// Of the keys.
    pub key_scales: u64,
    /// `[pages, key heads, 64, values]`.
    pub values: u64,
    /// Of the values.
    pub value_scales: u64,
    /// int32 `[sequences, longest]`: numbers of pages.
    pub tables: u64,
    /// int32 `[sequences]`: positions that are there.
    pub lengths: u64,
    /// `[sequences, heads, values]`.
    pub out: u64,
}

/// How one query of each sequence is answered.
#[derive(Clone, Debug)]
pub struct Attention {
    program: Arc<Program>,
    shape: Shape,
    shared: u32,
    /// Pages of a block, and blocks of a sequence's positions.
    each: usize,
    cuts: usize,
}

impl Attention {
    /// `None` where no kernel takes the shape.
    pub fn new(shape: Shape, device: Device) -> Option<Self> {
        let Shape { sequences, heads, key_heads, depth, values, latent, longest, window, dtype, format } = shape;
        let whole = |size: usize, most: usize| (8..=most).contains(&size) && size.is_multiple_of(8);
        let taken = [sequences, heads, key_heads, longest].iter().all(|size| (1..=1 << 24).contains(size))
            && window <= i32::MAX as usize
            && longest <= i32::MAX as usize / PAGE
            && heads.is_multiple_of(key_heads)
            && whole(depth, MOST.0)
            && whole(values, MOST.1)
            && (!latent || values <= depth)
            && dtype != DType::F32
            && format.is_none_or(decodes);
        let blocks = sequences.checked_mul(key_heads)?.checked_mul((heads / key_heads.max(1)).div_ceil(HEADS))?;
        if !taken || blocks > i32::MAX as usize {
            return None;
        }
        let fits = |stages| bytes(&shape, stages) <= device.shared;
        let most = if format.is_some() { 1 } else { 2 };
        let stages = (1..=most).rev().find(|&stages| fits(stages))?;
        // Until each multiprocessor has two blocks.
        let wanted = (2 * device.multiprocessors.max(1)).div_ceil(blocks).clamp(1, longest.min(CUTS));
        let each = longest.div_ceil(wanted);
        let program = Arc::new(program(&shape, stages));
        Some(Self { program, shape, shared: bytes(&shape, stages) as u32, each, cuts: longest.div_ceil(each) })
    }

    /// The kernels.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Bytes of scratch memory, at a multiple of 4.
    pub const fn scratch(&self) -> usize {
        let Shape { sequences, heads, values, .. } = self.shape;
        if self.cuts > 1 { 4 * self.cuts * sequences * heads * (values + 2) } else { 0 }
    }

    /// The calls, in order. `scale`: factor of the scores.
    pub fn calls(&self, operands: &Given, scale: f32, scratch: u64) -> Result<Vec<Call>> {
        let Shape { sequences, heads, key_heads, latent, longest, window, format, .. } = self.shape;
        let Given { query, keys, key_scales, values, value_scales, tables, lengths, out } = *operands;
        let fits = |address: u64, size: u64| address != 0 && address.is_multiple_of(size);
        let (rows, words) = (if format.is_some() { 8 } else { 16 }, if self.cuts > 1 { scratch } else { 4 });
        let scales = !(format.is_some() && (key_scales == 0 || (!latent && value_scales == 0)));
        if ![(query, 16), (keys, rows), (if latent { rows } else { values }, rows), (tables, 4), (lengths, 4), (out, 2)]
            .iter()
            .all(|&(address, size)| fits(address, size))
            || !fits(words, 4)
            || !scales
        {
            let text =
                "attention over pages: an address is none, or not aligned: queries and pages at multiples of 16 bytes";
            return Err(Error::Core(octavo_core::Error::shape(text)));
        }
        let parts = Argument::Address(if self.cuts > 1 { scratch } else { 0 });
        let addresses = [query, keys, key_scales, values, value_scales, tables, lengths].map(Argument::Address);
        let numbers = [heads, key_heads, longest, window, self.each].map(|number| Argument::I32(number as i32));
        let factor = Argument::F32(scale * std::f32::consts::LOG2_E);
        let arguments = addresses.into_iter().chain(numbers).chain([factor, Argument::Address(out), parts]).collect();
        let blocks = sequences * key_heads * (heads / key_heads).div_ceil(HEADS);
        let call = |entry, grid, shared, arguments| Call {
            program: self.program.clone(),
            entry,
            grid,
            block: [THREADS, 1, 1],
            shared,
            arguments,
            early: false,
        };
        let mut calls = vec![call("attend", [blocks as u32, self.cuts as u32, 1], self.shared, arguments)];
        if self.cuts > 1 {
            let arguments = vec![parts, Argument::I32(self.cuts as i32), Argument::Address(out)];
            calls.push(call("join", [crate::blocks((sequences * heads) as u64, 1)?, 1, 1], 0, arguments));
        }
        Ok(calls)
    }
}

/// Whether rows of a format are decoded one by one: in blocks, of up to 8 bits, with nothing but scales beside codes.
fn decodes(format: Format) -> bool {
    let blocks = matches!(format.granularity(), Granularity::Block(_));
    blocks && format.width() <= 8 && format.scales_per_group() == 1 && !format.has_zeros() && !format.has_levels()
}

/// Bytes from one row of keys, and of values, to the next.
const fn pitches(shape: &Shape) -> (usize, usize) {
    (32 * shape.depth.div_ceil(16) + 16, ((shape.values / 8) | 1) * 16)
}

/// Bytes of shared memory: queries, weights, scores and factors of 16 heads, then pages.
const fn bytes(shape: &Shape, stages: usize) -> usize {
    let (keys, values) = pitches(shape);
    let page = PAGE * (keys + if shape.latent { 0 } else { values });
    HEADS * (keys + (2 * PAGE + 16) + 4 * (PAGE + 4) + 4) + stages * page
}

fn program(shape: &Shape, stages: usize) -> Program {
    let Shape { depth, values, latent, dtype, format, .. } = *shape;
    let own = [
        ("TYPE", code(dtype) as usize),
        ("DEPTH", depth),
        ("VALUES", values),
        ("LATENT", latent.into()),
        ("PACKED", format.is_some().into()),
        ("STAGES", stages),
        ("CUTS", CUTS),
    ];
    let mut defines = own.map(|(name, value)| (name, value.to_string())).to_vec();
    let of = format.map_or_else(|| dtype.name().to_owned(), |format| format.to_string());
    if let Some(format) = format {
        defines.extend(crate::codec::macros_of(format, dtype));
    }
    let name: String = format!("attention-{of}-{depth}x{values}");
    let name = name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }).collect();
    let files = if format.is_some() { PACKED } else { PLAIN };
    Program { name, files, defines, entries: &["attend", "join"] }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATENT: Shape = Shape {
        sequences: 1,
        heads: 12,
        key_heads: 1,
        depth: 160,
        values: 128,
        latent: true,
        longest: 256,
        window: 0,
        dtype: DType::BF16,
        format: None,
    };
    const H100: Device = Device { multiprocessors: 132, shared: 227 << 10 };

    #[test]
    fn a_long_sequence_is_cut_until_every_multiprocessor_works() {
        let cuts = |shape| Attention::new(shape, H100).map(|attention| (attention.each, attention.cuts));
        assert_eq!(cuts(LATENT), Some((4, 64)));
        assert_eq!(cuts(Shape { sequences: 64, ..LATENT }), Some((52, 5)));
        assert_eq!(cuts(Shape { sequences: 264, ..LATENT }), Some((256, 1)));
        assert_eq!(cuts(Shape { longest: 1, ..LATENT }), Some((1, 1)));
    }

    #[test]
    fn shapes_that_no_kernel_takes_are_refused() {
        let format = |text: &str| Some(Format::parse(text).expect("a format"));
        assert!(Attention::new(Shape { format: format("mxint8"), ..LATENT }, H100).is_some());
        for shape in [
            Shape { dtype: DType::F32, ..LATENT },
            Shape { depth: 164, ..LATENT },
            Shape { values: 168, ..LATENT },
            Shape { values: 4, ..LATENT },
            Shape { key_heads: 5, ..LATENT },
            Shape { key_heads: 0, ..LATENT },
            Shape { sequences: 0, ..LATENT },
            Shape { longest: usize::MAX, ..LATENT },
            Shape { format: format("uint4:g32"), ..LATENT },
            Shape { format: format("int8:channel"), ..LATENT },
            Shape { format: format("nvfp4"), ..LATENT },
        ] {
            assert!(Attention::new(shape, H100).is_none(), "{shape:?}");
        }
        assert!(Attention::new(LATENT, Device { shared: 16 << 10, ..H100 }).is_none());
    }
}
