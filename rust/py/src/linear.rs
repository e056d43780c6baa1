//! Products and gathers of packed weights on addresses. `octavo/ops/linear.py` is the only caller; the names are private.

use octavo_core::linear::{Bias, Input, Matrix, Problem, gather, kernel, multiply, multiply_integer, multiply_rounded};
use octavo_core::{DType, Layout, Sizes, Values, ValuesMut};
use pyo3::prelude::*;

use crate::codec::{Parts, STORED, dtype, given_memory, memory, options, packed};
use crate::err::enter;
use crate::format::Format;
use crate::raw::{Memory, apart, slice, values, values_mut};

/// Address and dtype code of a bias; code 3 is int32.
pub(crate) type BiasAt = (usize, u8);
const INT32: u8 = 3;

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

/// A packed weight and its bias: what products read besides their inputs.
pub(crate) struct Weight {
    pub format: Format,
    pub rows: usize,
    pub columns: usize,
    pub parts: Parts,
    pub bias: Option<BiasAt>,
}

/// `m` rows of inputs at an address, and the address of the results; both have one dtype.
#[derive(Clone, Copy)]
pub(crate) struct Rows {
    pub dtype: DType,
    pub m: usize,
    pub x: usize,
    pub out: usize,
}

/// The operands of a product as slices.
struct Operands<'a> {
    x: Values<'a>,
    weight: Matrix<'a>,
    out: ValuesMut<'a>,
}

impl Weight {
    /// Writes `x W^T + bias`.
    ///
    /// # Safety
    /// As for [`slice`]: `linear.py` passes addresses of tensors that it has checked to be contiguous, on the CPU and of
    /// these sizes, and keeps them alive.
    pub(crate) unsafe fn multiply(&self, rows: Rows) -> octavo_core::Result<()> {
        // SAFETY: as the caller promises.
        unsafe {
            let Operands { x, weight, out } = self.operands(rows, &[])?;
            multiply(x, rows.m, &weight, self.float_bias()?, out)
        }
    }

    /// Writes the product with inputs rounded to a format. `scales` are theirs; None where `rule` chooses them.
    ///
    /// # Safety
    /// As for [`Weight::multiply`].
    pub(crate) unsafe fn multiply_rounded(
        &self,
        rows: Rows,
        input: &Format,
        rule: &str,
        scales: Option<Parts>,
    ) -> octavo_core::Result<()> {
        let sizes = Sizes::new(input.0, &Layout::new(&[rows.m, self.columns], -1, input.0)?)?;
        let [_, memory, zeros, levels] = given_memory(scales, &sizes);
        // SAFETY: as the caller promises.
        unsafe {
            let Operands { x, weight, out } = self.operands(rows, &[memory, zeros, levels])?;
            let options = options(rule, "saturate", scales, &sizes)?;
            multiply_rounded(x, rows.m, input.0, &options, &weight, self.float_bias()?, out)
        }
    }

    /// Writes the product of integers with inputs quantized to a format; `scales`: address and number of given ones.
    ///
    /// # Safety
    /// As for [`Weight::multiply`].
    pub(crate) unsafe fn multiply_integer(
        &self,
        rows: Rows,
        input: &Format,
        scales: Option<(usize, usize)>,
    ) -> octavo_core::Result<()> {
        // Before parts that other formats have are missed.
        kernel(&Problem::new(self.format.0, Input::Integer(input.0), rows.m, self.rows, self.columns))?;
        let (at, len) = scales.unwrap_or_default();
        // SAFETY: as the caller promises.
        unsafe {
            let Operands { x, weight, out } = self.operands(rows, &[Memory::of::<f32>("input scales", at, len)])?;
            let scales = scales.map(|(at, len)| slice(at, len, "input scales")).transpose()?;
            let bias = match self.bias {
                Some((at, INT32)) => Bias::Integer(slice(at, self.rows, "bias")?),
                _ => self.float_bias()?.map_or(Bias::None, Bias::Float),
            };
            multiply_integer(x, rows.m, input.0, scales, &weight, bias, out)
        }
    }

