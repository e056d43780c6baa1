//! Launches of exact integer products: `kernels/linear/narrow.cu` for few rows of x, `warpgroups.cu` for large products
//! on Hopper, `gemm.cu` for all others.

mod warpgroups;

use std::sync::Arc;

use octavo_core::DType;

use crate::linear::{Device, code, int, load};
use crate::{Argument, Call, Error, Program, Result};

const GEMM: &[(&str, &str)] = &[
    ("base.cu", include_str!("../../kernels/base.cu")),
    ("codes.cu", include_str!("../../kernels/linear/codes.cu")),
    ("values.cu", include_str!("../../kernels/linear/values.cu")),
    ("epilogue.cu", include_str!("../../kernels/linear/epilogue.cu")),
    ("gemm.cu", include_str!("../../kernels/linear/gemm.cu")),
];
const NARROW: &[(&str, &str)] = &[
    ("base.cu", include_str!("../../kernels/base.cu")),
    ("codes.cu", include_str!("../../kernels/linear/codes.cu")),
    ("values.cu", include_str!("../../kernels/linear/values.cu")),
    ("epilogue.cu", include_str!("../../kernels/linear/epilogue.cu")),
    ("narrow.cu", include_str!("../../kernels/linear/narrow.cu")),
];
/// Columns whose products an int32 holds: `131071 * 128 * 128 < 2^31`.
pub const MOST_COLUMNS: usize = 131_071;
/// Rows of x of the narrow kernel, at most.
pub const NARROW_ROWS: usize = 16;
/// Sides of a tile of outputs, columns of a step, bytes of the stages.
const TILE: usize = 128;
const STEP: usize = 64;
const STAGES: u32 = 4 * 2 * 128 * 64;
/// Rows of weights of a block, columns of a chunk and warps of the narrow kernel.
const ROWS: usize = 16;
const CHUNK: usize = 128;
const WARPS: usize = 8;

/// Float32 factors of rows or columns of the outputs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scales {
    /// Where they are; `0` for none.
    pub address: u64,
    /// One each, else one for all.
    pub each: bool,
}

/// What is added to the outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bias {
    /// Nothing.
    None,
    /// Numbers, added after scaling.
    Float(u64, DType),
    /// int32, added to the sums.
    Integer(u64),
}

/// What the outputs are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Scaled sums.
    Float(DType),
    /// The sums, int32.
    Sum,
    /// Scaled sums rounded to integers, plus this zero point, clipped to int8.
    Byte(i32),
}

/// `y = x W^T` of integers, by addresses.
#[derive(Clone, Copy, Debug)]
pub struct Product {
    /// Rows of x.
    pub m: usize,
    /// Rows of W.
    pub n: usize,
    /// Columns of both.
    pub k: usize,
    /// Rows of int8.
    pub x: u64,
    /// Bytes from one row of x to the next.
    pub stride: usize,
    /// Packed rows of two's complement codes.
    pub codes: u64,
    /// Bits of a code of W.
    pub width: u32,
    /// Factors of the rows of x.
    pub row_scales: Scales,
    /// Factors of the rows of W.
    pub column_scales: Scales,
    /// What is added.
    pub bias: Bias,
    /// `[m, n]`.
    pub out: u64,
    /// What is written there.
    pub output: Output,
}

/// A kernel that takes a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// Few rows of x.
    Narrow,
    /// Any product: `mma.sync`.
    Tiles,
    /// Large ones on devices of compute capability 9.0: `wgmma`.
    Warpgroups,
}

/// How a product is computed.
#[derive(Clone, Debug)]
pub struct Gemm {
    program: Arc<Program>,
    kernel: Kernel,
    /// Chunks or steps of a slice of the columns, and slices.
    slice: usize,
    slices: usize,
    /// Blocks that are resident on the device at a time, for a persistent kernel.
    room: usize,
}

impl Gemm {
    /// An error where int32 could not hold the sums, or where sizes are none.
    pub fn new(product: &Product, device: Device) -> Result<Self> {
        let Product { m, n, k, .. } = *product;
        if k > MOST_COLUMNS {
            return Err(refused(format!(
                "integer product of {k} columns: int32 holds the sums of up to {MOST_COLUMNS}; cut the columns in parts"
            )));
        }
        let too_many = m > i32::MAX as usize || n > i32::MAX as usize;
        if m == 0 || n == 0 || k == 0 || too_many || !(2..=8).contains(&product.width) {
            return Err(refused(format!(
                "integer product of {m} x {k} and {n} x {k} codes of {} bits; sides are 1 to 2^31 - 1, bits 2 to 8",
                product.width
            )));
        }
        let kernel = Kernel::of(product, device);
        let load = load(product.codes, product.width, (k * product.width as usize).div_ceil(8));
        let room = device.multiprocessors as usize;
        // Until every multiprocessor has a block or two, as long as each slice keeps its pipeline full.
        let (steps, wanted, fewest) = match kernel {
            Kernel::Narrow => (k.div_ceil(CHUNK), 2 * room / n.div_ceil(ROWS), WARPS),
            Kernel::Tiles => (k.div_ceil(STEP), room / (m.div_ceil(TILE) * n.div_ceil(TILE)), 8),
            Kernel::Warpgroups => (k.div_ceil(warpgroups::STEP), room / warpgroups::tiles(product), 4),
        };
        let slice = steps.div_ceil(wanted.clamp(1, steps.div_ceil(fewest)));
        let program = Arc::new(program(product, kernel, load));
        Ok(Self { program, kernel, slice, slices: steps.div_ceil(slice), room })
    }

