//! The codecs on addresses. `octavo/ops/codec.py` is the only caller; the names are private to the package.

use octavo_core::codec::{Gradients, quantize_backward as core_backward};
use octavo_core::{DType, Error, Layout, Options, Packed, PackedMut, Result, Sizes, codec};
use pyo3::prelude::*;

use crate::err::enter;
use crate::format::Format;
use crate::raw::{Memory, apart, slice, slice_mut, values, values_mut};

/// Addresses of codes, scales, zeros and levels; 0 for a part that the format does not have.
pub(crate) type Parts = (usize, usize, usize, usize);

/// What messages call the parts that are written, read and given.
const OUT: [&str; 4] = ["out codes", "out scales", "out zeros", "out levels"];
pub(crate) const STORED: [&str; 4] = ["codes", "scales", "zeros", "levels"];
const GIVEN: [&str; 4] = ["given codes", "given scales", "given zeros", "given levels"];

/// The memory of four parts.
pub(crate) fn memory(names: [&'static str; 4], parts: Parts, sizes: &Sizes) -> [Memory; 4] {
    let [codes, scales, zeros, levels] = names;
    [
        Memory::new(codes, parts.0, sizes.codes),
        Memory::new(scales, parts.1, sizes.scales),
        Memory::new(zeros, parts.2, sizes.zeros),
        Memory::new(levels, parts.3, sizes.levels),
    ]
}

/// The memory of given scales; nobody looks at codes beside them.
pub(crate) fn given_memory(given: Option<Parts>, sizes: &Sizes) -> [Memory; 4] {
    let (_, scales, zeros, levels) = given.unwrap_or_default();
    memory(GIVEN, (0, scales, zeros, levels), sizes)
}

pub(crate) fn dtype(code: u8) -> Result<DType> {
    match code {
        0 => Ok(DType::F32),
        1 => Ok(DType::F16),
        2 => Ok(DType::BF16),
        _ => Err(Error::shape(format!("dtype code {code}"))),
    }
}

/// The parts of an encoded tensor, to read.
///
/// # Safety
/// As for [`slice`].
pub(crate) unsafe fn packed<'a>(parts: Parts, sizes: &Sizes, with_codes: bool) -> Result<Packed<'a>> {
    // SAFETY: as the caller promises.
    unsafe {
        Ok(Packed {
            codes: if with_codes { slice(parts.0, sizes.codes, "codes")? } else { &[] },
            scales: slice(parts.1, sizes.scales, "scales")?,
            zeros: slice(parts.2, sizes.zeros, "zeros")?,
            levels: slice(parts.3, sizes.levels, "levels")?,
        })
    }
}

/// Options, with the scales that are given.
///
/// # Safety
/// As for [`slice`].
pub(crate) unsafe fn options<'a>(
    rule: &str,
    nonfinite: &str,
    given: Option<Parts>,
    sizes: &Sizes,
) -> Result<Options<'a>> {
    Ok(Options {
        rule: rule.parse()?,
        nonfinite: nonfinite.parse()?,
        // SAFETY: as the caller promises.
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
        let (sizes, dtype) = (Sizes::new(format.0, &layout)?, dtype(dtype_code)?);
        let [_, scales, zeros, levels] = given_memory(given, &sizes);
        let read = [Memory::values("x", x, layout.len(), dtype), scales, zeros, levels];
        apart(&memory(OUT, out, &sizes), &read)?;
        // SAFETY: `octavo.ops.codec` passes tensors that it has checked to be contiguous, on the CPU and of the sizes that follow from
        // format, shape and axis, and keeps them alive; what is written is apart from the rest.
        unsafe {
            let out = PackedMut {
                codes: slice_mut(out.0, sizes.codes, "codes")?,
                scales: slice_mut(out.1, sizes.scales, "scales")?,
                zeros: slice_mut(out.2, sizes.zeros, "zeros")?,
                levels: slice_mut(out.3, sizes.levels, "levels")?,
            };
            let x = values(x, layout.len(), dtype, "x")?;
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
        let (sizes, dtype) = (Sizes::new(format.0, &layout)?, dtype(dtype_code)?);
        apart(&[Memory::values("out", out, layout.len(), dtype)], &memory(STORED, parts, &sizes))?;
        // SAFETY: as in `encode`.
        unsafe {
            let out = values_mut(out, layout.len(), dtype, "out")?;
            codec::decode(packed(parts, &sizes, true)?, layout, format.0, out)
        }
    })
}

