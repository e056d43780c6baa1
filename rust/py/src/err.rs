//! The one way from Python into Rust, and the one mapping of errors back.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use octavo_core::{Error, FloatState};
use octavo_cuda::Error as CudaCrateError;
use pyo3::exceptions::{PyFileExistsError, PyFileNotFoundError, PyMemoryError, PyOSError, PyPermissionError};
use pyo3::prelude::*;

pyo3::import_exception!(octavo.errors, ContainerError);
pyo3::import_exception!(octavo.errors, CudaError);
pyo3::import_exception!(octavo.errors, CudaUnavailableError);
pyo3::import_exception!(octavo.errors, DataError);
pyo3::import_exception!(octavo.errors, FormatError);
pyo3::import_exception!(octavo.errors, InternalError);
pyo3::import_exception!(octavo.errors, KernelCompileError);
pyo3::import_exception!(octavo.errors, NonFiniteError);
pyo3::import_exception!(octavo.errors, RangeError);
pyo3::import_exception!(octavo.errors, SettingError);
pyo3::import_exception!(octavo.errors, ShapeError);

/// Runs `work` without the GIL and in the standard floating-point state; a panic becomes `InternalError`, an [`Error`] its Python class.
pub(crate) fn enter<T: Send>(py: Python<'_>, work: impl FnOnce() -> Result<T, Error> + Send) -> PyResult<T> {
    run(py, work, to_python)
}

/// [`enter`] for work on a GPU.
pub(crate) fn enter_cuda<T: Send>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<T, CudaCrateError> + Send,
) -> PyResult<T> {
    run(py, work, cuda_to_python)
}

fn run<T: Send, E: Send>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<T, E> + Send,
    map: impl FnOnce(E) -> PyErr,
) -> PyResult<T> {
    let in_standard_state = || {
        let _state = FloatState::standard();
        work()
    };
    match py.detach(|| catch_unwind(AssertUnwindSafe(in_standard_state))) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(map(error)),
        Err(panic) => Err(InternalError::new_err(format!("{}; please report this", message(&*panic)))),
    }
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("the Rust core panicked").to_owned()
}

fn to_python(error: Error) -> PyErr {
    let text = error.to_string();
    match error {
        Error::Format(_) => FormatError::new_err(text),
        Error::Shape(_) => ShapeError::new_err(text),
        Error::Range(_) => RangeError::new_err(text),
        Error::NonFinite { .. } => NonFiniteError::new_err(text),
        Error::Container(_) => ContainerError::new_err(text),
        Error::Data(_) => DataError::new_err(text),
        Error::Setting(_) => SettingError::new_err(text),
        Error::OutOfMemory(_) => PyMemoryError::new_err(text),
        Error::Io { source, .. } => match source.kind() {
            std::io::ErrorKind::NotFound => PyFileNotFoundError::new_err(text),
            std::io::ErrorKind::PermissionDenied => PyPermissionError::new_err(text),
            std::io::ErrorKind::AlreadyExists => PyFileExistsError::new_err(text),
            _ => PyOSError::new_err(text),
        },
        _ => InternalError::new_err(text),
    }
}

fn cuda_to_python(error: CudaCrateError) -> PyErr {
    let text = error.to_string();
    match error {
        CudaCrateError::Core(error) => to_python(error),
        CudaCrateError::Unavailable(_) => CudaUnavailableError::new_err(text),
        CudaCrateError::Compile { log, .. } => KernelCompileError::new_err((text, log)),
        CudaCrateError::Driver { .. } | CudaCrateError::Capture(_) => CudaError::new_err(text),
        CudaCrateError::Setting(_) => SettingError::new_err(text),
        _ => InternalError::new_err(text),
    }
}
