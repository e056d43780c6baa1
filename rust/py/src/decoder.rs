//! The decoder. `octavo/engine/text_generator.py` is the only caller; the names are private to the package.

use std::path::PathBuf;
use std::sync::Arc;

use octavo_engine::{Decoder as Loaded, Generation as Texts, Sampling};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::engine::run;
use crate::format::Format;

/// A loaded language model.
#[pyclass(frozen, module = "octavo._core", name = "_Decoder")]
pub(crate) struct Decoder(Arc<Loaded>);

#[pymethods]
impl Decoder {
    /// Loads a model folder.
    #[staticmethod]
    fn load(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        run(py, || Ok(Self(Arc::new(Loaded::load(&path)?))))
    }
    /// Ids.
    #[getter]
    fn vocabulary(&self) -> usize {
        self.0.vocabulary()
    }
    /// Most tokens of a text, or None.
    #[getter]
    fn positions(&self) -> Option<usize> {
        self.0.positions()
    }
    /// Bytes of weights that a step reads.
    #[getter]
    fn nbytes(&self) -> usize {
        self.0.nbytes()
    }
    /// Bytes of the cache a position, in a format or in float32.
    fn position_nbytes(&self, py: Python<'_>, format: Option<Format>) -> PyResult<usize> {
        run(py, || self.0.position_nbytes(format.map(|format| format.0)))
    }
    /// Scores of the token after each of ids, little-endian float32 as bytes; keys and values in a format or in float32.
    #[pyo3(signature = (ids, format=None))]
    fn scores<'py>(&self, py: Python<'py>, ids: Vec<u32>, format: Option<Format>) -> PyResult<Bound<'py, PyBytes>> {
        let scores = run(py, || self.0.all_scores(&ids, format.map(|format| format.0)))?;
        PyBytes::new_with(py, scores.len() * size_of::<f32>(), |bytes| {
            for (to, value) in bytes.as_chunks_mut().0.iter_mut().zip(&scores) {
                *to = value.to_le_bytes();
            }
            Ok(())
        })
    }
}

/// Texts that grow.
#[pyclass(module = "octavo._core", name = "_Generation")]
pub(crate) struct Generation(Texts);

#[pymethods]
impl Generation {
    /// Begins with prompts; temperature, top_k, top_p and seed say how tokens are chosen, a format how keys and values are
    /// kept.
    #[new]
    #[pyo3(signature = (decoder, prompts, sampling, keeps, pages, format=None))]
    fn new(
        py: Python<'_>,
        decoder: &Decoder,
        prompts: Vec<Vec<u32>>,
        sampling: (f32, usize, f32, u64),
        keeps: bool,
        pages: usize,
        format: Option<Format>,
    ) -> PyResult<Self> {
        let decoder = Arc::clone(&decoder.0);
        let (temperature, top_k, top_p, seed) = sampling;
        let sampling = Sampling { temperature, top_k, top_p, seed };
        run(py, || Texts::new(decoder, prompts, sampling, keeps, pages, format.map(|format| format.0)).map(Self))
    }
    /// Computes some positions of the prompts; how many are left.
    fn feed(&mut self, py: Python<'_>) -> PyResult<usize> {
        run(py, || self.0.feed())
    }
    /// The next token of every text; None for those that have ended.
    fn advance(&mut self, py: Python<'_>) -> PyResult<Vec<Option<u32>>> {
        run(py, || self.0.advance())
    }
    /// Gives a text other ids; what is the same so far stays in the cache.
    fn replace(&mut self, py: Python<'_>, text: usize, ids: Vec<u32>) -> PyResult<()> {
        run(py, || self.0.replace(text, ids))
    }
    /// Ends a text.
    fn end(&mut self, py: Python<'_>, text: usize) -> PyResult<()> {
        run(py, || self.0.end(text))
    }
    /// Pages of the cache that no text holds.
    #[getter]
    fn pages_left(&self) -> usize {
        self.0.pages_left()
    }
}
