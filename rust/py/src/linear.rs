//! Products and gathers of packed weights on addresses. `octavo/ops/linear.py` is the only caller; the names are private.

use octavo_core::linear::{Bias, Input, Matrix, Problem, gather, kernel, multiply, multiply_integer, multiply_rounded};
use octavo_core::{Layout, Sizes};
use pyo3::prelude::*;

use crate::codec::{Parts, STORED, dtype, given_memory, memory, options, packed};
use crate::err::enter;
use crate::format::Format;
use crate::raw::{Memory, apart, slice, values, values_mut};

/// Address and dtype code of a bias; code 3 is int32.
pub(crate) type BiasAt = (usize, u8);
const INT32: u8 = 3;

/// The weights of a product that writes to `out`, which must be apart from them.
///
/// # Safety
/// As for [`slice`].
pub(crate) unsafe fn matrix<'a>(
    format: &Format,
    rows: usize,
    columns: usize,
    parts: Parts,
    out: Memory,
) -> octavo_core::Result<Matrix<'a>> {
    let sizes = Sizes::new(format.0, &Layout::new(&[rows, columns], -1, format.0)?)?;
    apart(&[out], &memory(STORED, parts, &sizes))?;
    // SAFETY: as the caller promises.
    Ok(Matrix { format: format.0, packed: unsafe { packed(parts, &sizes, true)? }, rows, columns })
}

/// The memory of a bias of `n` values.
pub(crate) fn bias_memory(bias: Option<BiasAt>, n: usize) -> octavo_core::Result<Memory> {
    Ok(match bias {
        None => Memory::new("bias", 0, 0),
        Some((at, INT32)) => Memory::of::<i32>("bias", at, n),
        Some((at, code)) => Memory::values("bias", at, n, dtype(code)?),
    })
}

pub(crate) fn count(m: usize, each: usize) -> octavo_core::Result<usize> {
    m.checked_mul(each).ok_or_else(|| octavo_core::Error::shape(format!("{m} rows of {each} values overflow")))
}

/// Writes `x W^T + bias` for `m` rows at address x to address out; both are of the same dtype.
#[pyfunction]
#[pyo3(name = "_packed_linear")]
#[expect(clippy::too_many_arguments, reason = "one flat call is what the boundary is for")]
pub(crate) fn packed_linear(
    py: Python<'_>,
    format: &Format,
    dtype_code: u8,
    m: usize,
    n: usize,
    k: usize,
    x: usize,
    parts: Parts,
    bias: Option<BiasAt>,
    out: usize,
) -> PyResult<()> {
    enter(py, || {
        let kind = dtype(dtype_code)?;
        let (inputs, outputs) = (count(m, k)?, count(m, n)?);
        let to = Memory::values("out", out, outputs, kind);
        apart(&[to], &[Memory::values("x", x, inputs, kind), bias_memory(bias, n)?])?;
        // SAFETY: `linear.py` passes tensors that it has checked to be contiguous, on the CPU and of these sizes, and keeps
        // them alive; `out` is apart from the rest.
        unsafe {
            let w = matrix(format, n, k, parts, to)?;
            let bias = bias.map(|(at, code)| values(at, n, dtype(code)?, "bias")).transpose()?;
            let (x, out) = (values(x, inputs, kind, "x")?, values_mut(out, outputs, kind, "out")?);
            multiply(x, m, &w, bias, out)
        }
    })
}

/// Writes the product of `m` rows at address x, rounded to `input_format`, to address out. Scales are chosen by `rule`, or
/// given.
#[pyfunction]
#[pyo3(name = "_rounded_linear")]
#[expect(clippy::too_many_arguments, reason = "one flat call is what the boundary is for")]
pub(crate) fn rounded_linear(
    py: Python<'_>,
    format: &Format,
    input_format: &Format,
    rule: &str,
    dtype_code: u8,
    m: usize,
    n: usize,
    k: usize,
    x: usize,
    parts: Parts,
    given: Option<Parts>,
    bias: Option<BiasAt>,
    out: usize,
) -> PyResult<()> {
    enter(py, || {
        let kind = dtype(dtype_code)?;
        let (inputs, outputs) = (count(m, k)?, count(m, n)?);
        let to = Memory::values("out", out, outputs, kind);
        let sizes = Sizes::new(input_format.0, &Layout::new(&[m, k], -1, input_format.0)?)?;
        let [_, scales, zeros, levels] = given_memory(given, &sizes);
        apart(&[to], &[Memory::values("x", x, inputs, kind), bias_memory(bias, n)?, scales, zeros, levels])?;
        // SAFETY: as in `packed_linear`.
        unsafe {
            let w = matrix(format, n, k, parts, to)?;
            let bias = bias.map(|(at, code)| values(at, n, dtype(code)?, "bias")).transpose()?;
            let (x, out) = (values(x, inputs, kind, "x")?, values_mut(out, outputs, kind, "out")?);
            let options = options(rule, "saturate", given, &sizes)?;
            multiply_rounded(x, m, input_format.0, &options, &w, bias, out)
        }
    })
}

