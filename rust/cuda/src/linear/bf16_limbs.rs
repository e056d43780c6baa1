//! Launches of products with up to 64 rows of x on the bfloat16 tensor cores: `kernels/linear/bf16_limbs.cu`.

use std::sync::Arc;

use octavo_core::format::{Element, Granularity, ScaleType, Specials};
use octavo_core::{DType, Format};

use super::elements::{Bytes, Unpack, load, numbers};
use super::int8_limbs::{bias_arguments, codes_defines};
use super::{Device, Linear, code, int};
use crate::{Argument, Call, Program, Result};

const FILES: &[(&str, &str)] = &[
    ("base.cu", include_str!("../../kernels/base.cu")),
    ("codes.cu", include_str!("../../kernels/linear/codes.cu")),
    ("values.cu", include_str!("../../kernels/linear/values.cu")),
    ("bf16_limbs.cu", include_str!("../../kernels/linear/bf16_limbs.cu")),
];
/// Rows of x that this kernel takes; more are better multiplied with decoded weights.
pub const MAX_ROWS: usize = 64;
/// Columns of a chunk, rows of weights of a block, bytes of a row of a chunk of x, chunks under way.
const CHUNK: usize = 128;
const BLOCK: usize = 128;
const ROW: usize = 2 * CHUNK;
const STAGES: usize = 3;

/// How a product is computed.
#[derive(Clone, Debug)]
pub struct Bf16Limbs {
    program: Arc<Program>,
    /// Rows of x of a block, and blocks of rows.
    rows: usize,
    blocks: usize,
    /// Bytes of a stage.
    stage: usize,
    chunks: usize,
    /// Chunks of a slice of the columns, and slices.
    slice: usize,
    slices: usize,
}

impl Bf16Limbs {
    /// `None` where the kernel does not take the product: more than 64 rows of x, codes of more than 8 bits, several
    /// scales an element.
    pub fn new(linear: &Linear, device: Device) -> Result<Option<Self>> {
        let sizes = linear.check()?;
        let format = linear.format;
        let none = linear.m == 0 || linear.n == 0 || linear.k == 0 || linear.m > MAX_ROWS;
        if none || format.width() > 8 || format.scales_per_group() > 1 {
            return Ok(None);
        }
        // Float32 has three limbs. 16-bit inputs have 16-bit outputs, which are too coarse for a third limb to matter.
        let (x_limbs, limit, most) = match linear.x.dtype {
            DType::F32 => (3, 3, 16),
            DType::F16 => (2, 2, 32),
            DType::BF16 => (1, 2, 64),
        };
        let rows = linear.m.next_multiple_of(8).next_power_of_two().min(most);
        let chunks = linear.k.div_ceil(CHUNK);
        let blocks = linear.m.div_ceil(rows);
        let wanted = 2 * device.multiprocessors as usize / (linear.n.div_ceil(BLOCK) * blocks);
        let slice = chunks.div_ceil(wanted.clamp(1, chunks.div_ceil(4)));
        let load = load(linear.parts[0], format.width(), sizes.row_bytes);
        let w_limbs = weight_limbs(format)?.min(limit);
        let program = program(linear, rows / 8, load, (x_limbs, w_limbs, limit))?;
        let stage = x_limbs * rows * ROW;
        let program = Arc::new(program);
        Ok(Some(Self { program, rows, blocks, stage, chunks, slice, slices: chunks.div_ceil(slice) }))
    }

    /// The kernels.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Bytes of scratch memory, at a multiple of 16.
    pub fn scratch(&self, linear: &Linear) -> usize {
        let sums = if self.slices > 1 { 4 * self.slices * linear.m * linear.n } else { 0 };
        self.blocks * self.chunks * self.stage + sums
    }

