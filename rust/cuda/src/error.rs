//! The errors of this crate; `rust/py` maps each variant to one Python exception.

/// Everything that can go wrong on the way to a kernel. Messages are lower case and name the kernel and the numbers.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Driver, device or compiler is missing on this machine. The text lists the places that were searched.
    #[error("{0}")]
    Unavailable(String),
    /// The compiler refused a program: a defect of Octavo, or an architecture it does not know.
    #[error("program '{program}' does not compile for {arch}: {reason}\n{log}")]
    Compile {
        /// Name of the program.
        program: String,
        /// Architecture it was compiled for, such as `sm_90a`.
        arch: String,
        /// What the compiler calls the error.
        reason: String,
        /// What it printed.
        log: String,
    },
    /// The driver refused, or a kernel failed.
    #[error("{what}: {name} ({code}): {text}")]
    Driver {
        /// What was being done, with kernel and device.
        what: String,
        /// Name of the result, such as `CUDA_ERROR_ILLEGAL_ADDRESS`.
        name: String,
        /// Its number.
        code: u32,
        /// What the driver says about it.
        text: String,
    },
    /// A launch whose numbers no device accepts: a defect of the maker of the call.
    #[error("{0}")]
    Launch(String),
    /// A kernel that is not loaded yet was asked for while the stream is captured into a graph.
    #[error("{0}")]
    Capture(String),
    /// A setting that cannot be honoured: a cache folder that others can write to, an architecture that is none.
    #[error("{0}")]
    Setting(String),
    /// Bad input, found by the checks that the processor's path shares.
    #[error(transparent)]
    Core(#[from] octavo_core::Error),
}

/// `Result` with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;
