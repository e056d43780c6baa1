//! The tokenizer of single characters on addresses. `octavo/data` is the only caller; the names are private to the package.

use std::path::PathBuf;

use octavo_core::text::characters::{Around, CharTokenizer as Tokenizer};
use octavo_core::{Error, Result};
use pyo3::prelude::*;

use crate::err::enter;
use crate::raw::{Memory, apart, slice, slice_mut};

/// The address of a part and its number of elements.
pub(crate) type Span = (usize, usize);

/// A vocabulary of single characters.
#[pyclass(module = "octavo._core", name = "_CharTokenizer", frozen)]
pub(crate) struct CharTokenizer(pub(crate) Tokenizer);

#[pymethods]
impl CharTokenizer {
    #[staticmethod]
    fn from_characters(py: Python<'_>, characters: &str) -> PyResult<Self> {
        enter(py, || Tokenizer::from_characters(characters).map(Self))
    }
    /// The vocabulary of a UTF-8 text, lines separated by line feeds.
    #[staticmethod]
    fn from_lines(py: Python<'_>, text: Span) -> PyResult<Self> {
        // SAFETY: `tokenizer.py` passes an array of bytes with its size and keeps it alive during the call.
        enter(py, || Tokenizer::from_lines(unsafe { slice(text.0, text.1, "text") }?).map(Self))
    }
    #[staticmethod]
    fn polynomials(py: Python<'_>) -> PyResult<Self> {
        enter(py, || octavo_polynomials::tokenizer().map(Self))
    }
    #[staticmethod]
    fn load(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        enter(py, || Tokenizer::load(&path).map(Self))
    }
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        enter(py, || self.0.save(&path))
    }
    /// The characters in order of their ids.
    #[getter]
    fn characters(&self) -> String {
        self.0.characters().iter().collect()
    }
    /// The numbers of lines and of characters in the longest line.
    #[staticmethod]
    fn measure(py: Python<'_>, text: Span) -> PyResult<(usize, usize)> {
        // SAFETY: as in `from_lines`.
        enter(py, || Tokenizer::measure(unsafe { slice(text.0, text.1, "text") }?))
    }
    /// Encodes a UTF-8 text of rows lines; the ids are uint8, or int64 if wide.
    #[expect(clippy::too_many_arguments, reason = "one flat call is what the boundary is for")]
    fn encode(
        &self,
        py: Python<'_>,
        text: Span,
        rows: usize,
        width: usize,
        around: (bool, bool),
        wide: bool,
        ids: usize,
        lengths: usize,
    ) -> PyResult<()> {
        enter(py, || {
            let around = Around { start: around.0, end: around.1 };
            let count = elements(rows, width)?;
            let text_memory = Memory::new("text", text.0, text.1);
            let to_lengths = Memory::of::<i64>("lengths", lengths, rows);
            let to_ids = Memory::new("ids", ids, count.saturating_mul(if wide { size_of::<i64>() } else { 1 }));
            apart(&[to_ids, to_lengths], &[text_memory])?;
            // SAFETY: `tokenizer.py` passes arrays of these sizes of its own, and the bytes of the text with their number, and
            // keeps all alive; what is written is apart from the rest.
            unsafe {
                let text = slice(text.0, text.1, "text")?;
                let lengths = slice_mut(lengths, rows, "lengths")?;
                if wide {
                    self.0.encode_batch(text, width, around, slice_mut::<i64>(ids, count, "ids")?, lengths)
                } else {
                    self.0.encode_batch(text, width, around, slice_mut::<u8>(ids, count, "ids")?, lengths)
                }
            }
        })
    }
    /// Decodes rows of width ids, uint8 or int64 if wide, into lines with line feeds.
    fn decode(&self, py: Python<'_>, ids: usize, rows: usize, width: usize, wide: bool) -> PyResult<String> {
        enter(py, || {
            let count = elements(rows, width)?;
            // SAFETY: `tokenizer.py` passes a contiguous array of this shape and dtype and keeps it alive during the call.
            unsafe {
                if wide {
                    self.0.decode_batch(slice::<i64>(ids, count, "ids")?, rows, width)
                } else {
                    self.0.decode_batch(slice::<u8>(ids, count, "ids")?, rows, width)
                }
            }
        })
    }
}

fn elements(rows: usize, width: usize) -> Result<usize> {
    let too_large = || Error::shape(format!("{rows} rows of {width} ids overflow the address space"));
    rows.checked_mul(width).ok_or_else(too_large)
}