    /// The kernels.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Which of them multiplies.
    pub const fn kernel(&self) -> Kernel {
        self.kernel
    }

    /// Bytes of scratch memory, at a multiple of 4.
    pub fn scratch(&self, product: &Product) -> usize {
        if self.slices > 1 { 4 * self.slices * product.m * product.n } else { 0 }
    }

    /// The calls, in order.
    pub fn calls(&self, product: &Product, scratch: u64) -> Result<Vec<Call>> {
        let &Product { m, n, k, x, stride, codes, .. } = product;
        let sums = Argument::Address(if self.slices > 1 { scratch } else { 0 });
        let (bias, kind) = match product.bias {
            Bias::None => (0, 0),
            Bias::Float(address, dtype) => (address, code(dtype)),
            Bias::Integer(address) => (address, 3),
        };
        let zero = if let Output::Byte(zero) = product.output { zero } else { 0 };
        let scales = |scales: Scales| [Argument::Address(scales.address), Argument::I32(i32::from(scales.each))];
        let ends = [scales(product.row_scales), scales(product.column_scales)].concat().into_iter();
        let ends = ends.chain([
            Argument::Address(bias),
            Argument::I32(kind),
            Argument::Address(product.out),
            Argument::I32(zero),
        ]);
        let call = |entry, grid: [usize; 2], threads, shared, arguments| -> Result<Call> {
            let grid = [crate::blocks(grid[0] as u64, 1)?, crate::blocks(grid[1] as u64, 1)?, 1];
            Ok(Call {
                program: self.program.clone(),
                entry,
                grid,
                block: [threads, 1, 1],
                shared,
                arguments,
                early: true,
            })
        };
        let own = || {
            let own = [Argument::Address(x), Argument::I64(stride as i64), Argument::Address(codes), sums];
            own.into_iter().chain([int(m), int(n), Argument::I64(k as i64), int(self.slice)])
        };
        let first = match self.kernel {
            Kernel::Narrow => {
                call("narrow", [n.div_ceil(ROWS), self.slices], 256, 0, own().chain(ends.clone()).collect())?
            }
            Kernel::Tiles => {
                let grid = [m.div_ceil(TILE) * n.div_ceil(TILE), self.slices];
                call("gemm", grid, 256, STAGES, own().chain(ends.clone()).collect())?
            }
            Kernel::Warpgroups => {
                let works = crate::blocks((warpgroups::tiles(product) * self.slices) as u64, 1)? as usize;
                let own = warpgroups::arguments(product, sums, self.slice, self.slices).into_iter();
                let grid = [works.min(self.room), 1];
                call("warpgroups", grid, warpgroups::THREADS, warpgroups::SHARED, own.chain(ends.clone()).collect())?
            }
        };
        let mut calls = vec![first];
        if self.slices > 1 {
            let arguments = [sums, int(self.slices), int(m), int(n)].into_iter().chain(ends).collect();
            calls.push(call("finish", [(m * n).div_ceil(256), 1], 256, 0, arguments)?);
        }
        Ok(calls)
    }
}

impl Kernel {
    fn of(product: &Product, device: Device) -> Self {
        if is_narrow(product.m) && product.stride.is_multiple_of(16) && product.x.is_multiple_of(16) {
            Self::Narrow
        } else if warpgroups::takes(product, device) {
            Self::Warpgroups
        } else {
            Self::Tiles
        }
    }

    /// Name for people.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Narrow => "int8 narrow mma",
            Self::Tiles => "int8 mma",
            Self::Warpgroups => "int8 wgmma",
        }
    }
}

/// Whether a product with so few rows of x runs on the narrow kernel, which needs rows at multiples of 16 bytes.
pub const fn is_narrow(m: usize) -> bool {
    m <= NARROW_ROWS
}

fn refused(text: String) -> Error {
    Error::Core(octavo_core::Error::shape(text))
}

fn program(product: &Product, kernel: Kernel, load: u32) -> Program {
    let (out, out_name) = match product.output {
        Output::Float(dtype) => (code(dtype), dtype.name()),
        Output::Sum => (3, "int32"),
        Output::Byte(_) => (4, "int8"),
    };
    let width = product.width;
    let mut defines = vec![("SHIFT", (8 - width).to_string()), ("OUT", out.to_string())];
    if kernel == Kernel::Warpgroups {
        let name = format!("int8-warpgroups-{out_name}");
        return Program { name, files: warpgroups::FILES, defines, entries: &["warpgroups", "finish"] };
    }
    defines.extend([
        ("WIDTH", width.to_string()),
        ("LOAD", load.to_string()),
        ("WHOLE", u8::from(product.k.is_multiple_of(128)).to_string()),
        ("GROUP", "0".to_owned()),
        ("SCALE", "NONE".to_owned()),
        ("UNPACK", if width == 8 { "PLAIN" } else { "SHIFTED" }.to_owned()),
    ]);
    if kernel == Kernel::Narrow {
        let rows = product.m.next_multiple_of(8);
        defines.push(("M", rows.to_string()));
        let name = format!("int{width}-narrow{rows}-{out_name}");
        return Program { name, files: NARROW, defines, entries: &["narrow", "finish"] };
    }
    let fits = |bytes: usize| product.stride.is_multiple_of(bytes) && product.x.is_multiple_of(bytes as u64);
    let of_x = [16, 4].into_iter().find(|&bytes| fits(bytes)).unwrap_or(1);
    defines.push(("LOAD_X", of_x.to_string()));
    Program { name: format!("int{width}-gemm-{out_name}"), files: GEMM, defines, entries: &["gemm", "finish"] }
}
