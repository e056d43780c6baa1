//! The codecs on addresses. `ops.py` is the only caller; the names are private to the package.

use octavo_core::codec::{Gradients, quantize_backward as core_backward};
use octavo_core::{DType, Error, Layout, Options, Packed, PackedMut, Result, Sizes, codec};
use pyo3::prelude::*;

use crate::err::enter;
use crate::format::Format;
use crate::raw::{slice, slice_mut, values, values_mut};

/// Addresses of codes, scales, zeros and levels; 0 for a part that the format does not have.
pub(crate) type Parts = (usize, usize, usize, usize);

pub(crate) fn dtype(code: u8) -> Result<DType> {
    match code {
        0 => Ok(DType::F32),
        1 => Ok(DType::F16),
        2 => Ok(DType::BF16),
        _ => Err(Error::Shape(format!("dtype code {code}"))),
    }
}

/// Safety: as for [`slice_mut`].
pub(crate) unsafe fn packed<'a>(parts: Parts, sizes: &Sizes, with_codes: bool) -> Result<Packed<'a>> {
    // SAFETY: forwarded.
    unsafe {
        Ok(Packed {
            codes: if with_codes { slice(parts.0, sizes.codes, "codes")? } else { &[] },
            scales: slice(parts.1, sizes.scales, "scales")?,
            zeros: slice(parts.2, sizes.zeros, "zeros")?,
            levels: slice(parts.3, sizes.levels, "levels")?,
        })
    }
}

/// Safety: as for [`slice_mut`].
unsafe fn options<'a>(rule: &str, nonfinite: &str, given: Option<Parts>, sizes: &Sizes) -> Result<Options<'a>> {
    Ok(Options {
        rule: rule.parse()?,
        nonfinite: nonfinite.parse()?,
        // SAFETY: forwarded.
        given: given.map(|parts| unsafe { packed(parts, sizes, false) }).transpose()?,
    })
}

/// Encodes the values at address x into the four parts.
#[pyfunction]
#[pyo3(name = "_encode")]
#[expect(clippy::too_many_arguments, reason = "one flat call is what the boundary is for")]
pub(crate) fn encode(
    py: Python<'_>,
    format: &Format,
    dtype_code: u8,
    shape: Vec<usize>,
    axis: isize,
    x: usize,
    out: Parts,
    rule: &str,
    nonfinite: &str,
    given: Option<Parts>,
) -> PyResult<()> {
    enter(py, || {
        let layout = Layout::new(&shape, axis, format.0)?;
        let sizes = Sizes::new(format.0, &layout)?;
        // SAFETY: `ops.py` passes tensors of these sizes and keeps them alive.
        unsafe {
            let out = PackedMut {
                codes: slice_mut(out.0, sizes.codes, "codes")?,
                scales: slice_mut(out.1, sizes.scales, "scales")?,
                zeros: slice_mut(out.2, sizes.zeros, "zeros")?,
                levels: slice_mut(out.3, sizes.levels, "levels")?,
            };
            let x = values(x, layout.len(), dtype(dtype_code)?, "x")?;
            codec::encode(x, layout, format.0, &options(rule, nonfinite, given, &sizes)?, out)
        }
    })
}

/// Decodes the four parts into the values at address out.
#[pyfunction]
#[pyo3(name = "_decode")]
pub(crate) fn decode(
    py: Python<'_>,
    format: &Format,
    dtype_code: u8,
    shape: Vec<usize>,
    axis: isize,
    parts: Parts,
    out: usize,
) -> PyResult<()> {
    enter(py, || {
        let layout = Layout::new(&shape, axis, format.0)?;
        let sizes = Sizes::new(format.0, &layout)?;
        // SAFETY: as in `encode`.
        unsafe {
            let out = values_mut(out, layout.len(), dtype(dtype_code)?, "out")?;
            codec::decode(packed(parts, &sizes, true)?, layout, format.0, out)
        }
    })
}

