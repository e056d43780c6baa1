//! Products on device addresses. `octavo/ops/linear_cuda.py` and `octavo/ops/gemm.py` are the only callers.

use octavo_cuda::arch::{Arch, OLDEST};
use octavo_cuda::gemm::{Bias, Gemm, Output, Product, Scales};
use octavo_cuda::linear::{Device, Integer, Linear, Numbers, choose, kernel};
use octavo_cuda::{Error, launch};
use pyo3::prelude::*;

use crate::codec::dtype;
use crate::err::enter_cuda;
use crate::format::Format;

/// Number of the device and handle of its stream.
type Where = (i32, u64);
/// Rows of x, rows of W, columns of both.
type Sizes = (usize, usize, usize);
/// Address and dtype code; 3 is int32.
type At = (u64, u8);
const INT32: u8 = 3;
/// The device of a kernel that is only named: the first, or where there is none, any that runs kernels.
fn named() -> Device {
    let any = Device { multiprocessors: 132, arch: Arch { capability: OLDEST, specific: false } };
    Device::get(0).unwrap_or(any)
}

fn linear(
    format: &Format,
    (m, n, k): Sizes,
    (x, code): At,
    (codes, scales, zeros, levels): (u64, u64, u64, u64),
    bias: Option<At>,
    out: u64,
) -> Result<Linear, Error> {
    let numbers = |(address, code)| -> Result<Numbers, Error> { Ok(Numbers { address, dtype: dtype(code)? }) };
    let bias = bias.map(numbers).transpose()?;
    let parts = [codes, scales, zeros, levels];
    Ok(Linear { format: format.0, m, n, k, x: numbers((x, code))?, parts, bias, out })
}

/// Bytes of scratch memory of a product whose codes begin at a multiple of 16 plus `offset`; None where no kernel takes it.
#[pyfunction]
#[pyo3(name = "_cuda_packed_linear_scratch")]
pub(crate) fn cuda_packed_linear_scratch(
    py: Python<'_>,
    format: &Format,
    number: i32,
    sizes: Sizes,
    x_code: u8,
    bias_code: Option<u8>,
    offset: u64,
) -> PyResult<Option<usize>> {
    enter_cuda(py, || {
        let linear = linear(format, sizes, (0, x_code), (offset, 0, 0, 0), bias_code.map(|code| (0, code)), 0)?;
        Ok(choose(&linear, Device::get(number)?)?.map(|kernel| kernel.scratch(&linear)))
    })
}

/// Writes `x W^T + bias` to address out, in the dtype of x.
#[pyfunction]
#[pyo3(name = "_cuda_packed_linear")]
#[expect(clippy::too_many_arguments, reason = "one flat call is what the boundary is for")]
pub(crate) fn cuda_packed_linear(
    py: Python<'_>,
    format: &Format,
    on: Where,
    sizes: Sizes,
    x: At,
    parts: (u64, u64, u64, u64),
    bias: Option<At>,
    out: u64,
    scratch: u64,
) -> PyResult<()> {
    enter_cuda(py, || {
        let linear = linear(format, sizes, x, parts, bias, out)?;
        let Some(kernel) = choose(&linear, Device::get(on.0)?)? else {
            let text = format!("no kernel takes the product with a '{}' weight", format.0);
            return Err(Error::Core(octavo_core::Error::shape(text)));
        };
        let calls = kernel.calls(&linear, scratch)?;
        // SAFETY: `linear_cuda.py` passes the current stream of the device, and contiguous tensors there that it has checked
        // to be of these sizes, the scratch memory included; PyTorch keeps their memory in the order of streams, as for
        // operations of its own.
        unsafe { launch(on.0, on.1, &calls) }
    })
}

fn bias_of(bias: Option<At>) -> Result<Bias, Error> {
    Ok(match bias {
        None => Bias::None,
        Some((at, INT32)) => Bias::Integer(at),
        Some((at, code)) => Bias::Float(at, dtype(code)?),
    })
}

#[expect(clippy::too_many_arguments, reason = "what the boundary hands over")]
fn integer(
    format: &Format,
    input: &Format,
    (m, n, k): Sizes,
    (x, code): At,
    (codes, scales): (u64, u64),
    input_scales: u64,
    bias: Option<At>,
    out: u64,
) -> Result<Integer, Error> {
    let x = Numbers { address: x, dtype: dtype(code)? };
    let (format, input, bias) = (format.0, input.0, bias_of(bias)?);
    Ok(Integer { format, input, m, n, k, x, codes, scales, input_scales, bias, out })
}

