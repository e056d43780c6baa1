//! Drop-out, residual sum and norm on device addresses. `octavo/lab/language/gpt/residual_norm.py` is the only caller.

use octavo_cuda::dropout_norm::{DropoutNorm, How, Rows};
use octavo_cuda::{Error, launch, properties};
use pyo3::prelude::*;

use crate::codec::dtype;
use crate::err::enter_cuda;

/// Number of the device and handle of its stream.
type Where = (i32, u64);
/// Rows, their length, and dtype codes of x, branch and stream.
type Shape = (usize, usize, u8, u8, u8);
/// Addresses of gain, scale and seed; factor of the branch, chance of a 0, what is added to mean squares.
type Given = (u64, u64, u64, f32, f64, f32);

fn launches(number: i32, (rows, width, x, branch, stream): Shape) -> Result<DropoutNorm, Error> {
    let rows = Rows { rows, width, x: dtype(x)?, branch: dtype(branch)?, stream: dtype(stream)? };
    DropoutNorm::new(rows, properties(number)?.multiprocessors)
}

const fn how((gain, scale, seed, weight, chance, epsilon): Given) -> How {
    How { gain, scale, seed, weight, chance, epsilon }
}

/// Rows of float32 that the gradients of gains are the sum of.
#[pyfunction]
#[pyo3(name = "_cuda_dropout_norm_parts")]
pub(crate) fn cuda_dropout_norm_parts(py: Python<'_>, number: i32, shape: Shape) -> PyResult<usize> {
    enter_cuda(py, || Ok(launches(number, shape)?.parts()))
}

/// Writes sums, normed rows, and a float32 for each row.
#[pyfunction]
#[pyo3(name = "_cuda_dropout_norm")]
pub(crate) fn cuda_dropout_norm(
    py: Python<'_>,
    on: Where,
    shape: Shape,
    x: u64,
    branch: u64,
    operands: Given,
    out: (u64, u64, u64),
) -> PyResult<()> {
    enter_cuda(py, || {
        let call = launches(on.0, shape)?.forward(x, branch, &how(operands), out.into())?;
        // SAFETY: `residual_norm.py` passes the current stream of the device, and contiguous tensors there of these sizes and
        // dtypes; PyTorch keeps their memory in the order of streams, as for operations of its own.
        unsafe { launch(on.0, on.1, &[call]) }
    })
}

/// Writes the gradients of x and branch, and what those of the gains are the sum of. `results`: gradients of sums and normed
/// rows, the sums, and what was written for each row.
#[pyfunction]
#[pyo3(name = "_cuda_dropout_norm_backward")]
pub(crate) fn cuda_dropout_norm_backward(
    py: Python<'_>,
    on: Where,
    shape: Shape,
    results: (u64, u64, u64, u64),
    operands: Given,
    out: (u64, u64, u64),
) -> PyResult<()> {
    enter_cuda(py, || {
        let call = launches(on.0, shape)?.backward(results.into(), &how(operands), out.0, out.1, out.2)?;
        // SAFETY: as in `cuda_dropout_norm`.
        unsafe { launch(on.0, on.1, &[call]) }
    })
}
