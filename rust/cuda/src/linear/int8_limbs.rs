//! Launches of products with up to 16 rows of x on the int8 tensor cores: `kernels/linear/int8_limbs.cu`.

use std::sync::Arc;

use octavo_core::format::ScaleType;
use octavo_core::{DType, Format};

use super::elements::{Bytes, Unpack, group, load};
use super::{Device, Linear, code, int};
use crate::{Argument, Call, Program, Result};

const FILES: &[(&str, &str)] = &[
    ("base.cu", include_str!("../../kernels/base.cu")),
    ("codes.cu", include_str!("../../kernels/linear/codes.cu")),
    ("values.cu", include_str!("../../kernels/linear/values.cu")),
    ("int8_limbs.cu", include_str!("../../kernels/linear/int8_limbs.cu")),
];
/// Columns that a warp multiplies at a time.
const CHUNK: usize = 128;
/// Warps of a block, which share its columns.
const WARPS: usize = 8;
/// Rows of weights of a block.
const TILE: usize = 16;
/// Rows of x up to which every block makes limbs of its own.
const INSIDE: usize = 4;
/// Shared memory that every kernel may have.
const SHARED: usize = 48 << 10;
/// Rows of x, at most.
const MAX_ROWS: usize = 16;
/// Accumulators that a lane has registers for.
const MAX_SUMS: usize = 16;

/// Products that this kernel takes, and how it does them.
#[derive(Clone, Debug)]
pub struct Int8Limbs {
    program: Arc<Program>,
    /// Rows of x that the program is made for.
    rows: usize,
    /// Each block splits x into limbs itself; otherwise a kernel before it does so once.
    inside: bool,
    /// Chunks of a slice of the columns, and slices.
    slice: usize,
    slices: usize,
    chunks: usize,
    /// Bytes of the limbs of all chunks, and of one slice's.
    limbs: usize,
    shared: usize,
}

impl Int8Limbs {
    /// `None` where the kernel does not take the product: more than 16 rows of x (fewer for short blocks), values that
    /// are not bytes, unusual block sizes.
    pub fn new(linear: &Linear, device: Device) -> Result<Option<Self>> {
        let sizes = linear.check()?;
        let group = group(linear.format) as usize;
        let blocks = matches!(group, 0 | 8 | 16 | 32 | 64) || group.is_multiple_of(CHUNK);
        if linear.m == 0 || linear.n == 0 || linear.k == 0 || linear.m > MAX_ROWS || !blocks {
            return Ok(None);
        }
        let Some(bytes) = Bytes::of(linear.format)? else { return Ok(None) };
        let (rows, chunks) = (linear.m.next_power_of_two(), linear.k.div_ceil(CHUNK));
        if sums_of_lane(group, rows * pairs(linear.x.dtype)) > MAX_SUMS {
            return Ok(None);
        }
        // Until every multiprocessor has two blocks, as long as every warp has a chunk.
        let tiles = linear.n.div_ceil(TILE);
        let wanted = 2 * device.multiprocessors as usize / tiles;
        let slice = chunks.div_ceil(wanted.clamp(1, chunks.div_ceil(WARPS)));
        let slices = chunks.div_ceil(slice);
        let zeros = linear.format.has_zeros();
        let rows_of_limbs = rows * pairs(linear.x.dtype);
        let limbs = |chunks| limbs_bytes(group, zeros, rows_of_limbs, chunks);
        let sums = 4 * WARPS * rows_of_limbs * TILE;
        let inside = rows <= INSIDE && limbs(slice) <= SHARED;
        let load = load(linear.parts[0], linear.format.width(), sizes.row_bytes);
        let program = Arc::new(program(linear, &bytes, rows, inside, load));
        let shared = if inside { sums.max(limbs(slice)) } else { sums };
        Ok(Some(Self {
            program,
            rows,
            inside,
            slice,
            slices,
            chunks,
            limbs: limbs(chunks).next_multiple_of(16),
            shared,
        }))
    }

    /// The kernels.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Bytes of scratch memory, at a multiple of 16.
    pub fn scratch(&self, linear: &Linear) -> usize {
        let sums = if self.slices > 1 { 4 * self.slices * self.rows * linear.n } else { 0 };
        sums + if self.inside { 0 } else { self.limbs }
    }