    /// The calls, in order.
    pub fn calls(&self, linear: &Linear, scratch: u64) -> Result<Vec<Call>> {
        let (m, n, k) = (int(linear.m), int(linear.n), Argument::I64(linear.k as i64));
        let bias = bias_arguments(linear);
        let [codes, scales, zeros, levels] = linear.parts.map(Argument::Address);
        let out = Argument::Address(linear.out);
        let x = Argument::Address(scratch);
        let sums = scratch + (self.blocks * self.chunks * self.stage) as u64;
        let sums = Argument::Address(if self.slices > 1 { sums } else { 0 });
        let call = |entry, grid: [usize; 3], shared: usize, arguments| -> Result<Call> {
            let [x, y, z] = grid.map(|side| crate::blocks(side as u64, 1));
            let (program, grid) = (self.program.clone(), [x?, y?, z?]);
            Ok(Call { program, entry, grid, block: [256, 1, 1], shared: shared as u32, arguments, early: true })
        };
        let runs = self.blocks * self.rows * self.chunks * CHUNK / 8;
        let rows = int(self.blocks * self.rows);
        let split = vec![Argument::Address(linear.x.address), x, m, rows, k];
        let multiply = vec![codes, scales, zeros, levels, x, bias[0], bias[1], out, sums, m, n, k, int(self.slice)];
        let mut calls = vec![
            call("split", [runs.div_ceil(256), 1, 1], 0, split)?,
            call("multiply", [linear.n.div_ceil(BLOCK), self.slices, self.blocks], STAGES * self.stage, multiply)?,
        ];
        if self.slices > 1 {
            let arguments = vec![sums, scales, levels, bias[0], bias[1], out, m, n, int(self.slices)];
            calls.push(call("finish", [(linear.m * linear.n).div_ceil(256), 1, 1], 0, arguments)?);
        }
        Ok(calls)
    }
}

/// Limbs that hold an element times the scale of its block.
fn weight_limbs(format: Format) -> Result<usize> {
    let bits = |v: f32| 24 - ((v.to_bits() & 0x7f_ffff) | 0x80_0000).trailing_zeros();
    let element = if format.has_zeros() {
        format.width()
    } else {
        numbers(format)?.into_iter().filter(|v| v.is_finite() && *v != 0.0).map(bits).max().unwrap_or(1)
    };
    let scale = match (format.granularity(), format.scale_type()) {
        (Granularity::Block(_), Some(ScaleType::F16)) => 11,
        (Granularity::Block(_), Some(ScaleType::E4M3)) => 4,
        (Granularity::Block(_), Some(ScaleType::F32)) => 24,
        _ => 0,
    };
    Ok((element + scale).div_ceil(8) as usize)
}

fn program(linear: &Linear, tiles: usize, load: u32, limbs: (usize, usize, usize)) -> Result<Program> {
    let format = linear.format;
    let bytes = Bytes::of(format)?.filter(|bytes| bytes.unpack == Unpack::Plain && format.width() == 8);
    let plain = Bytes { unpack: Unpack::Plain, unit: 0, unsigned: false };
    let mut defines = codes_defines(format, bytes.as_ref().unwrap_or(&plain), load, linear.k);
    let mini = match format.element() {
        // What small powers of two make; with another bias there may be larger ones.
        Element::Minifloat(float) | Element::MxFloat(float) if float.width() > 4 && float.bias.abs() < 120 => {
            Some(float)
        }
        _ => None,
    };
    match (bytes, mini) {
        (Some(bytes), _) => defines.extend([("NUMBER", "BYTE".to_owned()), ("UNIT", bytes.unit.to_string())]),
        (None, Some(float)) => {
            let specials = match float.specials {
                Specials::Finite => 0,
                Specials::NanOnly => 1,
                Specials::Ieee => 2,
            };
            defines.extend([
                ("NUMBER", "MINI".to_owned()),
                ("MANTISSA", float.mantissa.to_string()),
                ("SPECIALS", specials.to_string()),
                ("UNIT", (127 - i32::from(float.bias)).to_string()),
            ]);
        }
        (None, None) => {
            let words: Vec<String> = numbers(format)?.iter().map(|v| format!("{:#010x}", v.to_bits())).collect();
            defines.extend([("NUMBER", "BOOK".to_owned()), ("NUMBERS", words.join(","))]);
        }
    }
    let one = format.granularity() == Granularity::Tensor;
    defines.extend([
        ("TILES", tiles.to_string()),
        ("X_LIMBS", limbs.0.to_string()),
        ("W_LIMBS", limbs.1.to_string()),
        ("LIMIT", limbs.2.to_string()),
        ("X", code(linear.x.dtype).to_string()),
        ("ZEROS", u8::from(format.has_zeros()).to_string()),
        ("ONE", u8::from(one).to_string()),
    ]);
    let text = format.to_string().replace(['/', ':', ','], "-");
    let name = format!("linear-bf16-limbs-{text}-{}-{}", 8 * tiles, linear.x.dtype.name());
    Ok(Program { name, files: FILES, defines, entries: &["split", "multiply", "finish"] })
}
