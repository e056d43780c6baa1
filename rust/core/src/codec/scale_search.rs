//! The rule by which a format chooses scales, from the format and the option `scale=`; the stored form of a scale.
//! FORMATS.md section 3.

use crate::error::{Error, FormatError, Result};
use crate::float::exp2;
use crate::format::{Element, Format, Granularity, ScaleType};

/// Which neighbour of the default block scale the encoder takes (`scale=`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ScaleRule {
    /// The rule of the format: OCP's floor for MX.
    #[default]
    Floor,
    /// The smallest scale under which nothing saturates.
    Ceil,
    /// Least squared error over the default scale and its two neighbours.
    Mse,
}

impl std::str::FromStr for ScaleRule {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        match text {
            "floor" => Ok(Self::Floor),
            "ceil" => Ok(Self::Ceil),
            "mse" => Ok(Self::Mse),
            _ => Err(FormatError::UnknownScaleRule { name: text.to_owned() }.into()),
        }
    }
}

/// How the format chooses its scales; the part of FORMATS.md section 3 that is not about elements.
#[derive(Clone, Copy, Debug)]
pub enum Chooser {
    /// No scale is stored; the step is fixed.
    Unit(f64),
    /// Calibrated fixed point: int8 fraction bits.
    Fraction {
        /// Bits of a code.
        width: u32,
        /// Two's complement, else unsigned.
        signed: bool,
        /// By least squared error, else by the largest value.
        mse: bool,
    },
    /// Symmetric: `absmax / qmax`.
    Symmetric {
        /// Largest number.
        qmax: f32,
    },
    /// Asymmetric: `(max - min) / qmax` and a zero point.
    Asymmetric {
        /// Largest code.
        qmax: f64,
    },
    /// A scale with a sign: the value of largest magnitude becomes the code `-most`.
    FullRange {
        /// Magnitude of the smallest code.
        most: f32,
    },
    /// A scale and an offset: `(max - offset) / qmax`, and the smallest value.
    Affine {
        /// Largest code.
        qmax: f64,
    },
    /// Means of magnitudes, one level after the other.
    Binary {
        /// How many.
        levels: u8,
    },
    /// Mean of the magnitudes above 0.75 of the mean.
    Ternary,
    /// Shared exponent; `step = 2^(code - 127 - shift)`.
    Exponent {
        /// The format's own rule.
        default: ExponentRule,
        /// Fraction bits of the elements.
        shift: i32,
    },
    /// E4M3 block scale under the tensor's float32 scale.
    NvFp4,
    /// None: scales came with the codes (K-quants).
    Carried,
}

/// Default rule of a shared exponent.
#[derive(Clone, Copy, Debug)]
pub enum ExponentRule {
    /// `floor(log2 absmax) - emax`.
    Floor {
        /// Exponent of the elements' top binade.
        emax: i32,
    },
    /// Smallest exponent under which absmax does not round beyond the largest magnitude of `m` bits.
    Fits {
        /// Bits of a magnitude.
        m: u32,
    },
    /// `floor(log2(absmax * 4/3))`.
    NearestPower,
}

impl Chooser {
    /// Fraction bits of the elements under a shared exponent; 0 elsewhere.
    pub(crate) const fn shift(&self) -> i32 {
        match *self {
            Self::Exponent { shift, .. } => shift,
            _ => 0,
        }
    }

    /// The chooser of a format.
    pub fn of(format: Format) -> Self {
        let width = format.width();
        let top = |w: u32| ((1u32 << (w - 1)) - 1) as f32;
        match format.element() {
            Element::Native(_) | Element::Minifloat(_) | Element::Denorm { .. } | Element::Log { .. } => {
                Self::Unit(1.0)
            }
            Element::Fixed { fraction: Some(f), .. } => Self::Unit(exp2(-i32::from(f))),
            Element::Fixed { signed, mse, .. } => Self::Fraction { width, signed, mse },
            Element::Int { signed: true, .. } => Self::Symmetric { qmax: top(width) },
            Element::Int { .. } => Self::Asymmetric { qmax: exp2(width as i32) - 1.0 },
            Element::FullRange { .. } => Self::FullRange { most: exp2(width as i32 - 1) as f32 },
            Element::Affine { .. } => Self::Affine { qmax: exp2(width as i32) - 1.0 },
            Element::NormalFloat { .. } => Self::Symmetric { qmax: 1.0 },
            Element::Binary { .. } | Element::Ternary if format.granularity() == Granularity::None => Self::Unit(1.0),
            Element::Binary { levels } => Self::Binary { levels },
            Element::Ternary => Self::Ternary,
            Element::Bfp { .. } => {
                Self::Exponent { default: ExponentRule::Fits { m: width - 1 }, shift: width as i32 - 1 }
            }
            Element::MxInt { .. } => {
                Self::Exponent { default: ExponentRule::Floor { emax: 0 }, shift: width as i32 - 2 }
            }
            Element::BlockMinifloat { .. } => Self::Exponent { default: ExponentRule::Floor { emax: 0 }, shift: 0 },
            Element::BlockLog { .. } => Self::Exponent { default: ExponentRule::NearestPower, shift: 0 },
            Element::MxFloat(float) => Self::Exponent { default: ExponentRule::Floor { emax: float.emax() }, shift: 0 },
            Element::NvFp4 => Self::NvFp4,
            Element::KQuant(_) => Self::Carried,
        }
    }
}

/// A scale as it is stored: the bits of its type, one word for each level, and the zero point.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RawScale {
    pub(crate) bits: [u32; 4],
    pub(crate) zero: u16,
}

impl RawScale {
    pub(crate) const fn code(code: u8) -> Self {
        Self { bits: [code as u32, 0, 0, 0], zero: 0 }
    }
}

/// Reads a scale's bits from storage of `kind`.
///
/// # Safety
/// `base` must hold at least `(index + 1) * per_group` scales.
pub(crate) unsafe fn load_scale(base: *const u8, kind: ScaleType, per_group: usize, index: usize) -> [u32; 4] {
    let mut bits = [0; 4];
    for (i, word) in bits.iter_mut().enumerate().take(per_group) {
        // SAFETY: the caller guarantees the length; reads are unaligned.
        *word = unsafe {
            let at = base.add((index * per_group + i) * kind.bytes());
            match kind.bytes() {
                4 => at.cast::<u32>().read_unaligned(),
                2 => u32::from(at.cast::<u16>().read_unaligned()),
                _ => u32::from(*at),
            }
        };
    }
    bits
}

/// Writes a scale's bits.
///
/// # Safety
/// As for [`load_scale`], and nobody else may touch these scales meanwhile.
pub(crate) unsafe fn store_scale(base: *mut u8, kind: ScaleType, per_group: usize, index: usize, bits: &[u32; 4]) {
    for (i, &word) in bits.iter().enumerate().take(per_group) {
        // SAFETY: the caller guarantees the length; writes are unaligned.
        unsafe {
            let at = base.add((index * per_group + i) * kind.bytes());
            match kind.bytes() {
                4 => at.cast::<u32>().write_unaligned(word),
                2 => at.cast::<u16>().write_unaligned(word as u16),
                _ => *at = word as u8,
            }
        }
    }
}
