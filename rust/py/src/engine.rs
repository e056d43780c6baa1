//! The engine. `octavo/lab/polynomials/native_engine.py` is the only caller; the names are private to the package.

use std::path::PathBuf;

use octavo_core::Error as CoreError;
use octavo_engine::{Encoder as LoadedEncoder, Error};
use octavo_polynomials::{Engine as Loaded, Form, LineError, Options, Stream as Lines};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString};

use crate::err::{InternalError, enter};

/// Lines, and what is wrong with each.
type Failures = Vec<(u64, String)>;

/// Runs `work` as [`enter`] does; a defect of the engine becomes `InternalError`.
pub(crate) fn run<T: Send>(py: Python<'_>, work: impl FnOnce() -> Result<T, Error> + Send) -> PyResult<T> {
    let answer = enter(py, || match work() {
        Ok(value) => Ok(Ok(value)),
        Err(Error::Core(error)) => Err(error),
        Err(defect) => Ok(Err(defect.to_string())),
    })?;
    answer.map_err(|defect| InternalError::new_err(format!("{defect}; please report this")))
}

/// A loaded model.
#[pyclass(frozen, module = "octavo._core", name = "_Engine")]
pub(crate) struct Engine(Loaded);

#[pymethods]
impl Engine {
    /// Loads a model folder; 0 threads are the default.
    #[staticmethod]
    fn load(py: Python<'_>, path: PathBuf, precision: &str, route: &str, threads: usize) -> PyResult<Self> {
        run(py, || {
            let options = Options { precision: precision.parse()?, route: route.parse()?, threads };
            Loaded::load(&path, options).map(Self)
        })
    }
    /// The fields of the configuration.
    #[getter]
    fn config<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (config, fields) = (self.0.config(), PyDict::new(py));
        fields.set_item("architecture", config.architecture.name())?;
        for (name, value) in [
            ("vocabulary", config.vocabulary),
            ("embedding", config.embedding),
            ("encoder", config.encoder),
            ("hidden", config.hidden),
            ("heads", config.heads),
            ("layers", config.layers),
            ("feedforward", config.feedforward),
            ("max_source", config.max_source),
            ("max_target", config.max_target),
        ] {
            fields.set_item(name, value)?;
        }
        Ok(fields)
    }
    /// 'float' or 'integer'.
    #[getter]
    fn precision(&self) -> &'static str {
        self.0.precision().name()
    }
    /// 'fused' or 'general': the route of greedy expansion.
    #[getter]
    fn route(&self) -> &'static str {
        self.0.route().name()
    }
    /// Bytes of the weights that both routes have prepared.
    #[getter]
    fn prepared_nbytes(&self) -> usize {
        self.0.prepared_nbytes()
    }
    /// The answers to lines, and what is wrong with those that have none: place, counted from 0, and reason. Signals are
    /// heard between blocks.
    fn expand(
        &self,
        py: Python<'_>,
        lines: Vec<Bound<'_, PyString>>,
        beam: usize,
    ) -> PyResult<(Vec<String>, Failures)> {
        let (mut answers, mut failures) = (Vec::with_capacity(lines.len()), Vec::new());
        if lines.is_empty() {
            run(py, || self.0.expand(&[], beam))?;
        }
        for block in lines.chunks(self.0.block(beam)) {
            // Half of a surrogate pair cannot be text in Rust; as a replacement it is an unknown character.
            let texts: Vec<String> = block.iter().map(|line| line.to_string_lossy().into_owned()).collect();
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            for answer in run(py, || self.0.expand(&texts, beam))? {
                answers.push(answer.unwrap_or_else(|error| {
                    failures.push((answers.len() as u64, error.to_string()));
                    String::new()
                }));
            }
            py.check_signals()?;
        }
        Ok((answers, failures))
    }
    /// The answers of the general route and their log-probabilities.
    fn expand_scored(&self, py: Python<'_>, lines: Vec<String>, beam: usize) -> PyResult<Vec<(String, f32)>> {
        run(py, || {
            let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
            let answers = self.0.expand_scored(&lines, beam)?;
            let refused = |error: LineError| Error::Core(CoreError::data(error.to_string()));
            answers.into_iter().map(|answer| answer.map_err(refused)).collect()
        })
    }
}

/// Lines on their way through an engine.
#[pyclass(module = "octavo._core", name = "_EngineStream")]
pub(crate) struct EngineStream {
    engine: Py<Engine>,
    lines: Lines,
}

#[pymethods]
impl EngineStream {
    /// A stream whose answers are written as form: text, pairs or json.
    #[new]
    fn new(py: Python<'_>, engine: Py<Engine>, beam: usize, form: &str) -> PyResult<Self> {
        let loaded = &engine.get().0;
        let lines = run(py, || Lines::new(loaded, beam, form.parse::<Form>()?))?;
        Ok(Self { engine, lines })
    }
    /// Takes in bytes; None ends the last line.
    fn push(&mut self, py: Python<'_>, bytes: Option<&[u8]>) -> PyResult<()> {
        run(py, || {
            match bytes {
                Some(bytes) => self.lines.push(bytes),
                None => self.lines.finish(),
            }
            Ok(())
        })
    }
    /// Expands a block of waiting lines: how many, the bytes of their answers, and numbers and reasons of those that
    /// have none.
    fn run<'py>(&mut self, py: Python<'py>) -> PyResult<(usize, Bound<'py, PyBytes>, Failures)> {
        let engine = &self.engine.get().0;
        let (count, out, failures) = run(py, || {
            let (mut out, mut failures) = (Vec::new(), Vec::new());
            let count = self.lines.run(engine, &mut out, &mut failures)?;
            Ok((count, out, failures))
        })?;
        let failures = failures.into_iter().map(|(number, error)| (number, error.to_string())).collect();
        Ok((count, PyBytes::new(py, &out), failures))
    }
}

/// A loaded text encoder.
#[pyclass(frozen, module = "octavo._core", name = "_Encoder")]
pub(crate) struct Encoder(LoadedEncoder);

#[pymethods]
impl Encoder {
    /// Loads a model folder.
    #[staticmethod]
    fn load(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        run(py, || LoadedEncoder::load(&path).map(Self))
    }
    /// Numbers in one vector.
    #[getter]
    fn width(&self) -> usize {
        self.0.width()
    }
    /// Most tokens of a text.
    #[getter]
    fn positions(&self) -> usize {
        self.0.positions()
    }
    /// The vectors of texts, little-endian float32 as bytes.
    fn embed<'py>(&self, py: Python<'py>, texts: Vec<String>, limit: usize) -> PyResult<Bound<'py, PyBytes>> {
        let vectors = run(py, || {
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            self.0.embed(&texts, limit)
        })?;
        PyBytes::new_with(py, vectors.len() * size_of::<f32>(), |bytes| {
            for (to, value) in bytes.as_chunks_mut().0.iter_mut().zip(&vectors) {
                *to = value.to_le_bytes();
            }
            Ok(())
        })
    }
    /// The ids of a text, with the tokens around it.
    fn ids(&self, py: Python<'_>, text: &str, limit: usize) -> PyResult<Vec<u32>> {
        run(py, || Ok(self.0.ids(text, limit)))
    }
}
