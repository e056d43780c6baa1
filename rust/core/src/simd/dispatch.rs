//! One way from a level to the code compiled for it.

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use super::Lanes;
use super::Level;
#[cfg(target_arch = "aarch64")]
use super::Neon;
#[cfg(target_arch = "x86_64")]
use super::{Avx2, Avx512};

/// Work that is compiled for an instruction set as a whole.
pub trait Job<L> {
    /// The result.
    type Output;
    /// Does the work. Implementations are `#[inline(always)]`, as is everything that they call: only then are they
    /// compiled with the instructions of `L`.
    fn run(self, lanes: L) -> Self::Output;
}

/// Runs `job` with the instructions of `level`; at [`Level::Scalar`] the job comes back, for the reference to do.
///
/// A level that the processor lacks counts as [`Level::Scalar`].
#[cfg(target_arch = "x86_64")]
#[inline]
pub fn fast<T, J>(level: Level, job: J) -> Result<T, J>
where
    J: Job<Avx2, Output = T> + Job<Avx512, Output = T>,
{
    match level {
        Level::Avx512 if let Some(lanes) = Avx512::new() => Ok(lanes.run(job)),
        Level::Avx2 if let Some(lanes) = Avx2::new() => Ok(lanes.run(job)),
        _ => Err(job),
    }
}

/// Runs `job` with the instructions of `level`; at [`Level::Scalar`] the job comes back, for the reference to do.
///
/// A level that the processor lacks counts as [`Level::Scalar`].
#[cfg(target_arch = "aarch64")]
#[inline]
pub fn fast<T, J>(level: Level, job: J) -> Result<T, J>
where
    J: Job<Neon, Output = T>,
{
    match level {
        Level::Neon if let Some(lanes) = Neon::new() => Ok(lanes.run(job)),
        _ => Err(job),
    }
}

/// The job comes back: no instruction set is known here, and the reference does it.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
#[inline]
pub fn fast<T, J>(_level: Level, job: J) -> Result<T, J>
where
    J: Job<super::Scalar, Output = T>,
{
    Err(job)
}
