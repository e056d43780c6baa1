//! What every kernel is built from: lanes, cache lines, tiles, `exp` and friends, and the choice of the SIMD level.
//!
//! Codecs, packed products, solvers and the engine's kernels share this room. A kernel is a [`Job`], written once over the
//! operations of [`Lanes`]; [`fast`] compiles it for each instruction set and runs it at the level in use. Scalar
//! references (`codec::grid`, `codec::reference`, `linear::reference`, `solve::reference`) are below the dispatch: they use
//! nothing from here, and every fast path is compared with them bit for bit.

mod dispatch;
pub mod exp;
mod lanes;
mod level;
mod line;
mod processor;
#[cfg(target_arch = "x86_64")]
pub mod tiles;
#[cfg(target_arch = "x86_64")]
pub(crate) mod transpose;

pub use crate::float::LANES;
pub use dispatch::{EveryJob, Job, fast, run};
#[cfg(target_arch = "aarch64")]
pub use lanes::Neon;
#[cfg(target_arch = "x86_64")]
pub use lanes::{Avx2, Avx512};
pub use lanes::{Lanes, Proven, Scalar};
pub use level::Level;
pub use line::{Bytes, Doubles, Floats, Halves, Line, Sums};
pub use processor::Processor;
#[cfg(target_arch = "x86_64")]
pub use tiles::amx;
