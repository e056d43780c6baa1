//! Sparse codes on addresses. `octavo/tensors/sparse_codes.py` and `octavo/ops/sparse.py` are the only callers; the names are
//! private to the package.

use octavo_core::linear::{Input, Problem, SparseMatrix, Storage, kernel, multiply_sparse};
use octavo_core::sparse::{Shape, Sparse, code_bytes, compress, count as count_codes, expand, starts, takes};
use octavo_core::{DType, Layout, Packed, Result, Sizes, packed_bytes};
use pyo3::prelude::*;

use crate::codec::{Parts, dtype};
use crate::err::enter;
use crate::format::Format;
use crate::linear::{BiasAt, bias_memory, count};
use crate::raw::{Memory, apart, slice, slice_mut, values, values_mut};

/// Address and bytes of the codes, and the addresses of the bitmap and of the starts of panels.
type Codes = (usize, usize, usize, usize);

/// The memory of sparse codes.
fn memory(codes: Codes, shape: Shape) -> Result<[Memory; 3]> {
    Ok([
        Memory::new("codes", codes.0, codes.1),
        Memory::of::<u64>("bitmap", codes.2, shape.words()?),
        Memory::of::<u64>("starts", codes.3, shape.panels()),
    ])
}

/// Sparse codes to read.
///
/// # Safety
/// As for [`slice`].
unsafe fn sparse<'a>(codes: Codes, shape: Shape) -> Result<Sparse<'a>> {
    // SAFETY: as the caller promises.
    unsafe {
        Ok(Sparse {
            codes: slice(codes.0, codes.1, "codes")?,
            bitmap: slice(codes.2, shape.words()?, "bitmap")?,
            starts: slice(codes.3, shape.panels(), "starts")?,
        })
    }
}

/// Whether codes of a format that are 0 may be left out.
#[pyfunction]
#[pyo3(name = "_sparse_takes")]
pub(crate) fn sparse_takes(format: &Format) -> bool {
    takes(format.0)
}

/// Counts the codes that are not 0, of rows of k codes at an address.
#[pyfunction]
#[pyo3(name = "_sparse_count")]
pub(crate) fn sparse_count(py: Python<'_>, width: u32, rows: usize, k: usize, codes: usize) -> PyResult<u64> {
    enter(py, || {
        let bytes = count(rows, packed_bytes(k, width)?)?;
        // SAFETY: `sparse_codes.py` passes a contiguous tensor on the CPU of these sizes and keeps it alive.
        count_codes(unsafe { slice(codes, bytes, "codes")? }, width, Shape { rows, columns: k })
    })
}

/// Writes the codes that are not 0, so many of them, and the bitmap.
#[pyfunction]
#[pyo3(name = "_sparse_compress")]
pub(crate) fn sparse_compress(
    py: Python<'_>,
    width: u32,
    rows: usize,
    k: usize,
    nonzero: u64,
    codes: usize,
    out: (usize, usize),
) -> PyResult<()> {
    enter(py, || {
        let shape = Shape { rows, columns: k };
        let (bytes, kept, words) = (count(rows, packed_bytes(k, width)?)?, code_bytes(nonzero, width)?, shape.words()?);
        let written = [Memory::new("out", out.0, kept), Memory::of::<u64>("bitmap", out.1, words)];
        apart(&written, &[Memory::new("codes", codes, bytes)])?;
        // SAFETY: as above; what is written is apart from the rest.
        unsafe {
            let (out, bitmap) = (slice_mut(out.0, kept, "out")?, slice_mut(out.1, words, "bitmap")?);
            compress(slice(codes, bytes, "codes")?, width, shape, nonzero, out, bitmap)
        }
    })
}

