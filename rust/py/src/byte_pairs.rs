//! The byte pair tokenizer. `octavo/data/byte_pairs.py` is the only caller; the names are private to the package.

use octavo_core::text::bpe::{BytePairs as Tokenizer, Encoded, Learner, Pattern, PieceCounts as Counts, Special};
use octavo_core::{Error, Result};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

use crate::characters::Span;
use crate::err::enter;
use crate::raw::{slice, slice_mut};

/// The name of a pattern.
fn pattern(name: &str) -> Result<Pattern> {
    Pattern::named(name)
}

fn special(number: u8) -> Result<Special> {
    match number {
        0 => Ok(Special::Allow),
        1 => Ok(Special::Refuse),
        2 => Ok(Special::Split),
        other => Err(Error::data(format!("special {other}; accepted are 0 to 2"))),
    }
}

/// A vocabulary of byte pairs.
#[pyclass(module = "octavo._core", name = "_BytePairs", frozen)]
pub(crate) struct BytePairs(Tokenizer);

#[pymethods]
impl BytePairs {
    /// Reads the bytes of a `tokenizer.json`.
    #[staticmethod]
    fn from_json(py: Python<'_>, text: PyBackedBytes) -> PyResult<Self> {
        enter(py, || Tokenizer::from_json(&text).map(Self))
    }
    /// Reads the bytes of `vocab.bpe` and of `encoder.json`.
    #[staticmethod]
    fn from_merges(py: Python<'_>, merges: PyBackedBytes, vocabulary: PyBackedBytes, name: &str) -> PyResult<Self> {
        enter(py, || Tokenizer::from_merges(&merges, &vocabulary, pattern(name)?).map(Self))
    }
    /// Reads the bytes of a `.tiktoken` file; special tokens and their ids come besides.
    #[staticmethod]
    fn from_ranks(py: Python<'_>, text: PyBackedBytes, name: &str, special: Vec<(String, u32)>) -> PyResult<Self> {
        enter(py, || Tokenizer::from_ranks(&text, pattern(name)?, special).map(Self))
    }
    /// The text of a `tokenizer.json`.
    fn to_json(&self, py: Python<'_>) -> PyResult<String> {
        enter(py, || self.0.to_json())
    }
    #[getter]
    fn size(&self) -> usize {
        self.0.size()
    }
    #[getter]
    fn pattern(&self) -> &'static str {
        self.0.parts().pattern.name()
    }
    /// Whether texts are brought to the normal form C first.
    #[getter]
    fn composed(&self) -> bool {
        self.0.parts().composed
    }
    /// Contents, ids, and whether they are special, of added tokens.
    #[getter]
    fn added(&self) -> Vec<(String, u32, bool)> {
        self.0.parts().added.iter().map(|token| (token.content.clone(), token.id, token.special)).collect()
    }
    /// Ids before and behind those of a text.
    #[getter]
    fn around(&self) -> (Vec<u32>, Vec<u32>) {
        self.0.parts().around.clone()
    }
    fn token<'py>(&self, py: Python<'py>, id: u32) -> Option<Bound<'py, PyBytes>> {
        self.0.token(id).map(|token| PyBytes::new(py, token))
    }
    fn id(&self, token: PyBackedBytes) -> Option<u32> {
        self.0.id(&token)
    }
    /// Encodes texts; special tokens become their ids (0), are refused (1) or are text (2).
    fn encode(&self, py: Python<'_>, texts: Vec<PyBackedBytes>, how: u8, around: bool) -> PyResult<EncodedIds> {
        enter(py, || {
            let texts: Vec<&[u8]> = texts.iter().map(|text| &**text).collect();
            self.0.encode_batch(&texts, special(how)?, around).map(EncodedIds)
        })
    }
    /// The largest place at which a text that goes on can be cut.
    fn settled(&self, py: Python<'_>, text: PyBackedBytes, how: u8) -> PyResult<usize> {
        enter(py, || Ok(self.0.settled(&text, special(how)?)))
    }
    /// The bytes of ids of 2 or 4 bytes each, or of 8 with a sign.
    fn decode<'py>(&self, py: Python<'py>, ids: Span, width: usize) -> PyResult<Bound<'py, PyBytes>> {
        // SAFETY: `byte_pairs.py` passes a contiguous array of this size and dtype and keeps it alive during the call.
        unsafe {
            match width {
                2 => self.bytes::<u16>(py, slice(ids.0, ids.1, "ids")),
                4 => self.bytes::<u32>(py, slice(ids.0, ids.1, "ids")),
                8 => self.bytes::<i64>(py, slice(ids.0, ids.1, "ids")),
                _ => self.bytes::<i64>(py, Err(Error::data(format!("ids of {width} bytes; accepted are 2, 4 and 8")))),
            }
        }
    }
}

