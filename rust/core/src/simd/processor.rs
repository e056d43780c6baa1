//! [`Processor`]: the instruction sets by which kernels of products are chosen.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU8, Ordering};

use super::Level;
#[cfg(target_arch = "x86_64")]
use super::tiles::amx;

/// What a processor has, for products; each kind of an architecture has the instructions of its kinds before it.
///
/// A processor that lacks one of them counts as the kind before: Cascade Lake has VNNI without VBMI and is `Avx512`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Processor {
    /// Plain Rust, the reference.
    Scalar,
    /// [`Level::Neon`].
    Neon,
    /// NEON with dot products of bytes.
    NeonDot,
    /// [`Level::Avx2`].
    Avx2,
    /// [`Level::Avx512`].
    Avx512,
    /// AVX-512 VBMI: permutations of bytes.
    Avx512Vbmi,
    /// AVX-512 VNNI and VBMI2: dot products of bytes, expansion of bytes.
    Avx512Vnni,
    /// AVX-512 BF16: dot products of bfloat16.
    Avx512Bf16,
    /// AMX: tiles of int8 and of bfloat16.
    Amx,
}

static LIMIT: AtomicU8 = AtomicU8::new(Processor::Amx as u8);
static DETECTED: LazyLock<Processor> = LazyLock::new(Processor::detect);

impl Processor {
    /// All kinds, in order.
    pub const ALL: [Self; 9] = [
        Self::Scalar,
        Self::Neon,
        Self::NeonDot,
        Self::Avx2,
        Self::Avx512,
        Self::Avx512Vbmi,
        Self::Avx512Vnni,
        Self::Avx512Bf16,
        Self::Amx,
    ];

    /// The kinds whose instructions this machine has, in order.
    pub fn available() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|kind| *kind <= *DETECTED && kind.level().is_here())
    }

    /// The kind of this machine's processor.
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        return match Level::detect() {
            Level::Scalar | Level::Neon => Self::Scalar,
            Level::Avx2 => Self::Avx2,
            Level::Avx512 => {
                let vbmi = is_x86_feature_detected!("avx512vbmi");
                let vnni = vbmi && is_x86_feature_detected!("avx512vnni") && is_x86_feature_detected!("avx512vbmi2");
                let bf16 = vnni && is_x86_feature_detected!("avx512bf16");
                match (vbmi, vnni, bf16) {
                    (_, _, true) if amx::allowed() => Self::Amx,
                    (_, _, true) => Self::Avx512Bf16,
                    (_, true, _) => Self::Avx512Vnni,
                    (true, ..) => Self::Avx512Vbmi,
                    _ => Self::Avx512,
                }
            }
        };
        #[cfg(target_arch = "aarch64")]
        return if std::arch::is_aarch64_feature_detected!("dotprod") { Self::NeonDot } else { Self::Neon };
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        Self::Scalar
    }

    /// The kind that products use: that of this machine, within the SIMD level in use and [`Self::limit`].
    pub fn current() -> Self {
        let level = match Level::current() {
            Level::Scalar => Self::Scalar,
            Level::Avx2 => Self::Avx2,
            Level::Neon | Level::Avx512 => *DETECTED,
        };
        Self::ALL[usize::from(LIMIT.load(Ordering::Relaxed).min(level as u8))]
    }

    /// Has products of the whole process run as on a processor of at most this kind. For tests; [`Self::Amx`] is no limit.
    pub fn limit(self) {
        LIMIT.store(self as u8, Ordering::Relaxed);
    }

    /// The SIMD level of the kind.
    pub const fn level(self) -> Level {
        match self {
            Self::Scalar => Level::Scalar,
            Self::Neon | Self::NeonDot => Level::Neon,
            Self::Avx2 => Level::Avx2,
            _ => Level::Avx512,
        }
    }

    /// `scalar`, `neon`, `neon dot`, `avx2`, `avx512`, `avx512 vbmi`, `avx512 vnni`, `avx512 bf16` or `amx`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Neon => "neon",
            Self::NeonDot => "neon dot",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Avx512Vbmi => "avx512 vbmi",
            Self::Avx512Vnni => "avx512 vnni",
            Self::Avx512Bf16 => "avx512 bf16",
            Self::Amx => "amx",
        }
    }
}
