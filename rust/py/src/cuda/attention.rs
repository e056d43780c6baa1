//! Attention over pages on device addresses. `octavo/lab/language/gpt/paged_attention.py` is the only caller.

use octavo_cuda::attention::{Attention, Device, Given, Shape};
use octavo_cuda::{Error, launch, properties};
use pyo3::prelude::*;

use crate::codec::dtype;
use crate::err::enter_cuda;
use crate::format::Format;

/// Number of the device and handle of its stream.
type Where = (i32, u64);
/// Sequences, query heads, key heads, numbers of a key and of a value, whether values are part of keys, pages of a table,
/// window, dtype code.
type Sizes = (usize, usize, usize, usize, usize, bool, usize, usize, u8);

fn attention(number: i32, sizes: Sizes, format: Option<&Format>) -> Result<Option<Attention>, Error> {
    let (sequences, heads, key_heads, depth, values, latent, longest, window, code) = sizes;
    let (dtype, format) = (dtype(code)?, format.map(|format| format.0));
    let shape = Shape { sequences, heads, key_heads, depth, values, latent, longest, window, dtype, format };
    let properties = properties(number)?;
    let (multiprocessors, shared) = (properties.multiprocessors as usize, properties.shared_per_block as usize);
    Ok(Attention::new(shape, Device { multiprocessors, shared }))
}

/// Bytes of scratch memory; None where no kernel takes the sizes.
#[pyfunction]
#[pyo3(name = "_cuda_attention_scratch", signature = (number, sizes, format))]
pub(crate) fn cuda_attention_scratch(
    py: Python<'_>,
    number: i32,
    sizes: Sizes,
    format: Option<&Format>,
) -> PyResult<Option<usize>> {
    enter_cuda(py, || Ok(attention(number, sizes, format)?.map(|attention| attention.scratch())))
}

/// Writes the mixed values. `pages`: keys, their scales, values, their scales; `places`: tables and lengths.
#[pyfunction]
#[pyo3(name = "_cuda_attention", signature = (on, sizes, format, query, pages, places, out, scale, scratch))]
#[expect(clippy::too_many_arguments, reason = "one flat call is what the boundary is for")]
pub(crate) fn cuda_attention(
    py: Python<'_>,
    on: Where,
    sizes: Sizes,
    format: Option<&Format>,
    query: u64,
    pages: (u64, u64, u64, u64),
    places: (u64, u64),
    out: u64,
    scale: f32,
    scratch: u64,
) -> PyResult<()> {
    enter_cuda(py, || {
        let Some(attention) = attention(on.0, sizes, format)? else {
            let text = format!("no kernel attends to pages of these sizes: {sizes:?}");
            return Err(Error::Core(octavo_core::Error::shape(text)));
        };
        let ((keys, key_scales, values, value_scales), (tables, lengths)) = (pages, places);
        let operands = Given { query, keys, key_scales, values, value_scales, tables, lengths, out };
        let calls = attention.calls(&operands, scale, scratch)?;
        // SAFETY: `paged_attention.py` passes the current stream of the device, and contiguous tensors there that it has checked
        // to be of these sizes; PyTorch keeps their memory in the order of streams, as for operations of its own.
        unsafe { launch(on.0, on.1, &calls) }
    })
}