/// Quantizes the values at address x into those at address out; the two may be the same. Where they are not, it writes marks
/// of the values inside the range of their group to address marks, unless that is 0, or tells, asked to look, whether a value
/// was NaN.
#[pyfunction]
#[pyo3(name = "_quantize", signature = (format, dtype_code, shape, axis, x, out, rule, given, look = false, marks = 0))]
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
    look: bool,
    marks: usize,
) -> PyResult<bool> {
    enter(py, || {
        let layout = Layout::new(&shape, axis, format.0)?;
        let (sizes, dtype) = (Sizes::new(format.0, &layout)?, dtype(dtype_code)?);
        let [_, scales, zeros, levels] = given_memory(given, &sizes);
        let marked = if marks == 0 { 0 } else { codec::marks_len(&layout, format.0) };
        let written = [Memory::values("out", out, layout.len(), dtype), Memory::new("marks", marks, marked)];
        apart(&written, &[scales, zeros, levels])?;
        if x != out {
            apart(&written, &[Memory::values("x", x, layout.len(), dtype)])?;
        }
        // SAFETY: as in `encode`; x and out are the same memory, of which one slice is made, or apart.
        unsafe {
            let options = options(rule, "saturate", given, &sizes)?;
            let target = values_mut(out, layout.len(), dtype, "out")?;
            if x == out {
                return codec::quantize_in_place(target, layout, format.0, &options).map(|()| false);
            }
            let x = values(x, layout.len(), dtype, "x")?;
            if marks != 0 {
                let marks = slice_mut(marks, marked, "marks")?;
                return codec::quantize_marking(x, layout, format.0, &options, target, marks).map(|()| false);
            }
            if look {
                return codec::quantize_seeing_nan(x, layout, format.0, &options, target);
            }
            codec::quantize(x, layout, format.0, &options, target).map(|()| false)
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
        let (sizes, dtype) = (Sizes::new(format.0, &layout)?, dtype(dtype_code)?);
        let all = |what, address| Memory::values(what, address, layout.len(), dtype);
        let [_, scales, zeros, levels] = given_memory(given, &sizes);
        let to_scales = Memory::of::<f32>("scale gradient", scale_grad, sizes.groups);
        apart(&[all("x gradient", out), to_scales], &[all("grad", grad), all("x", x), scales, zeros, levels])?;
        // SAFETY: as in `encode`; of `grad`, too, `octavo.ops.codec` has checked that it is of the shape and dtype of x.
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

/// Gradients of marked values at address grad into out, and 0 for others; marks are those of quantize.
#[pyfunction]
#[pyo3(name = "_pass_marked")]
pub(crate) fn pass_marked(
    py: Python<'_>,
    format: &Format,
    dtype_code: u8,
    count: usize,
    grad: usize,
    marks: usize,
    out: usize,
) -> PyResult<()> {
    enter(py, || {
        let dtype = dtype(dtype_code)?;
        let all = |what, address| Memory::values(what, address, count, dtype);
        apart(&[all("x gradient", out)], &[all("grad", grad), Memory::new("marks", marks, count / 8)])?;
        // SAFETY: as in `encode`; `octavo.ops` has checked that all three are of one tensor.
        unsafe {
            let marks = slice(marks, count / 8, "marks")?;
            let (grad, out) = (values(grad, count, dtype, "grad")?, values_mut(out, count, dtype, "x gradient")?);
            codec::pass_marked(grad, marks, format.0, out)
        }
    })
}

/// Packs int32 codes at address codes into rows of bytes at address out.
#[pyfunction]
#[pyo3(name = "_pack")]
pub(crate) fn pack(py: Python<'_>, width: u32, rows: usize, k: usize, codes: usize, out: usize) -> PyResult<()> {
    enter(py, || {
        let (count, bytes) = lengths(width, rows, k)?;
        apart(&[Memory::new("out", out, bytes)], &[Memory::of::<u32>("codes", codes, count)])?;
        // SAFETY: as in `encode`, of `octavo.ops.codec` and `octavo.nn`, which make both tensors themselves.
        unsafe { octavo_core::pack_rows(slice(codes, count, "codes")?, rows, k, width, slice_mut(out, bytes, "out")?) }
    })
}

/// Unpacks rows of bytes at address packed into int32 codes at address out.
#[pyfunction]
#[pyo3(name = "_unpack")]
pub(crate) fn unpack(py: Python<'_>, width: u32, rows: usize, k: usize, packed: usize, out: usize) -> PyResult<()> {
    enter(py, || {
        let (count, bytes) = lengths(width, rows, k)?;
        apart(&[Memory::of::<u32>("out", out, count)], &[Memory::new("packed", packed, bytes)])?;
        // SAFETY: as in `encode`, of `tensor.py`: it makes `out` itself, and checks the part against format and shape.
        unsafe {
            octavo_core::unpack_rows(slice(packed, bytes, "packed")?, rows, k, width, slice_mut(out, count, "out")?)
        }
    })
}

fn lengths(width: u32, rows: usize, k: usize) -> Result<(usize, usize)> {
    let too_large = || Error::shape(format!("{rows} rows of {k} codes of {width} bits overflow the address space"));
    let count = rows.checked_mul(k).ok_or_else(too_large)?;
    let bytes = octavo_core::packed_bytes(k, width)?.checked_mul(rows).ok_or_else(too_large)?;
    Ok((count, bytes))
}

/// One update of AdamW over `count` float32 weights, whose moments are codes at addresses: codes and scales of each. Without
/// a format, they are those of the dynamic map.
#[pyfunction]
#[pyo3(name = "_adamw")]
#[expect(clippy::too_many_arguments, reason = "one flat call is what the boundary is for")]
pub(crate) fn adamw(
    py: Python<'_>,
    format: Option<&Format>,
    count: usize,
    weights: usize,
    gradients: usize,
    first: (usize, usize),
    second: (usize, usize),
    step: (f32, f32, f32, f32, f32, f32),
) -> PyResult<()> {
    let form = format.map_or(codec::MomentForm::Dynamic, |format| codec::MomentForm::Blocks(format.0));
    enter(py, || {
        let (code_bytes, scale_bytes) = form.sizes(count)?;
        let [first_parts, second_parts] = [first, second].map(|(codes, scales)| {
            [Memory::new("codes", codes, code_bytes), Memory::new("scales", scales, scale_bytes)]
        });
        let written = [&[Memory::of::<f32>("weights", weights, count)][..], &first_parts, &second_parts].concat();
        apart(&written, &[Memory::of::<f32>("gradients", gradients, count)])?;
        let (keep, first_share, second_share, rate, root, epsilon) = step;
        let step = codec::Step { keep, first: first_share, second: second_share, rate, root, epsilon };
        // SAFETY: as in `encode`; all that is written is apart from the rest.
        unsafe {
            let moment = |(codes, scales)| -> Result<codec::Moment<'_>> {
                Ok(codec::Moment {
                    codes: slice_mut(codes, code_bytes, "codes")?,
                    scales: slice_mut(scales, scale_bytes, "scales")?,
                })
            };
            let (weights, gradients) = (slice_mut(weights, count, "weights")?, slice(gradients, count, "gradients")?);
            codec::adamw(weights, gradients, moment(first)?, moment(second)?, form, step)
        }
    })
}
