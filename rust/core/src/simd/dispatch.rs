//! One way from a level to the code compiled for it.

#[cfg(target_arch = "aarch64")]
use super::Neon;
#[cfg(target_arch = "x86_64")]
use super::{Avx2, Avx512};
use super::{Lanes, Level, Scalar};

/// Work that is compiled for an instruction set as a whole.
pub trait Job<L> {
    /// The result.
    type Output;
    /// Does the work. Implementations are `#[inline(always)]`, as is everything that they call: only then are they
    /// compiled with the instructions of `L`.
    fn run(self, lanes: L) -> Self::Output;
}

/// Jobs that every instruction set of this architecture can do, with results of one type.
#[cfg(target_arch = "x86_64")]
pub trait EveryJob<T>: Job<Avx2, Output = T> + Job<Avx512, Output = T> {}
#[cfg(target_arch = "x86_64")]
impl<T, J: Job<Avx2, Output = T> + Job<Avx512, Output = T>> EveryJob<T> for J {}

/// Jobs that every instruction set of this architecture can do, with results of one type.
#[cfg(target_arch = "aarch64")]
pub trait EveryJob<T>: Job<Neon, Output = T> {}
#[cfg(target_arch = "aarch64")]
impl<T, J: Job<Neon, Output = T>> EveryJob<T> for J {}

/// Jobs, on an architecture whose instruction sets are not known here.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub trait EveryJob<T>: Job<Scalar, Output = T> {}
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
impl<T, J: Job<Scalar, Output = T>> EveryJob<T> for J {}

/// Runs `job` with the instructions of `level`; at [`Level::Scalar`] the job comes back, for the reference to do.
///
/// A level that the processor lacks counts as [`Level::Scalar`].
#[inline]
pub fn fast<T, J: EveryJob<T>>(level: Level, job: J) -> Result<T, J> {
    match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 if let Some(lanes) = Avx512::new() => Ok(lanes.run(job)),
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 if let Some(lanes) = Avx2::new() => Ok(lanes.run(job)),
        #[cfg(target_arch = "aarch64")]
        Level::Neon if let Some(lanes) = Neon::new() => Ok(lanes.run(job)),
        _ => Err(job),
    }
}

/// Runs `job` as [`fast`] does, and in plain Rust at [`Level::Scalar`]: for jobs that are their own reference there.
#[inline]
pub fn run<T, J: EveryJob<T> + Job<Scalar, Output = T>>(level: Level, job: J) -> T {
    fast(level, job).unwrap_or_else(|job| Scalar.run(job))
}
