//! [`Format`]: what a number may be. Parsed from and printed as the grammar of FORMATS.md section 1.

mod catalogue;
mod parse;
mod print;

pub use catalogue::catalogue;

use crate::error::{Error, Result, ShapeError};

/// Largest magnitude of a bias or of a number of fraction bits.
pub const MAX_OFFSET: i32 = 511;
/// Largest block or group.
pub const MAX_BLOCK: u32 = 65_536;

/// Which codes of a minifloat are not finite numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Specials {
    /// All codes are finite.
    Finite,
    /// OCP E4M3: only the two codes with all exponent and mantissa bits set are NaN.
    NanOnly,
    /// IEEE 754: the top exponent holds infinities and NaN.
    Ieee,
}

/// A floating-point element with subnormals: sign, `exponent` bits, `mantissa` bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Minifloat {
    /// Exponent bits, 1 to 8.
    pub exponent: u8,
    /// Mantissa bits, 0 to 23.
    pub mantissa: u8,
    /// Exponent bias.
    pub bias: i16,
    /// Codes that are not finite numbers.
    pub specials: Specials,
}

impl Minifloat {
    /// The OCP and IEEE elements, by exponent and mantissa bits, with the default bias.
    pub const fn standard(exponent: u8, mantissa: u8) -> Self {
        let specials = match (exponent, mantissa) {
            (4, 3) => Specials::NanOnly,
            (5, 2) => Specials::Ieee,
            _ => Specials::Finite,
        };
        Self { exponent, mantissa, bias: default_bias(exponent), specials }
    }
    /// Bits of a code, the sign included.
    pub const fn width(self) -> u32 {
        1 + self.exponent as u32 + self.mantissa as u32
    }
    /// Exponent of the smallest binade with an implicit one.
    pub const fn emin(self) -> i32 {
        1 - self.bias as i32
    }
    /// Exponent of the largest binade that holds finite values.
    pub const fn emax(self) -> i32 {
        (1 << self.exponent) - 1 - self.bias as i32 - matches!(self.specials, Specials::Ieee) as i32
    }
    /// Largest finite value.
    pub fn largest(self) -> f64 {
        let ones = (1u32 << self.mantissa) - 1 - u32::from(self.specials == Specials::NanOnly);
        crate::float::exp2(self.emax()) * (1.0 + f64::from(ones) / f64::from(1u32 << self.mantissa))
    }
}

/// IEEE's bias for a number of exponent bits: `2^(E-1) - 1`.
pub const fn default_bias(exponent: u8) -> i16 {
    (1 << (exponent - 1)) - 1
}

/// A K-quant of ggml: blocks of 256 with scales of scales. Carried over from files; nothing is encoded in them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KQuant {
    /// 2 bits, groups of 16 with offsets.
    Q2,
    /// 3 bits, groups of 16.
    Q3,
    /// 4 bits, groups of 32 with offsets.
    Q4,
    /// 5 bits, groups of 32 with offsets.
    Q5,
    /// 6 bits, groups of 16.
    Q6,
}

impl KQuant {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Q2, Self::Q3, Self::Q4, Self::Q5, Self::Q6];
    /// Elements of a block.
    pub const BLOCK: u32 = 256;
    /// Bits of a code.
    pub const fn width(self) -> u8 {
        self as u8 + 2
    }
    /// Elements that share a step.
    pub const fn group(self) -> usize {
        if matches!(self, Self::Q4 | Self::Q5) { 32 } else { 16 }
    }
    /// Groups of a block.
    pub const fn groups(self) -> usize {
        Self::BLOCK as usize / self.group()
    }
    /// Bytes of a block that are no codes.
    pub const fn scale_bytes(self) -> usize {
        match self {
            Self::Q2 => 20,
            Self::Q3 => 14,
            Self::Q4 | Self::Q5 => 16,
            Self::Q6 => 18,
        }
    }
    /// Codes are two's complement.
    pub const fn is_signed(self) -> bool {
        matches!(self, Self::Q3 | Self::Q6)
    }
}