/// Bytes of scratch memory of an integer product whose codes begin at a multiple of 16 plus `offset`.
#[pyfunction]
#[pyo3(name = "_cuda_integer_linear_scratch")]
#[expect(clippy::too_many_arguments, reason = "one flat call is what the boundary is for")]
pub(crate) fn cuda_integer_linear_scratch(
    py: Python<'_>,
    format: &Format,
    input: &Format,
    number: i32,
    sizes: Sizes,
    x_code: u8,
    bias_code: Option<u8>,
    offset: u64,
) -> PyResult<usize> {
    enter_cuda(py, || {
        let bias = bias_code.map(|code| (0, code));
        let integer = integer(format, input, sizes, (0, x_code), (offset, 0), 0, bias, 0)?;
        Ok(integer.plan(0, Device::get(number)?)?.scratch())
    })
}

/// Writes the integer product of x, quantized to `input`, to address out.
#[pyfunction]
#[pyo3(name = "_cuda_integer_linear")]
#[expect(clippy::too_many_arguments, reason = "one flat call is what the boundary is for")]
pub(crate) fn cuda_integer_linear(
    py: Python<'_>,
    format: &Format,
    input: &Format,
    on: Where,
    sizes: Sizes,
    x: At,
    parts: (u64, u64),
    input_scales: u64,
    bias: Option<At>,
    out: u64,
    scratch: u64,
) -> PyResult<()> {
    enter_cuda(py, || {
        let integer = integer(format, input, sizes, x, parts, input_scales, bias, out)?;
        let plan = integer.plan(scratch, Device::get(on.0)?)?;
        let calls = integer.calls(&plan)?;
        // SAFETY: as in `cuda_packed_linear`.
        unsafe { launch(on.0, on.1, &calls) }
    })
}

#[expect(clippy::too_many_arguments, reason = "what the boundary hands over")]
fn product(
    (m, n, k): Sizes,
    a: u64,
    b: u64,
    bias: Option<At>,
    rows: (u64, bool),
    columns: (u64, bool),
    (out, code): At,
    zero: i32,
) -> Result<Product, Error> {
    let scales = |(address, each)| Scales { address, each };
    let output = match code {
        INT32 => Output::Sum,
        4 => Output::Byte(zero),
        code => Output::Float(dtype(code)?),
    };
    Ok(Product {
        m,
        n,
        k,
        x: a,
        stride: k,
        codes: b,
        width: 8,
        row_scales: scales(rows),
        column_scales: scales(columns),
        bias: bias_of(bias)?,
        out,
        output,
    })
}

/// Bytes of scratch memory of a product of int8 matrices that begin at multiples of 16 plus two offsets.
#[pyfunction]
#[pyo3(name = "_cuda_int8_gemm_scratch")]
pub(crate) fn cuda_int8_gemm_scratch(
    py: Python<'_>,
    number: i32,
    sizes: Sizes,
    offsets: (u64, u64),
) -> PyResult<usize> {
    enter_cuda(py, || {
        let product = product(sizes, offsets.0, offsets.1, None, (0, false), (0, false), (0, INT32), 0)?;
        Ok(Gemm::new(&product, Device::get(number)?)?.scratch(&product))
    })
}

/// Writes the product of int8 matrices, scaled, to address out; codes of its dtype are 0 to 2, 3 int32, 4 int8.
#[pyfunction]
#[pyo3(name = "_cuda_int8_gemm")]
#[expect(clippy::too_many_arguments, reason = "one flat call is what the boundary is for")]
pub(crate) fn cuda_int8_gemm(
    py: Python<'_>,
    on: Where,
    sizes: Sizes,
    a: u64,
    b: u64,
    bias: Option<At>,
    rows: (u64, bool),
    columns: (u64, bool),
    out: At,
    zero: i32,
    scratch: u64,
) -> PyResult<()> {
    enter_cuda(py, || {
        let product = product(sizes, a, b, bias, rows, columns, out, zero)?;
        let gemm = Gemm::new(&product, Device::get(on.0)?)?;
        let calls = gemm.calls(&product, scratch)?;
        // SAFETY: as in `cuda_packed_linear`, of `gemm.py`.
        unsafe { launch(on.0, on.1, &calls) }
    })
}

/// Names the kernel of a product on the first device, or any; None where weights are decoded.
#[pyfunction]
#[pyo3(name = "_cuda_linear_kernel")]
pub(crate) fn cuda_linear_kernel(
    py: Python<'_>,
    format: &Format,
    input: Option<Format>,
    sizes: Sizes,
    x_code: u8,
) -> PyResult<Option<&'static str>> {
    enter_cuda(py, || kernel(format.0, input.map(|input| input.0), sizes.into(), dtype(x_code)?, named()))
}
