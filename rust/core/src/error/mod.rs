//! The errors of this crate: a kind for each Python exception, and in it a variant for each refusal, with the numbers as
//! fields.
//!
//! Crates on top refuse with the same kinds; their own refusals are texts or errors of theirs, in the variants called `Other`.

mod byte_pairs;
mod container;
mod data;
mod format;
mod setting;
mod shape;

pub use byte_pairs::BytePairFault;
pub use container::{ContainerError, Refusal, TensorFault};
pub use data::{DataError, FieldFault};
pub use format::{FormatError, TextFault};
pub use setting::SettingError;
pub use shape::{RangeError, ShapeError};

/// Everything that can go wrong in octavo-core. Messages are lower case and carry the numbers.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A format text that is unknown or contradicts itself, or a format that cannot do what was asked.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// A shape, axis or buffer length that does not fit.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// An index outside its range.
    #[error(transparent)]
    Range(#[from] RangeError),
    /// NaN or infinity given to `encode` under the policy `error`.
    #[error(
        "'{format}': value {value} at flat position {position}; encode takes finite values only \
         (nonfinite=\"saturate\" maps inf to the largest value and NaN to 0)"
    )]
    NonFinite {
        /// The text of the format.
        format: String,
        /// Position in the flattened input, the first one in memory order.
        position: usize,
        /// The value found there.
        value: f32,
    },
    /// A file that is not a valid container, or one this version refuses.
    #[error(transparent)]
    Container(#[from] ContainerError),
    /// Text, tokens or a file of them that do not obey the rules of their kind.
    #[error(transparent)]
    Data(#[from] DataError),
    /// A setting (SIMD level, thread count) that this machine or build cannot honour.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// The operating system refused; the kind decides the Python class.
    #[error("{context}: {source}")]
    Io {
        /// What was being done, with the path.
        context: String,
        /// The system's own error.
        source: std::io::Error,
    },
    /// Memory for a work buffer could not be had.
    #[error("out of memory: {0} bytes for a work buffer")]
    OutOfMemory(usize),
}

/// Refusals of crates on top, whose texts are theirs.
impl Error {
    /// A [`FormatError::Other`].
    pub fn format(text: impl Into<String>) -> Self {
        FormatError::Other(text.into()).into()
    }
    /// A [`ShapeError::Other`].
    pub fn shape(text: impl Into<String>) -> Self {
        ShapeError::Other(text.into()).into()
    }
    /// A [`RangeError::Other`].
    pub fn range(text: impl Into<String>) -> Self {
        RangeError::Other(text.into()).into()
    }
    /// A [`ContainerError::Other`]: a text, or an error of that crate.
    pub fn container(refusal: impl Into<Refusal>) -> Self {
        ContainerError::Other(refusal.into()).into()
    }
    /// A [`DataError::Other`].
    pub fn data(text: impl Into<String>) -> Self {
        DataError::Other(text.into()).into()
    }
    /// A [`SettingError::Other`].
    pub fn setting(text: impl Into<String>) -> Self {
        SettingError::Other(text.into()).into()
    }
}

/// `Result` with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

#[cfg(test)]
mod tests;