/// What one element may be; FORMATS.md section 3 has a paragraph for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Element {
    /// `fp32`, `fp16`, `bf16`: IEEE storage.
    Native(Minifloat),
    /// `fixedW.F`, `ufixedW.F`; `fraction` is `None` where F is chosen by calibration.
    Fixed {
        /// Bits of a code.
        width: u8,
        /// Number of fraction bits F.
        fraction: Option<i16>,
        /// Two's complement, else unsigned.
        signed: bool,
        /// F by least squared error instead of absmax.
        mse: bool,
    },
    /// `intW:gN,full`: all codes of two's complement, under a scale with a sign.
    FullRange {
        /// Bits of a code, 2 to 8.
        width: u8,
    },
    /// `uintW:gN,offset`: codes times a scale plus an offset, both numbers with a sign.
    Affine {
        /// Bits of a code, 2 to 8.
        width: u8,
    },
    /// `q4_k` and its kin.
    KQuant(KQuant),
    /// `intW` (symmetric) and `uintW` (asymmetric).
    Int {
        /// Bits of a code.
        width: u8,
        /// Symmetric without zero point, else asymmetric.
        signed: bool,
    },
    /// `eEmM`, with `bB` and `:finite`.
    Minifloat(Minifloat),
    /// `denormWeE`: minifloat without implicit bit.
    Denorm {
        /// Bits of a code.
        width: u8,
        /// Exponent bits.
        exponent: u8,
        /// Exponent bias.
        bias: i16,
    },
    /// `logW`: zero and signed powers of two.
    Log {
        /// Bits of a code.
        width: u8,
        /// Exponent bias.
        bias: i16,
    },
    /// `binary`, `binaryN`: a sum of `levels` signed scales.
    Binary {
        /// Number of levels, and of bits.
        levels: u8,
    },
    /// `ternary`: -a, 0, +a.
    Ternary,
    /// `bfpW/B`: sign and magnitude under a shared exponent.
    Bfp {
        /// Bits of a code.
        width: u8,
    },
    /// `bmWeE/B`: minifloat with a shared bias.
    BlockMinifloat {
        /// Bits of a code.
        width: u8,
        /// Exponent bits.
        exponent: u8,
    },
    /// `blogW/B`: log with a shared bias.
    BlockLog {
        /// Bits of a code.
        width: u8,
    },
    /// `mxintW`: two's complement fraction under an E8M0 scale.
    MxInt {
        /// Bits of a code.
        width: u8,
    },
    /// `mxfp8e4m3` and its kin: a minifloat under an E8M0 scale.
    MxFloat(Minifloat),
    /// `nvfp4`: E2M1 under an E4M3 block scale and a float32 tensor scale.
    NvFp4,
    /// `nf4`, `nf3`: quantiles of a normal distribution under an f16 absmax.
    NormalFloat {
        /// Bits of a code.
        width: u8,
    },
}

/// How many elements share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Granularity {
    /// No scale is stored.
    None,
    /// One scale for the tensor.
    Tensor,
    /// One scale for each row along the axis.
    Channel,
    /// One scale for each run of this many elements of a row (`/B` or `:gN`).
    Block(u32),
}

/// Storage type of a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScaleType {
    /// Float32.
    F32,
    /// Float16.
    F16,
    /// Shared exponent, biased by 127; 255 marks a NaN block.
    E8M0,
    /// OCP E4M3 (nvfp4).
    E4M3,
    /// Number of fraction bits (calibrated fixed point).
    I8,
    /// Bytes of a block of a K-quant: scales, offsets and the float16 above them.
    Nested,
}

impl ScaleType {
    /// Bytes of one scale.
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 => 2,
            Self::E8M0 | Self::E4M3 | Self::I8 | Self::Nested => 1,
        }
    }
}

/// A number format: an element and the number of elements that share a scale.
///
/// Small, immutable, comparable and hashable; `Format::parse(&f.to_string()) == Ok(f)`. Source: FORMATS.md section 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Format {
    element: Element,
    granularity: Granularity,
}

