//! Generation with the shipped architecture on addresses of a device. `models/seq2seq/fused.py` is the only caller.

use octavo_cuda::arch::OLDEST;
use octavo_cuda::seq2seq::{Device, Encoded, Generation, Sizes, Weights};
use octavo_cuda::{Error, launch, properties};
use pyo3::prelude::*;

use crate::err::enter_cuda;

/// Number of the device and handle of its stream.
type Where = (i32, u64);
/// Vocabulary, encoder, hidden, heads, layers, feedforward, max_source, max_target.
type Model = (usize, usize, usize, usize, usize, usize, usize, usize);

fn generation(number: i32, model: Model, rows: usize) -> Result<Option<Generation>, Error> {
    let (vocabulary, encoder, hidden, heads, layers, feedforward, max_source, max_target) = model;
    let sizes = Sizes { vocabulary, encoder, hidden, heads, layers, feedforward, max_source, max_target };
    let found = properties(number)?;
    if found.capability < OLDEST {
        return Ok(None);
    }
    let (multiprocessors, shared) = (found.multiprocessors as usize, found.shared_per_block as usize);
    Ok(Generation::new(sizes, rows, Device { multiprocessors, shared }))
}

fn taken(number: i32, model: Model, rows: usize) -> Result<Generation, Error> {
    let refused = || octavo_core::Error::shape(format!("no kernel generates {rows} rows with a model of {model:?}"));
    Ok(generation(number, model, rows)?.ok_or_else(refused)?)
}

/// Bytes of scratch memory of rows that are generated together; None where no kernel takes the model.
#[pyfunction]
#[pyo3(name = "_cuda_seq2seq_scratch")]
pub(crate) fn cuda_seq2seq_scratch(py: Python<'_>, number: i32, model: Model, rows: usize) -> PyResult<Option<usize>> {
    enter_cuda(py, || Ok(generation(number, model, rows)?.map(|made| made.scratch())))
}

/// Writes the states of the encoder and the last of each row.
#[pyfunction]
#[pyo3(name = "_cuda_seq2seq_encode")]
#[expect(clippy::too_many_arguments, reason = "one flat call is what the boundary is for")]
pub(crate) fn cuda_seq2seq_encode(
    py: Python<'_>,
    on: Where,
    model: Model,
    rows: usize,
    weights: (u64, u64),
    source: u64,
    states: u64,
    ends: u64,
) -> PyResult<()> {
    let (matrices, vectors) = weights;
    enter_cuda(py, || {
        let call = taken(on.0, model, rows)?.encode(Weights { matrices, vectors }, source, states, ends)?;
        // SAFETY: `models/seq2seq/fused.py` passes the current stream of the device, and tensors there of the sizes that the
        // model and the number of rows give; PyTorch keeps their memory in the order of streams, as for operations of its
        // own.
        unsafe { launch(on.0, on.1, &[call]) }
    })
}

/// Writes the tokens of encoded rows; `encoded`: source, memory, and what the first state is made of.
#[pyfunction]
#[pyo3(name = "_cuda_seq2seq_decode")]
#[expect(clippy::too_many_arguments, reason = "one flat call is what the boundary is for")]
pub(crate) fn cuda_seq2seq_decode(
    py: Python<'_>,
    on: Where,
    model: Model,
    rows: usize,
    weights: (u64, u64),
    encoded: (u64, u64, u64),
    scratch: u64,
    tokens: u64,
    epsilon: f32,
) -> PyResult<()> {
    let ((matrices, vectors), (source, memory, bridged)) = (weights, encoded);
    enter_cuda(py, || {
        let (weights, encoded) = (Weights { matrices, vectors }, Encoded { source, memory, bridged });
        let call = taken(on.0, model, rows)?.decode(weights, encoded, scratch, tokens, epsilon)?;
        // SAFETY: as in `cuda_seq2seq_encode`.
        unsafe { launch(on.0, on.1, &[call]) }
    })
}