impl BytePairs {
    fn bytes<'py, T: Copy + Sync + Into<i64>>(
        &self,
        py: Python<'py>,
        ids: Result<&[T]>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let (ids, lengths) = enter(py, || {
            let ids = ids?;
            Ok((ids, self.0.measure(ids)?))
        })?;
        PyBytes::new_with(py, lengths.iter().sum(), |out| enter(py, || self.0.decode_to(ids, &lengths, out)))
    }
}

/// Ids of texts, until Python has memory for them.
#[pyclass(module = "octavo._core", name = "_EncodedIds", frozen)]
pub(crate) struct EncodedIds(Encoded);

#[pymethods]
impl EncodedIds {
    fn __len__(&self) -> usize {
        self.0.len()
    }
    /// Where the ids of each text begin, and at last the number of all.
    #[getter]
    fn offsets(&self) -> Vec<u64> {
        self.0.offsets.clone()
    }
    /// Writes all ids, of 2 or 4 bytes each.
    fn put(&self, py: Python<'_>, ids: Span, width: usize) -> PyResult<()> {
        enter(py, || {
            // SAFETY: `byte_pairs.py` passes an array of its own of this size and dtype and keeps it alive during the call.
            unsafe {
                match width {
                    2 => self.0.copy_to::<u16>(slice_mut(ids.0, ids.1, "ids")?),
                    4 => self.0.copy_to::<u32>(slice_mut(ids.0, ids.1, "ids")?),
                    _ => Err(Error::data(format!("ids of {width} bytes; accepted are 2 and 4"))),
                }
            }
        })
    }
}

/// Counts of the pieces of texts.
#[pyclass(module = "octavo._core", name = "_PieceCounts")]
pub(crate) struct PieceCounts(Counts);

#[pymethods]
impl PieceCounts {
    #[new]
    fn new(py: Python<'_>, name: &str, special: Vec<String>) -> PyResult<Self> {
        enter(py, || Counts::new(pattern(name)?, &special).map(Self))
    }
    /// Counts the pieces of a text.
    fn add(&mut self, py: Python<'_>, text: PyBackedBytes) -> PyResult<()> {
        enter(py, || self.0.add(&text))
    }
    /// The largest place at which a text that goes on can be cut.
    fn settled(&self, py: Python<'_>, text: PyBackedBytes) -> PyResult<usize> {
        enter(py, || Ok(self.0.settled(&text)))
    }
    /// Bytes counted, and distinct pieces.
    #[getter]
    fn totals(&self) -> (u64, usize) {
        (self.0.total(), self.0.distinct())
    }
    fn save<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        enter(py, || Ok(self.0.save())).map(|bytes| PyBytes::new(py, &bytes))
    }
    fn restore(&mut self, py: Python<'_>, saved: PyBackedBytes) -> PyResult<()> {
        enter(py, || self.0.restore(&saved))
    }
}

/// Learns merges from counts.
#[pyclass(module = "octavo._core", name = "_MergeLearner")]
pub(crate) struct MergeLearner(Learner);

#[pymethods]
impl MergeLearner {
    #[new]
    fn new(py: Python<'_>, counts: &PieceCounts, size: usize, special: Vec<String>, least: u64) -> PyResult<Self> {
        enter(py, || Learner::new(&counts.0, size, &special, least).map(Self))
    }
    /// Merges made, and wanted.
    #[getter]
    fn merges(&self) -> (usize, usize) {
        (self.0.merged(), self.0.wanted())
    }
    /// Makes up to `most` merges; False at the end.
    fn advance(&mut self, py: Python<'_>, most: usize) -> PyResult<bool> {
        enter(py, || Ok(self.0.advance(most)))
    }
    fn finish(&self, py: Python<'_>) -> PyResult<BytePairs> {
        enter(py, || self.0.finish().map(BytePairs))
    }
}
