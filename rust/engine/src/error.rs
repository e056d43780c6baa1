//! The errors of this crate.

/// What can go wrong while a model is loaded or run. Messages are lower case and carry the numbers.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file, setting or line that is refused, or the operating system's refusal.
    #[error(transparent)]
    Core(#[from] octavo_core::Error),
    /// A defect of this crate: something failed that the checks before it rule out.
    #[error("{0}")]
    Internal(String),
}

/// `Result` with this crate's [`enum@Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl From<candle_core::Error> for Error {
    fn from(error: candle_core::Error) -> Self {
        Self::Internal(error.to_string())
    }
}

/// A refusal of the content of a model folder.
pub fn refuse(message: impl Into<String>) -> Error {
    Error::Core(octavo_core::Error::container(message))
}
