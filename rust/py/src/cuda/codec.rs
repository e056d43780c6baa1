//! The codecs on device addresses. `octavo/ops/codec_cuda.py` is the only caller.

use octavo_core::{DType, Layout};
use octavo_cuda::codec::{self, Buffer, Encoding, Parts};
use octavo_cuda::{Error, launch};
use pyo3::prelude::*;

use crate::codec::dtype;
use crate::err::enter_cuda;
use crate::format::Format;

/// Address and bytes of a tensor.
type Memory = (u64, usize);
/// Codes, scales, zeros and levels.
type FourParts = (Memory, Memory, Memory, Memory);
/// Ordinal of the device and handle of the stream.
type Where = (i32, u64);
/// Dtype code, rows and their length.
type Shape = (u8, usize, usize);

const fn buffer((address, bytes): Memory) -> Buffer {
    Buffer { address, bytes }
}

const fn parts((codes, scales, zeros, levels): FourParts) -> Parts {
    Parts { codes: buffer(codes), scales: buffer(scales), zeros: buffer(zeros), levels: buffer(levels) }
}

fn layout(format: &Format, (dtype_code, rows, k): Shape) -> Result<(DType, Layout), Error> {
    Ok((dtype(dtype_code)?, Layout::new(&[rows, k], -1, format.0)?))
}

/// Bytes of scratch memory, at a multiple of 16, that choosing scales of rows takes; and whether they must be zero.
#[pyfunction]
#[pyo3(name = "_cuda_scratch")]
pub(crate) fn cuda_scratch(py: Python<'_>, format: &Format, rows: usize, k: usize) -> PyResult<(usize, bool)> {
    enter_cuda(py, || codec::scratch_bytes(format.0, &Layout::new(&[rows, k], -1, format.0)?))
}

/// Encodes the rows at x into the four parts, which hold the scales already where those are given.
#[pyfunction]
#[pyo3(name = "_cuda_encode")]
#[expect(clippy::too_many_arguments, reason = "one flat call is what the boundary is for")]
pub(crate) fn cuda_encode(
    py: Python<'_>,
    format: &Format,
    on: Where,
    shape: Shape,
    x: Memory,
    out: FourParts,
    scratch: Memory,
    rule: &str,
    nonfinite: &str,
    given: bool,
    first: u64,
) -> PyResult<()> {
    enter_cuda(py, || {
        let (dtype, layout) = layout(format, shape)?;
        let how = Encoding { rule: rule.parse()?, nonfinite: nonfinite.parse()?, given, first };
        let calls = codec::encode(format.0, dtype, &layout, buffer(x), &parts(out), buffer(scratch), &how)?;
        // SAFETY: `octavo.ops.codec_cuda` passes the current stream of the device, and contiguous tensors there with their bytes, which
        // the makers of calls check; PyTorch keeps their memory in the order of streams, as for operations of its own.
        unsafe { launch(on.0, on.1, &calls) }
    })
}

/// Decodes the four parts into the rows at out.
#[pyfunction]
#[pyo3(name = "_cuda_decode")]
pub(crate) fn cuda_decode(
    py: Python<'_>,
    format: &Format,
    on: Where,
    shape: Shape,
    encoded: FourParts,
    out: Memory,
) -> PyResult<()> {
    enter_cuda(py, || {
        let (dtype, layout) = layout(format, shape)?;
        let calls = codec::decode(format.0, dtype, &layout, &parts(encoded), buffer(out))?;
        // SAFETY: as in `cuda_encode`.
        unsafe { launch(on.0, on.1, &calls) }
    })
}

/// Quantizes the rows at x into those at out, which may be the same.
#[pyfunction]
#[pyo3(name = "_cuda_quantize")]
#[expect(clippy::too_many_arguments, reason = "one flat call is what the boundary is for")]
pub(crate) fn cuda_quantize(
    py: Python<'_>,
    format: &Format,
    on: Where,
    shape: Shape,
    x: Memory,
    out: Memory,
    given: Option<FourParts>,
    scratch: Memory,
    rule: &str,
) -> PyResult<()> {
    enter_cuda(py, || {
        let (dtype, layout) = layout(format, shape)?;
        let how = Encoding { rule: rule.parse()?, given: given.is_some(), ..Encoding::default() };
        let given = given.map(parts).unwrap_or_default();
        let calls = codec::quantize(format.0, dtype, &layout, buffer(x), buffer(out), &given, buffer(scratch), &how)?;
        // SAFETY: as in `cuda_encode`.
        unsafe { launch(on.0, on.1, &calls) }
    })
}

/// Gradient of quantize: of x into out, and of given scales into scale_grad (float32) unless its address is 0.
#[pyfunction]
#[pyo3(name = "_cuda_quantize_backward")]
#[expect(clippy::too_many_arguments, reason = "one flat call is what the boundary is for")]
pub(crate) fn cuda_quantize_backward(
    py: Python<'_>,
    format: &Format,
    on: Where,
    shape: Shape,
    grad: Memory,
    x: Memory,
    out: Memory,
    given: Option<FourParts>,
    scratch: Memory,
    rule: &str,
    scale_grad: Memory,
) -> PyResult<()> {
    enter_cuda(py, || {
        let (dtype, layout) = layout(format, shape)?;
        let how = Encoding { rule: rule.parse()?, given: given.is_some(), ..Encoding::default() };
        let given = given.map(parts).unwrap_or_default();
        let (grad, x, out, scratch) = (buffer(grad), buffer(x), buffer(out), buffer(scratch));
        let mut calls = codec::gradient(format.0, dtype, &layout, grad, x, out, &given, scratch, &how)?;
        if scale_grad.0 != 0 {
            let to = buffer(scale_grad);
            calls.extend(codec::scale_gradient(format.0, dtype, &layout, grad, x, to, &given, scratch, &how)?);
        }
        // SAFETY: as in `cuda_encode`.
        unsafe { launch(on.0, on.1, &calls) }
    })
}