    /// The calls, in order.
    pub fn calls(&self, linear: &Linear, scratch: u64) -> Result<Vec<Call>> {
        let k = Argument::I64(linear.k as i64);
        let x = Argument::Address(linear.x.address);
        let bias = bias_arguments(linear);
        let [codes, scales, zeros, levels] = linear.parts.map(Argument::Address);
        let out = Argument::Address(linear.out);
        let call = |entry, grid: [usize; 2], shared: usize, arguments| -> Result<Call> {
            let grid = [crate::blocks(grid[0] as u64, 1)?, crate::blocks(grid[1] as u64, 1)?, 1];
            Ok(Call {
                program: self.program.clone(),
                entry,
                grid,
                block: [256, 1, 1],
                shared: shared as u32,
                arguments,
                early: true,
            })
        };
        let mut calls = Vec::new();
        let (mut factor, mut sums) = (x, scratch);
        if !self.inside {
            factor = Argument::Address(scratch);
            sums += self.limbs as u64;
            let runs = self.rows * self.chunks * CHUNK / 8;
            calls.push(call("split", [runs.div_ceil(256), 1], 0, vec![x, factor, int(linear.m), k])?);
        }
        let sums = Argument::Address(if self.slices > 1 { sums } else { 0 });
        let sizes = [int(linear.m), int(linear.n), k, int(self.slice)];
        let mut arguments = vec![codes, scales, zeros, levels, factor, bias[0], bias[1], out, sums];
        arguments.extend(sizes);
        calls.push(call("multiply", [linear.n.div_ceil(TILE), self.slices], self.shared, arguments)?);
        if self.slices > 1 {
            let arguments = vec![sums, scales, bias[0], bias[1], out, int(linear.m), int(linear.n), int(self.slices)];
            calls.push(call("finish", [(linear.m * linear.n).div_ceil(256), 1], 0, arguments)?);
        }
        Ok(calls)
    }
}

/// How many sums a lane keeps of each of its two rows of weights, and twice as many where its blocks are of several products.
fn sums_of_lane(group: usize, rows_of_limbs: usize) -> usize {
    let blocks = CHUNK / if group == 0 { CHUNK } else { group.min(CHUNK) };
    rows_of_limbs.div_ceil(4 / blocks.min(4)) * if blocks > 4 { 2 } else { 1 }
}

/// Pairs of limbs of an input: float32 has more bits than one pair holds.
const fn pairs(x: DType) -> usize {
    if matches!(x, DType::F32) { 2 } else { 1 }
}

/// Bytes of limbs with their scales and sums, as the kernel lays them out.
fn limbs_bytes(group: usize, zeros: bool, rows: usize, chunks: usize) -> usize {
    let shares = CHUNK / if group == 0 { CHUNK } else { group.min(CHUNK) };
    rows * chunks * (2 * CHUNK + shares * if zeros { 8 } else { 4 })
}

/// Address and dtype of the bias.
pub(super) fn bias_arguments(linear: &Linear) -> [Argument; 2] {
    let bias = linear.bias.map_or((0, 0), |bias| (bias.address, code(bias.dtype)));
    [Argument::Address(bias.0), Argument::I32(bias.1)]
}

/// The macros of `codes.cu`.
pub(super) fn codes_defines(format: Format, bytes: &Bytes, load: u32, k: usize) -> Vec<(&'static str, String)> {
    let scale = match format.scale_type() {
        None | Some(ScaleType::Nested) => "NONE",
        Some(ScaleType::F32) => "FLOAT",
        Some(ScaleType::F16) => "HALF",
        Some(ScaleType::E8M0) => "EXPONENT",
        Some(ScaleType::E4M3) => "NV",
        Some(ScaleType::I8) => "FRACTION",
    };
    let mut defines = vec![
        ("WIDTH", format.width().to_string()),
        ("LOAD", load.to_string()),
        ("WHOLE", u8::from(k.is_multiple_of(CHUNK)).to_string()),
        ("GROUP", group(format).to_string()),
        ("SCALE", scale.to_owned()),
        ("UNSIGNED", u8::from(bytes.unsigned).to_string()),
    ];
    let unpack = match &bytes.unpack {
        Unpack::Shifted => "SHIFTED",
        Unpack::Plain => "PLAIN",
        Unpack::Table(table) => {
            let words = table.chunks(4).map(|b| b.iter().rev().fold(0u32, |word, &byte| word << 8 | u32::from(byte)));
            let words: Vec<String> = words.map(|word| format!("{word:#010x}")).collect();
            defines.push(("TABLE_WORDS", words.join(",")));
            "TABLE"
        }
    };
    defines.push(("UNPACK", unpack.to_owned()));
    defines
}

fn program(linear: &Linear, bytes: &Bytes, rows: usize, inside: bool, load: u32) -> Program {
    let (format, x) = (linear.format, linear.x.dtype);
    let mut defines = codes_defines(format, bytes, load, linear.k);
    let one = format.granularity() == octavo_core::format::Granularity::Tensor;
    defines.extend([
        ("M", rows.to_string()),
        ("PAIRS", pairs(x).to_string()),
        ("X", code(x).to_string()),
        ("UNIT", bytes.unit.to_string()),
        ("ZEROS", u8::from(format.has_zeros()).to_string()),
        ("INSIDE", u8::from(inside).to_string()),
        ("ONE", u8::from(one).to_string()),
    ]);
    let name = format!("linear-int8-limbs-{}-{rows}-{}", format.to_string().replace(['/', ':', ','], "-"), x.name());
    Program { name, files: FILES, defines, entries: &["split", "multiply", "finish"] }
}
