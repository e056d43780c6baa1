//! Settings that cannot be honoured.

use crate::simd::Level;

/// A setting that this machine or build cannot honour.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SettingError {
    /// No level has this name.
    #[error("unknown SIMD level '{name}'; accepted are scalar, neon, avx2, avx512")]
    UnknownLevel {
        /// The name given.
        name: String,
    },
    /// The processor lacks the instructions of a level.
    #[error("SIMD level '{}' is not available; this machine has '{}'", .level.name(), .highest.name())]
    LevelMissing {
        /// The level asked for.
        level: Level,
        /// The highest level of this machine.
        highest: Level,
    },
    /// More threads than are allowed.
    #[error("{threads} threads; accepted are 0 (default) to {limit}")]
    Threads {
        /// The number asked for.
        threads: usize,
        /// The largest number.
        limit: usize,
    },
    /// The system starts no more threads.
    #[error("cannot start {threads} threads: {reason}")]
    ThreadStart {
        /// The number asked for.
        threads: usize,
        /// The system's reason.
        reason: String,
    },
    /// A refusal of a crate on top.
    #[error("{0}")]
    Other(String),
}
