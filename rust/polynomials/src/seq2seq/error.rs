//! What can go wrong inside a model on candle's tensors.

/// A refusal of the engine, or a defect that candle found.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Engine(#[from] octavo_engine::Error),
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
}

impl Error {
    /// Something failed that the checks before it rule out.
    pub(super) fn defect(what: impl Into<String>) -> Self {
        Self::Engine(octavo_engine::Error::Internal(what.into()))
    }
}

/// `Result` with this module's [`enum@Error`].
pub(super) type Result<T> = std::result::Result<T, Error>;

impl From<Error> for octavo_engine::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Engine(error) => error,
            Error::Candle(error) => Self::Internal(error.to_string()),
        }
    }
}
