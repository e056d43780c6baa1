//! Drop-out, residual sum and norm as one operation on addresses. `octavo.ops.dropout_norm` is the only caller.

use octavo_core::dropout_norm::{Given, Gradients, Mask, Results, Settings, backward, forward};
use pyo3::prelude::*;

use crate::codec::dtype;
use crate::err::enter;
use crate::raw::{Memory, apart, slice, slice_mut, values, values_mut};

/// Address and dtype code.
type At = (usize, u8);
/// Factor of the branch, chance of a 0, seed of the mask, and what is added to mean squares.
type How = (f32, f64, u64, f32);

fn settings((weight, chance, seed, epsilon): How) -> Settings {
    Settings { weight, mask: Mask::new(seed, chance), epsilon }
}

/// Writes sums and normed rows of x and branch, and a float32 for each row, to addresses; gain is float32, 0 for none.
#[pyfunction]
#[pyo3(name = "_dropout_norm")]
#[expect(clippy::too_many_arguments, reason = "one flat call is what the boundary is for")]
pub(crate) fn dropout_norm(
    py: Python<'_>,
    sizes: (usize, usize),
    x: At,
    branch: At,
    gain: usize,
    how: How,
    stream: At,
    normed: usize,
    rates: usize,
) -> PyResult<()> {
    enter(py, || {
        let (rows, width) = sizes;
        let count = rows.saturating_mul(width);
        let [x_type, branch_type, stream_type] = [dtype(x.1)?, dtype(branch.1)?, dtype(stream.1)?];
        let gains = if gain == 0 { 0 } else { width };
        let written = [
            Memory::values("stream", stream.0, count, stream_type),
            Memory::values("normed", normed, count, stream_type),
            Memory::of::<f32>("rates", rates, rows),
        ];
        let read = [
            Memory::values("x", x.0, count, x_type),
            Memory::values("branch", branch.0, count, branch_type),
            Memory::of::<f32>("gain", gain, gains),
        ];
        apart(&written, &read)?;
        // SAFETY: `octavo.ops.dropout_norm` passes contiguous tensors of the CPU of these sizes and dtypes, which it keeps alive; what
        // is written is apart from the rest.
        unsafe {
            let results = Results {
                stream: values_mut(stream.0, count, stream_type, "stream")?,
                normed: values_mut(normed, count, stream_type, "normed")?,
                rates: slice_mut(rates, rows, "rates")?,
            };
            let gain = slice(gain, gains, "gain")?;
            let (x, branch) = (values(x.0, count, x_type, "x")?, values(branch.0, count, branch_type, "branch")?);
            forward(x, branch, (gains > 0).then_some(gain), width, settings(how), results)
        }
    })
}

/// Writes the gradients of `_dropout_norm`: of x, branch and gain, that of the gain in float32. `inputs`: addresses of the
/// gradients of sums and normed rows, and of the sums, all of one dtype; `rates` as that wrote them.
#[pyfunction]
#[pyo3(name = "_dropout_norm_backward")]
#[expect(clippy::too_many_arguments, reason = "one flat call is what the boundary is for")]
pub(crate) fn dropout_norm_backward(
    py: Python<'_>,
    sizes: (usize, usize),
    inputs: (usize, usize, usize, u8),
    rates: usize,
    gain: usize,
    how: How,
    of_x: At,
    of_branch: At,
    of_gain: usize,
) -> PyResult<()> {
    enter(py, || {
        let (rows, width) = sizes;
        let count = rows.saturating_mul(width);
        let (of_stream, of_normed, stream, code) = inputs;
        let [stream_type, x_type, branch_type] = [dtype(code)?, dtype(of_x.1)?, dtype(of_branch.1)?];
        let gains = if gain == 0 { 0 } else { width };
        let written = [
            Memory::values("gradient of x", of_x.0, count, x_type),
            Memory::values("gradient of branch", of_branch.0, count, branch_type),
            Memory::of::<f32>("gradient of gain", of_gain, gains),
        ];
        let read = [
            Memory::values("gradient of stream", of_stream, count, stream_type),
            Memory::values("gradient of normed", of_normed, count, stream_type),
            Memory::values("stream", stream, count, stream_type),
            Memory::of::<f32>("rates", rates, rows),
            Memory::of::<f32>("gain", gain, gains),
        ];
        apart(&written, &read)?;
        // SAFETY: as in `dropout_norm`.
        unsafe {
            let inputs = Given {
                of_stream: values(of_stream, count, stream_type, "gradient of stream")?,
                of_normed: values(of_normed, count, stream_type, "gradient of normed")?,
                stream: values(stream, count, stream_type, "stream")?,
                rates: slice(rates, rows, "rates")?,
            };
            let gradients = Gradients {
                x: values_mut(of_x.0, count, x_type, "gradient of x")?,
                branch: values_mut(of_branch.0, count, branch_type, "gradient of branch")?,
                gain: slice_mut(of_gain, gains, "gradient of gain")?,
            };
            let gain = slice(gain, gains, "gain")?;
            backward(inputs, (gains > 0).then_some(gain), width, settings(how), gradients)
        }
    })
}