impl Format {
    /// Reads the text form.
    ///
    /// # Errors
    /// [`Error::Format`] naming the part that is wrong and the nearest valid spelling.
    pub fn parse(text: &str) -> Result<Self> {
        parse::parse(text)
    }
    /// What one element may be.
    pub const fn element(self) -> Element {
        self.element
    }
    /// How many elements share a scale.
    pub const fn granularity(self) -> Granularity {
        self.granularity
    }
    /// Bits of one code, without scales.
    pub const fn width(self) -> u32 {
        match self.element {
            Element::Native(float) | Element::Minifloat(float) | Element::MxFloat(float) => float.width(),
            Element::Fixed { width, .. }
            | Element::FullRange { width }
            | Element::Affine { width }
            | Element::Int { width, .. }
            | Element::Denorm { width, .. }
            | Element::Log { width, .. }
            | Element::Bfp { width }
            | Element::BlockMinifloat { width, .. }
            | Element::BlockLog { width }
            | Element::MxInt { width }
            | Element::NormalFloat { width } => width as u32,
            Element::KQuant(kind) => kind.width() as u32,
            Element::Binary { levels } => levels as u32,
            Element::Ternary => 2,
            Element::NvFp4 => 4,
        }
    }
    /// Storage type of the scales, `None` for formats without scales.
    pub const fn scale_type(self) -> Option<ScaleType> {
        match (self.element, self.granularity) {
            (_, Granularity::None) => None,
            (Element::Fixed { .. }, _) => Some(ScaleType::I8),
            (Element::Int { .. }, Granularity::Block(_))
            | (Element::FullRange { .. } | Element::Affine { .. } | Element::NormalFloat { .. }, _) => {
                Some(ScaleType::F16)
            }
            (Element::Int { .. } | Element::Binary { .. } | Element::Ternary, _) => Some(ScaleType::F32),
            (Element::NvFp4, _) => Some(ScaleType::E4M3),
            (Element::KQuant(_), _) => Some(ScaleType::Nested),
            _ => Some(ScaleType::E8M0),
        }
    }
    /// Scales that one group stores: N for `binaryN`, 2 for `uintW:gN,offset` (the offset follows the scale), the
    /// bytes of a block of a K-quant, else 1.
    pub const fn scales_per_group(self) -> usize {
        match self.element {
            Element::Binary { levels } => levels as usize,
            Element::Affine { .. } => 2,
            Element::KQuant(kind) => kind.scale_bytes(),
            _ => 1,
        }
    }
    /// True where scales may be negative (`intW:gN,full`, `uintW:gN,offset`).
    pub const fn has_signed_scales(self) -> bool {
        matches!(self.element, Element::FullRange { .. } | Element::Affine { .. })
    }
    /// True for formats of other packages' files that nothing is encoded in: K-quants.
    pub const fn is_carried(self) -> bool {
        self.instead().is_some()
    }
    /// The format of as many bits that values are encoded in, where nothing is encoded in this one.
    pub const fn instead(self) -> Option<&'static str> {
        let Element::KQuant(kind) = self.element else { return None };
        Some(match kind {
            KQuant::Q2 => "uint2:g32,offset",
            KQuant::Q3 => "int3:g32,full",
            KQuant::Q4 => "uint4:g32,offset",
            KQuant::Q5 => "uint5:g32,offset",
            KQuant::Q6 => "int6:g32",
        })
    }
    /// True where values are codes times a scale plus an offset of their group (`uintW:gN,offset`, K-quants).
    pub const fn has_offsets(self) -> bool {
        matches!(self.element, Element::Affine { .. } | Element::KQuant(_))
    }
    /// True where each group stores a zero point (`uintW`).
    pub const fn has_zeros(self) -> bool {
        matches!(self.element, Element::Int { signed: false, .. })
    }
    /// True where the tensor stores a second-level scale (`nvfp4`).
    pub const fn has_levels(self) -> bool {
        matches!(self.element, Element::NvFp4)
    }
    /// True for formats whose scale belongs to a block of a row, to which the scale rules apply.
    pub const fn is_block(self) -> bool {
        matches!(self.scale_type(), Some(ScaleType::E8M0 | ScaleType::E4M3))
    }
    /// True where `encode` can store NaN (`nonfinite="nan"`).
    pub const fn has_nan(self) -> bool {
        match self.element {
            Element::Native(_) | Element::MxInt { .. } | Element::MxFloat(_) => true,
            Element::Minifloat(float) => !matches!(float.specials, Specials::Finite),
            _ => false,
        }
    }
    /// The code that stores NaN: all exponent and mantissa bits set; 0 where no element can.
    pub const fn nan_code(self) -> u32 {
        match self.element {
            Element::Native(_) => (1 << (self.width() - 1)) - 1,
            Element::Minifloat(float) if !matches!(float.specials, Specials::Finite) => (1 << (self.width() - 1)) - 1,
            _ => 0,
        }
    }
    /// Groups in a row of `k` elements: 0 without scales, 1 for `:channel`; `:tensor` has one group in all.
    pub const fn groups_per_row(self, k: usize) -> usize {
        match self.granularity {
            Granularity::None | Granularity::Tensor => 0,
            Granularity::Channel => 1,
            Granularity::Block(block) => k.div_ceil(block as usize),
        }
    }
    /// Bytes of a row of `k` codes: `ceil(k * width / 8)`.
    ///
    /// # Errors
    /// [`Error::Shape`] where the number does not fit.
    pub fn row_bytes(self, k: usize) -> Result<usize> {
        packed_bytes(k, self.width())
    }
}

/// Bytes of `count` codes of `width` bits, packed densely from one byte boundary to the next.
///
/// # Errors
/// [`Error::Shape`] where the number of bits does not fit.
pub fn packed_bytes(count: usize, width: u32) -> Result<usize> {
    count
        .checked_mul(width as usize)
        .map(|bits| bits.div_ceil(8))
        .ok_or_else(|| ShapeError::TooManyCodes { count, width }.into())
}

impl std::str::FromStr for Format {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        Self::parse(text)
    }
}

impl serde::Serialize for Format {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for Format {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}