/// Quantises the values at address x into those at address out; the two may be the same.
#[pyfunction]
#[pyo3(name = "_quantize")]
#[expect(clippy::too_many_arguments, reason = "one flat call is what the boundary is for")]
pub(crate) fn quantize(
    py: Python<'_>,
    format: &Format,
    dtype_code: u8,
    shape: Vec<usize>,
    axis: isize,
    x: usize,
    out: usize,
    rule: &str,
    given: Option<Parts>,
) -> PyResult<()> {
    enter(py, || {
        let layout = Layout::new(&shape, axis, format.0)?;
        let sizes = Sizes::new(format.0, &layout)?;
        let dtype = dtype(dtype_code)?;
        // SAFETY: as in `encode`; x and out are either the same buffer or apart.
        unsafe {
            let options = options(rule, "saturate", given, &sizes)?;
            let target = values_mut(out, layout.len(), dtype, "out")?;
            if x == out {
                codec::quantize_in_place(target, layout, format.0, &options)
            } else {
                codec::quantize(values(x, layout.len(), dtype, "x")?, layout, format.0, &options, target)
            }
        }
    })
}

/// Gradients of quantize: of x into out, and of given scales into scale_grad (float32) unless that is 0.
#[pyfunction]
#[pyo3(name = "_quantize_backward")]
#[expect(clippy::too_many_arguments, reason = "one flat call is what the boundary is for")]
pub(crate) fn quantize_backward(
    py: Python<'_>,
    format: &Format,
    dtype_code: u8,
    shape: Vec<usize>,
    axis: isize,
    grad: usize,
    x: usize,
    out: usize,
    rule: &str,
    given: Option<Parts>,
    scale_grad: usize,
) -> PyResult<()> {
    enter(py, || {
        let layout = Layout::new(&shape, axis, format.0)?;
        let sizes = Sizes::new(format.0, &layout)?;
        let dtype = dtype(dtype_code)?;
        // SAFETY: as in `encode`.
        unsafe {
            let out = Gradients {
                x: values_mut(out, layout.len(), dtype, "x gradient")?,
                scales: if scale_grad == 0 {
                    None
                } else {
                    Some(slice_mut(scale_grad, sizes.groups, "scale gradient")?)
                },
            };
            let (grad, x) = (values(grad, layout.len(), dtype, "grad")?, values(x, layout.len(), dtype, "x")?);
            core_backward(grad, x, layout, format.0, &options(rule, "saturate", given, &sizes)?, out)
        }
    })
}

/// Packs int32 codes at address codes into rows of bytes at address out.
#[pyfunction]
#[pyo3(name = "_pack")]
pub(crate) fn pack(py: Python<'_>, width: u32, rows: usize, k: usize, codes: usize, out: usize) -> PyResult<()> {
    enter(py, || {
        let (count, bytes) = lengths(width, rows, k)?;
        // SAFETY: as in `encode`.
        unsafe { octavo_core::pack_rows(slice(codes, count, "codes")?, rows, k, width, slice_mut(out, bytes, "out")?) }
    })
}

/// Unpacks rows of bytes at address packed into int32 codes at address out.
#[pyfunction]
#[pyo3(name = "_unpack")]
pub(crate) fn unpack(py: Python<'_>, width: u32, rows: usize, k: usize, packed: usize, out: usize) -> PyResult<()> {
    enter(py, || {
        let (count, bytes) = lengths(width, rows, k)?;
        // SAFETY: as in `encode`.
        unsafe {
            octavo_core::unpack_rows(slice(packed, bytes, "packed")?, rows, k, width, slice_mut(out, count, "out")?)
        }
    })
}

fn lengths(width: u32, rows: usize, k: usize) -> Result<(usize, usize)> {
    let too_large = || Error::Shape(format!("{rows} rows of {k} codes of {width} bits overflow the address space"));
    let count = rows.checked_mul(k).ok_or_else(too_large)?;
    let bytes = octavo_core::packed_bytes(k, width)?.checked_mul(rows).ok_or_else(too_large)?;
    Ok((count, bytes))
}