/// Writes the integer product of `m` rows at address x, quantized to `input_format`, to address out.
#[pyfunction]
#[pyo3(name = "_integer_linear")]
#[expect(clippy::too_many_arguments, reason = "one flat call is what the boundary is for")]
pub(crate) fn integer_linear(
    py: Python<'_>,
    format: &Format,
    input_format: &Format,
    dtype_code: u8,
    m: usize,
    n: usize,
    k: usize,
    x: usize,
    parts: Parts,
    input_scales: Option<(usize, usize)>,
    bias: Option<BiasAt>,
    out: usize,
) -> PyResult<()> {
    enter(py, || {
        let kind = dtype(dtype_code)?;
        kernel(&Problem::new(format.0, Input::Integer(input_format.0), m, n, k))?; // before parts that other formats have are missed
        let (inputs, outputs) = (count(m, k)?, count(m, n)?);
        let to = Memory::values("out", out, outputs, kind);
        let (at, len) = input_scales.unwrap_or_default();
        let scales = Memory::of::<f32>("input scales", at, len);
        apart(&[to], &[Memory::values("x", x, inputs, kind), bias_memory(bias, n)?, scales])?;
        // SAFETY: as in `packed_linear`.
        unsafe {
            let w = matrix(format, n, k, parts, to)?;
            let scales = input_scales.map(|(at, len)| slice(at, len, "input scales")).transpose()?;
            let bias = match bias {
                None => Bias::None,
                Some((at, INT32)) => Bias::Integer(slice(at, n, "bias")?),
                Some((at, code)) => Bias::Float(values(at, n, dtype(code)?, "bias")?),
            };
            let (x, out) = (values(x, inputs, kind, "x")?, values_mut(out, outputs, kind, "out")?);
            multiply_integer(x, m, input_format.0, scales, &w, bias, out)
        }
    })
}

/// Writes the decoded rows whose int64 numbers lie at address ids to address out.
#[pyfunction]
#[pyo3(name = "_packed_embedding")]
#[expect(clippy::too_many_arguments, reason = "one flat call is what the boundary is for")]
pub(crate) fn packed_embedding(
    py: Python<'_>,
    format: &Format,
    dtype_code: u8,
    ids: (usize, usize),
    rows: usize,
    width: usize,
    parts: Parts,
    out: usize,
) -> PyResult<()> {
    enter(py, || {
        let (kind, outputs) = (dtype(dtype_code)?, count(ids.1, width)?);
        let to = Memory::values("out", out, outputs, kind);
        apart(&[to], &[Memory::of::<i64>("ids", ids.0, ids.1)])?;
        // SAFETY: as in `packed_linear`.
        unsafe {
            let w = matrix(format, rows, width, parts, to)?;
            let ids = slice(ids.0, ids.1, "ids")?;
            let out = values_mut(out, outputs, kind, "out")?;
            gather(ids, &w, out)
        }
    })
}

/// Names the kernel of a product with inputs rounded to a format.
#[pyfunction]
#[pyo3(name = "_rounded_kernel")]
pub(crate) fn rounded_linear_kernel(
    py: Python<'_>,
    format: &Format,
    input_format: &Format,
    m: usize,
    n: usize,
    k: usize,
) -> PyResult<&'static str> {
    enter(py, || kernel(&Problem::new(format.0, Input::Rounded(input_format.0), m, n, k)))
}

/// Names the kernel of a product.
#[pyfunction]
#[pyo3(name = "_linear_kernel", signature = (format, input_format, m, n, k, dtype_code=0))]
pub(crate) fn linear_kernel(
    py: Python<'_>,
    format: &Format,
    input_format: Option<Format>,
    m: usize,
    n: usize,
    k: usize,
    dtype_code: u8,
) -> PyResult<&'static str> {
    enter(py, || {
        let input = match input_format {
            Some(input) => Input::Integer(input.0),
            None => Input::Plain(dtype(dtype_code)?),
        };
        kernel(&Problem::new(format.0, input, m, n, k))
    })
}
