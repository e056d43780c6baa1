//! The errors of this crate; `rust/py` maps each variant to one Python exception.

/// Everything that can go wrong in octavo-core. Messages are lower case and carry the numbers.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A format text that is unknown or contradicts itself, or a format that cannot do what was asked.
    #[error("{0}")]
    Format(String),
    /// A shape, axis or buffer length that does not fit.
    #[error("{0}")]
    Shape(String),
    /// An index outside its range.
    #[error("{0}")]
    Range(String),
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
    #[error("{0}")]
    Container(String),
    /// Text, tokens or a file of them that do not obey the rules of their kind.
    #[error("{0}")]
    Data(String),
    /// A setting (SIMD level, thread count) that this machine or build cannot honour.
    #[error("{0}")]
    Setting(String),
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

/// `Result` with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;