    /// The operands, where the results are apart from all that is read, `others` included.
    ///
    /// # Safety
    /// As for [`Weight::multiply`].
    unsafe fn operands<'a>(&self, rows: Rows, others: &[Memory]) -> octavo_core::Result<Operands<'a>> {
        let Rows { dtype, m, x, out } = rows;
        let (inputs, outputs) = (count(m, self.columns)?, count(m, self.rows)?);
        let to = Memory::values("out", out, outputs, dtype);
        apart(&[to], &[Memory::values("x", x, inputs, dtype), bias_memory(self.bias, self.rows)?])?;
        apart(&[to], others)?;
        // SAFETY: as the caller promises; `out` is apart from the rest.
        unsafe {
            let weight = matrix(&self.format, self.rows, self.columns, self.parts, to)?;
            Ok(Operands { x: values(x, inputs, dtype, "x")?, weight, out: values_mut(out, outputs, dtype, "out")? })
        }
    }

    /// The bias as numbers.
    ///
    /// # Safety
    /// As for [`Weight::multiply`].
    unsafe fn float_bias<'a>(&self) -> octavo_core::Result<Option<Values<'a>>> {
        // SAFETY: as the caller promises.
        self.bias.map(|(at, code)| unsafe { values(at, self.rows, dtype(code)?, "bias") }).transpose()
    }
}

/// The weights of a product that writes to `out`, which must be apart from them.
///
/// # Safety
/// As for [`slice`].
unsafe fn matrix<'a>(
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

/// Writes `x W^T + bias` for `m` rows at address x to address out; both are of the same dtype.
#[pyfunction]
#[pyo3(name = "_packed_linear")]
#[expect(clippy::too_many_arguments, reason = "one flat call is what the boundary is for")]
pub(crate) fn packed_linear(
    py: Python<'_>,
    format: Format,
    dtype_code: u8,
    m: usize,
    n: usize,
    k: usize,
    x: usize,
    parts: Parts,
    bias: Option<BiasAt>,
    out: usize,
) -> PyResult<()> {
    let weight = Weight { format, rows: n, columns: k, parts, bias };
    // SAFETY: `linear.py` checks the tensors behind the addresses.
    enter(py, || unsafe { weight.multiply(Rows { dtype: dtype(dtype_code)?, m, x, out }) })
}

/// Writes the product of `m` rows at address x, rounded to `input_format`, to address out. `scales` are theirs;
/// None where `rule` chooses them.
#[pyfunction]
#[pyo3(name = "_rounded_linear")]
#[expect(clippy::too_many_arguments, reason = "one flat call is what the boundary is for")]
pub(crate) fn rounded_linear(
    py: Python<'_>,
    format: Format,
    input_format: &Format,
    rule: &str,
    dtype_code: u8,
    m: usize,
    n: usize,
    k: usize,
    x: usize,
    parts: Parts,
    scales: Option<Parts>,
    bias: Option<BiasAt>,
    out: usize,
) -> PyResult<()> {
    let weight = Weight { format, rows: n, columns: k, parts, bias };
    // SAFETY: as in `packed_linear`.
    enter(py, || unsafe {
        weight.multiply_rounded(Rows { dtype: dtype(dtype_code)?, m, x, out }, input_format, rule, scales)
    })
}

/// Writes the integer product of `m` rows at address x, quantized to `input_format`, to address out.
#[pyfunction]
#[pyo3(name = "_integer_linear")]
#[expect(clippy::too_many_arguments, reason = "one flat call is what the boundary is for")]
pub(crate) fn integer_linear(
    py: Python<'_>,
    format: Format,
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
    let weight = Weight { format, rows: n, columns: k, parts, bias };
    // SAFETY: as in `packed_linear`.
    enter(py, || unsafe {
        weight.multiply_integer(Rows { dtype: dtype(dtype_code)?, m, x, out }, input_format, input_scales)
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
