//! Lines of polynomials. `octavo/lab/polynomials` is the only caller; the names are private to the package.

use octavo_polynomials::{Factors, Generator, Kind, Result};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::characters::{CharTokenizer, Span};
use crate::err::enter;
use crate::raw::{Memory, apart, slice_mut};

/// The right side of a left side.
#[pyfunction]
#[pyo3(name = "_polynomial_expand")]
pub(crate) fn polynomial_expand(py: Python<'_>, left: &str) -> PyResult<String> {
    enter(py, || {
        let mut text = Vec::new();
        Factors::parse(left)?.right(&mut text);
        Ok(String::from_utf8_lossy(&text).into_owned())
    })
}

/// The form of a left side, 0 to 3, and whether the symbol is a function.
#[pyfunction]
#[pyo3(name = "_polynomial_kind")]
pub(crate) fn polynomial_kind(py: Python<'_>, left: &str) -> PyResult<(u8, bool)> {
    enter(py, || {
        let factors = Factors::parse(left)?;
        let kind = match factors.kind() {
            Kind::Monomial => 0,
            Kind::MonomialTimesSum => 1,
            Kind::Square => 2,
            Kind::Product => 3,
        };
        Ok((kind, factors.function().is_some()))
    })
}

/// An endless sequence of polynomial lines without those whose left sides are given.
#[pyclass(module = "octavo._core", name = "_PolynomialStream", frozen)]
pub(crate) struct PolynomialStream(Generator);

#[pymethods]
impl PolynomialStream {
    #[new]
    fn new(py: Python<'_>, seed: u64, excluded: Vec<String>) -> PyResult<Self> {
        enter(py, || {
            let keys = excluded.iter().map(|left| Factors::parse(left).map(|factors| factors.key()));
            Ok(Self(Generator::new(seed, &keys.collect::<Result<Vec<_>>>()?)))
        })
    }
    /// How many lines are excluded.
    #[getter]
    fn excluded(&self) -> usize {
        self.0.excluded()
    }
    /// Lines start to start + count, each with its line feed.
    fn text<'py>(&self, py: Python<'py>, start: u64, count: usize) -> PyResult<Bound<'py, PyBytes>> {
        let text = enter(py, || Ok(self.0.text(start, count)?))?;
        Ok(PyBytes::new(py, &text))
    }
    /// Writes the ids of both sides to two uint8 arrays, answering the lengths of their rows.
    #[expect(clippy::too_many_arguments, reason = "one flat call is what the boundary is for")]
    fn batch(
        &self,
        py: Python<'_>,
        start: u64,
        count: usize,
        tokenizer: &CharTokenizer,
        source: Span,
        target: Span,
        pad_to: Option<(usize, usize)>,
    ) -> PyResult<(usize, usize)> {
        enter(py, || {
            apart(&[Memory::new("source", source.0, source.1), Memory::new("target", target.0, target.1)], &[])?;
            // SAFETY: `octavo.lab.polynomials.data` passes two arrays of its own with their sizes and keeps them alive; they are apart.
            let (source, target) =
                unsafe { (slice_mut(source.0, source.1, "source")?, slice_mut(target.0, target.1, "target")?) };
            Ok(self.0.batch(start, count, &tokenizer.0, source, target, pad_to)?)
        })
    }
}
