//! The SIMD level: detected once, forced for tests. Scalar is the specification and always compiled.

use std::sync::atomic::{AtomicU8, Ordering};

use crate::error::{Error, Result, SettingError};

/// Instruction sets that the kernels know. Results of the codecs do not depend on the level; products agree within the
/// bound of FORMATS.md section 6.
///
/// A value need not be a level of this processor; those of [`Level::detect`] and [`Level::current`] are, and kernels are
/// given no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Level {
    /// Plain Rust, the reference.
    Scalar = 0,
    /// NEON, of 64-bit Arm processors.
    Neon = 1,
    /// AVX2 with FMA, F16C, BMI2 and POPCNT.
    Avx2 = 2,
    /// AVX-512 F, BW, DQ, VL and CD, on top of the features of [`Level::Avx2`].
    Avx512 = 3,
}

const UNSET: u8 = u8::MAX;
static FORCED: AtomicU8 = AtomicU8::new(UNSET);
static DETECTED: std::sync::LazyLock<Level> = std::sync::LazyLock::new(Level::detect);

impl Level {
    /// All levels.
    pub const ALL: [Self; 4] = [Self::Scalar, Self::Neon, Self::Avx2, Self::Avx512];

    /// The levels that this machine has, lowest first.
    pub fn available() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|level| level.is_here())
    }

    /// The highest level this machine has.
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c")
                && is_x86_feature_detected!("bmi2")
                && is_x86_feature_detected!("popcnt");
            let avx512 = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512cd");
            match (avx2, avx512) {
                (true, true) => Self::Avx512,
                (true, false) => Self::Avx2,
                _ => Self::Scalar,
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        if cfg!(target_arch = "aarch64") { Self::Neon } else { Self::Scalar }
    }

    /// True where this machine has the level; found out once.
    #[inline]
    pub fn is_here(self) -> bool {
        self <= *DETECTED && (self != Self::Neon || cfg!(target_arch = "aarch64"))
    }

    /// The level in use: the forced one, else the highest.
    pub fn current() -> Self {
        Self::ALL.get(usize::from(FORCED.load(Ordering::Relaxed))).map_or(*DETECTED, |&level| level)
    }

    /// Forces a level for the whole process, or with `None` returns to the highest.
    ///
    /// # Errors
    /// [`Error::Setting`] for a level that this machine lacks.
    pub fn force(level: Option<Self>) -> Result<()> {
        match level {
            Some(level) if !level.is_here() => {
                Err(SettingError::LevelMissing { level, highest: Self::detect() }.into())
            }
            Some(level) => {
                FORCED.store(level as u8, Ordering::Relaxed);
                Ok(())
            }
            None => {
                FORCED.store(UNSET, Ordering::Relaxed);
                Ok(())
            }
        }
    }

    /// `scalar`, `neon`, `avx2` or `avx512`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Neon => "neon",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        }
    }
}

impl std::str::FromStr for Level {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        match text {
            "scalar" => Ok(Self::Scalar),
            "neon" => Ok(Self::Neon),
            "avx2" => Ok(Self::Avx2),
            "avx512" => Ok(Self::Avx512),
            _ => Err(SettingError::UnknownLevel { name: text.to_owned() }.into()),
        }
    }
}
