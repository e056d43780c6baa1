//! [`Options`]: precision, route and number of threads of a model.

use octavo_core::Error as CoreError;
use octavo_engine::{Error, Result};

/// In which numbers a model is run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// f32.
    #[default]
    Float,
    /// bfloat16 products and float16 keys and values on the fused route of a processor with AMX; f32 elsewhere.
    Bfloat16,
    /// Static int8, on the fused route only; greedy only.
    Integer,
}

/// Which code runs a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Route {
    /// Fused kernels where there are some for the model, else the general route.
    #[default]
    Auto,
    /// Every architecture, greedy and with a beam.
    General,
    /// Kernels that are written for one architecture, greedy only; with a beam the general route is taken.
    Fused,
}

impl Precision {
    /// The name in options: `float`, `bfloat16` or `integer`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Float => "float",
            Self::Bfloat16 => "bfloat16",
            Self::Integer => "integer",
        }
    }
}

impl Route {
    /// The name in options: `auto`, `general` or `fused`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::General => "general",
            Self::Fused => "fused",
        }
    }
}

impl std::str::FromStr for Precision {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        let all = [Self::Float, Self::Bfloat16, Self::Integer];
        let found = all.into_iter().find(|precision| precision.name() == text);
        found.ok_or_else(|| setting(format!("unknown precision '{text}'; accepted are float, bfloat16, integer")))
    }
}

impl std::str::FromStr for Route {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        let all = [Self::Auto, Self::General, Self::Fused];
        let found = all.into_iter().find(|route| route.name() == text);
        found.ok_or_else(|| setting(format!("unknown route '{text}'; accepted are auto, general, fused")))
    }
}

/// How to load and run a model.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// In which numbers.
    pub precision: Precision,
    /// By which code.
    pub route: Route,
    /// On how many threads; 0 for [`octavo_core::pool::num_threads`].
    pub threads: usize,
}

/// A refusal of an option.
pub(crate) fn setting(message: impl Into<String>) -> Error {
    Error::Core(CoreError::setting(message))
}
