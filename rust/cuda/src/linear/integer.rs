//! Integer products that quantize their inputs first: the twin of `octavo_core::linear::multiply_integer`.

use std::sync::Arc;

use octavo_core::error::FormatError;
use octavo_core::format::{Element, Granularity};
use octavo_core::{DType, Format};

use super::{Device, Numbers, code};
use crate::gemm::{Bias, Gemm, Kernel, Output, Product, Scales, is_narrow};
use crate::{Argument, Call, Error, Program, Result};

const FILES: &[(&str, &str)] = &[
    ("base.cu", include_str!("../../kernels/base.cu")),
    ("values.cu", include_str!("../../kernels/linear/values.cu")),
    ("quantize.cu", include_str!("../../kernels/linear/quantize.cu")),
];
/// Pieces of x whose absmax is found by one block each.
const STRETCHES: usize = 256;

/// `y = quantize(x) W^T`, by addresses.
#[derive(Clone, Copy, Debug)]
pub struct Integer {
    /// Format of the weights, `int2` to `int8`, `:tensor` or `:channel`.
    pub format: Format,
    /// Format of the inputs, of the same kind.
    pub input: Format,
    /// Rows of x.
    pub m: usize,
    /// Rows of W.
    pub n: usize,
    /// Columns of both.
    pub k: usize,
    /// `[m, k]`, dense.
    pub x: Numbers,
    /// Codes of W.
    pub codes: u64,
    /// Scales of W.
    pub scales: u64,
    /// Given scales of the inputs; `0` to choose them.
    pub input_scales: u64,
    /// What is added.
    pub bias: Bias,
    /// `[m, n]`, of the dtype of x.
    pub out: u64,
}

/// How the product is computed, and where in the scratch memory things lie.
#[derive(Debug)]
pub struct Plan {
    quantize: Arc<Program>,
    gemm: Gemm,
    product: Product,
    /// From the beginning of the scratch memory: scales of rows, magnitudes, sums, its end.
    at: [usize; 4],
    dynamic: bool,
}

/// Bits of the codes of a format that integer products take, or an error.
fn bits(format: Format, what: &'static str) -> Result<u32> {
    match (format.element(), format.granularity()) {
        (Element::Int { width: width @ 2..=8, signed: true }, Granularity::Tensor | Granularity::Channel) => {
            Ok(u32::from(width))
        }
        _ => Err(Error::Core(FormatError::IntegerProduct { what, format }.into())),
    }
}

impl Integer {
    /// Plans a product whose scratch memory begins at `scratch`, a multiple of 16; `0` to ask for its size only.
    pub fn plan(&self, scratch: u64, device: Device) -> Result<Plan> {
        let (width, input) = (bits(self.format, "weight")?, bits(self.input, "input")?);
        let size = self.x.dtype.bytes() as u64;
        if !(self.x.address | self.out).is_multiple_of(size) || !(self.scales | self.input_scales).is_multiple_of(4) {
            return Err(Error::Launch(
                "integer product: an address is no multiple of the bytes of its numbers".to_owned(),
            ));
        }
        let stride = self.k.next_multiple_of(16);
        let scales = (self.m * stride).next_multiple_of(16);
        let magnitudes = scales + 4 * self.m;
        let sums = magnitudes + 4 * STRETCHES;
        let each = |format: Format| format.granularity() == Granularity::Channel;
        let product = Product {
            m: self.m,
            n: self.n,
            k: self.k,
            x: scratch,
            stride,
            codes: self.codes,
            width,
            row_scales: Scales { address: scratch + scales as u64, each: true },
            column_scales: Scales { address: self.scales, each: each(self.format) },
            bias: self.bias,
            out: self.out,
            output: Output::Float(self.x.dtype),
        };
        let gemm = Gemm::new(&product, device)?;
        let mode = usize::from(each(self.input)) + if self.input_scales == 0 { 0 } else { 2 };
        let apart = width == 4 && is_narrow(self.m);
        let quantize = Arc::new(program(self.x.dtype, input, mode, apart));
        let end = sums + gemm.scratch(&product);
        Ok(Plan { quantize, gemm, product, at: [scales, magnitudes, sums, end], dynamic: mode == 0 })
    }

    /// The calls, in order.
    pub fn calls(&self, plan: &Plan) -> Result<Vec<Call>> {
        let (base, [_, magnitudes, sums, _]) = (plan.product.x, plan.at);
        let x = Argument::Address(self.x.address);
        let call = |entry, blocks: usize, arguments| -> Result<Call> {
            let grid = [crate::blocks(blocks as u64, 1)?, 1, 1];
            Ok(Call {
                program: plan.quantize.clone(),
                entry,
                grid,
                block: [256, 1, 1],
                shared: 0,
                arguments,
                early: true,
            })
        };
        let found = Argument::Address(base + magnitudes as u64);
        let stretches = (self.m * self.k).div_ceil(4096).min(STRETCHES);
        let mut calls = Vec::new();
        if plan.dynamic {
            calls.push(call("magnitudes", stretches, vec![x, found, Argument::I64((self.m * self.k) as i64)])?);
        }
        let arguments = vec![
            x,
            Argument::Address(self.input_scales),
            found,
            super::int(stretches),
            Argument::Address(base),
            Argument::Address(plan.product.row_scales.address),
            Argument::I64(self.k as i64),
            Argument::I64(plan.product.stride as i64),
        ];
        calls.push(call("quantize", self.m, arguments)?);
        calls.extend(plan.gemm.calls(&plan.product, base + sums as u64)?);
        Ok(calls)
    }
}

impl Plan {
    /// Bytes of scratch memory.
    pub fn scratch(&self) -> usize {
        self.at[3]
    }

    /// Which kernel multiplies.
    pub const fn kernel(&self) -> Kernel {
        self.gemm.kernel()
    }

    /// The kernels.
    pub fn programs(&self) -> [&Program; 2] {
        [&self.quantize, self.gemm.program()]
    }
}

fn program(x: DType, input: u32, mode: usize, apart: bool) -> Program {
    let defines = vec![
        ("X", code(x).to_string()),
        ("MOST", ((1 << (input - 1)) - 1).to_string()),
        ("SCALES", mode.to_string()),
        ("EVEN_ODD_RUNS", u8::from(apart).to_string()),
    ];
    let name = format!("quantize-int{input}-{}", x.name());
    Program { name, files: FILES, defines, entries: &["magnitudes", "quantize"] }
}