/// Writes the number of codes before each panel, from a bitmap that must tell of so many.
#[pyfunction]
#[pyo3(name = "_sparse_starts")]
pub(crate) fn sparse_starts(
    py: Python<'_>,
    rows: usize,
    k: usize,
    nonzero: u64,
    bitmap: usize,
    out: usize,
) -> PyResult<()> {
    enter(py, || {
        let shape = Shape { rows, columns: k };
        let to = Memory::of::<u64>("starts", out, shape.panels());
        apart(&[to], &[Memory::of::<u64>("bitmap", bitmap, shape.words()?)])?;
        // SAFETY: as above.
        unsafe {
            let found = starts(slice(bitmap, shape.words()?, "bitmap")?, shape, nonzero)?;
            slice_mut(out, shape.panels(), "starts")?.copy_from_slice(&found);
        }
        Ok(())
    })
}

/// Writes the dense codes of some rows.
#[pyfunction]
#[pyo3(name = "_sparse_expand")]
#[expect(clippy::too_many_arguments, reason = "one flat call is what the boundary is for")]
pub(crate) fn sparse_expand(
    py: Python<'_>,
    width: u32,
    rows: usize,
    k: usize,
    first: usize,
    some: usize,
    codes: Codes,
    out: usize,
) -> PyResult<()> {
    enter(py, || {
        let shape = Shape { rows, columns: k };
        let bytes = count(some, packed_bytes(k, width)?)?;
        apart(&[Memory::new("out", out, bytes)], &memory(codes, shape)?)?;
        // SAFETY: as above; `out` is apart from the rest.
        unsafe { expand(&sparse(codes, shape)?, width, shape, first, some, slice_mut(out, bytes, "out")?) }
    })
}

/// Writes `x W^T + bias` for m rows at address x to address out; both are of the same dtype. Codes of W are sparse.
#[pyfunction]
#[pyo3(name = "_sparse_linear")]
#[expect(clippy::too_many_arguments, reason = "one flat call is what the boundary is for")]
pub(crate) fn sparse_linear(
    py: Python<'_>,
    format: &Format,
    dtype_code: u8,
    m: usize,
    n: usize,
    k: usize,
    x: usize,
    codes: Codes,
    parts: Parts,
    bias: Option<BiasAt>,
    out: usize,
) -> PyResult<()> {
    enter(py, || {
        let (kind, shape) = (dtype(dtype_code)?, Shape { rows: n, columns: k });
        let (inputs, outputs) = (count(m, k)?, count(m, n)?);
        let sizes = Sizes::new(format.0, &Layout::new(&[n, k], -1, format.0)?)?;
        let to = Memory::values("out", out, outputs, kind);
        let [a, b, c] = memory(codes, shape)?;
        let (scales, levels) =
            (Memory::new("scales", parts.1, sizes.scales), Memory::new("levels", parts.3, sizes.levels));
        apart(&[to], &[a, b, c, scales, levels, Memory::values("x", x, inputs, kind), bias_memory(bias, n)?])?;
        // SAFETY: `ops/sparse.py` passes tensors that it has checked to be contiguous, on the CPU and of these sizes, and
        // keeps them alive; `out` is apart from the rest.
        unsafe {
            let packed = Packed {
                scales: slice(parts.1, sizes.scales, "scales")?,
                levels: slice(parts.3, sizes.levels, "levels")?,
                ..Packed::default()
            };
            let w = SparseMatrix { format: format.0, sparse: sparse(codes, shape)?, packed, shape };
            let bias = bias.map(|(at, code)| values(at, n, dtype(code)?, "bias")).transpose()?;
            let (x, out) = (values(x, inputs, kind, "x")?, values_mut(out, outputs, kind, "out")?);
            multiply_sparse(x, m, &w, bias, out)
        }
    })
}

/// Names the kernel that multiplies m rows with sparse codes; None where they are expanded first.
#[pyfunction]
#[pyo3(name = "_sparse_kernel")]
pub(crate) fn sparse_kernel(format: &Format, m: usize, n: usize, k: usize) -> Option<&'static str> {
    let problem = Problem::new(format.0, Input::Plain(DType::F32), m, n, k);
    kernel(&Problem { storage: Storage::Sparse, ..problem }).ok()
}
