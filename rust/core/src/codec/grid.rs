//! The scalar reference: the value of each code at scale 1, and the nearest code of a value. Tests compare every fast path
//! with this file.

use crate::float::{exp2, floor_log2};
use crate::format::{Element, Format, Minifloat, Specials};

/// Levels of `nf4`: quantiles of N(0, 1), normalized to [-1, 1], with an exact zero. Source: QLoRA, appendix E.
pub(crate) const NF4: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// Levels of `nf3`, by the same construction with 4 positive and 3 negative quantiles (offset 0.933 035 7).
pub(crate) const NF3: [f32; 8] =
    [-1.0, -0.535_022_74, -0.246_931_43, 0.0, 0.183_337_48, 0.381_993_95, 0.622_985_7, 1.0];

/// How the number of a code is laid out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Integers {
    /// Signed or unsigned integers as they are.
    TwosComplement,
    /// Sign bit and magnitude.
    SignMagnitude,
    /// Code = number + zero point.
    Offset,
}

/// A floating-point grid: magnitudes `k * 2^(e - mantissa)`, `e >= emin`, up to `top`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FloatGrid {
    /// Fraction bits next to an implicit one.
    pub mantissa: u32,
    /// Exponent of the smallest binade with an implicit one; below it the step stays the same.
    pub emin: i32,
    /// Largest finite magnitude.
    pub top: f64,
    /// Bits of a code.
    pub width: u32,
    /// Codes that are no finite numbers.
    pub specials: Specials,
    /// `denorm`: the mantissa field has no implicit one.
    pub explicit_one: bool,
    /// Without mantissa bits a tie goes to the even exponent field: `field = exponent + parity` (mod 2).
    pub ties_by_field: bool,
}

/// The numbers that codes stand for at scale 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Grid {
    /// Integers `lo..=hi` (for [`Integers::Offset`]: codes `0..=hi`).
    Integer {
        /// Smallest integer an encoder writes.
        lo: i64,
        /// Largest one.
        hi: i64,
        /// How integers become codes.
        layout: Integers,
    },
    /// Integers `lo..=hi` times a step with a sign, plus an offset: `intW:gN,full`, two's complement, and
    /// `uintW:gN,offset`.
    Affine {
        /// Smallest integer.
        lo: i32,
        /// Largest one.
        hi: i32,
    },
    /// Floating-point numbers.
    Float(FloatGrid),
    /// Sorted levels; the code is the index.
    Book(&'static [f32]),
    /// Sums of signed levels, which belong to the group's scale.
    Levels(u8),
}

impl FloatGrid {
    pub(crate) fn mini(float: Minifloat) -> Self {
        Self {
            mantissa: u32::from(float.mantissa),
            emin: float.emin(),
            top: float.largest(),
            width: float.width(),
            specials: float.specials,
            explicit_one: false,
            ties_by_field: float.mantissa == 0,
        }
    }
    /// All-finite grid with the exponent of its top binade at 0, for shared biases.
    fn shared(width: u32, exponent: u32) -> Self {
        let mantissa = width - 1 - exponent;
        Self {
            mantissa,
            emin: 2 - (1 << exponent),
            top: 2.0 - exp2(-(mantissa as i32)),
            width,
            specials: Specials::Finite,
            explicit_one: false,
            ties_by_field: mantissa == 0,
        }
    }
    /// Nearest magnitude on the grid; `y` is not negative and not NaN.
    fn round(&self, y: f64) -> f64 {
        if y >= self.top {
            return self.top;
        }
        if self.ties_by_field {
            return self.round_to_power(y);
        }
        let e = if y > 0.0 { floor_log2(y).max(self.emin) } else { self.emin };
        let step = exp2(e - self.mantissa as i32);
        ((y / step).round_ties_even() * step).min(self.top)
    }
    /// Zero and powers of two: the threshold is the mean of neighbours; ties go to the even field, zero's being 0.
    fn round_to_power(&self, y: f64) -> f64 {
        let low = exp2(self.emin);
        if y < low {
            return if y > low / 2.0 { low } else { 0.0 };
        }
        let e = floor_log2(y);
        let field = e - self.emin + 1;
        let threshold = 1.5 * exp2(e);
        let up = y > threshold || (y == threshold && field % 2 == 1);
        exp2(e + i32::from(up)).min(self.top)
    }
    /// Code of a magnitude that lies on the grid, without sign.
    fn code(&self, r: f64) -> u32 {
        let m = self.mantissa;
        let e = if r > 0.0 { floor_log2(r).max(self.emin) } else { self.emin };
        let k = (r / exp2(e - m as i32)) as u32; // implicit one included
        let field = (e - self.emin) as u32;
        if self.explicit_one { (field << (m + 1)) | k } else { (field << m) + k }
    }
    /// Index of the largest magnitude among all of them, in ascending order from zero.
    pub fn top_index(&self) -> u32 {
        let e = floor_log2(self.top).max(self.emin);
        let k = (self.top / exp2(e - self.mantissa as i32)) as u32;
        (((e - self.emin) as u32) << self.mantissa) + k
    }
    /// Value of a code; infinities and NaN where the format has them.
    pub(crate) fn value(&self, code: u32) -> f64 {
        let m = self.mantissa;
        let magnitude = code & ((1 << (self.width - 1)) - 1);
        let value = if self.explicit_one {
            let field = (magnitude >> (m + 1)) as i32;
            f64::from(magnitude & ((2 << m) - 1)) * exp2(self.emin + field - m as i32)
        } else {
            let field = (magnitude >> m) as i32;
            let fraction = magnitude & ((1 << m) - 1);
            let ones = magnitude + 1 == 1 << (self.width - 1);
            let top_field = field == (1 << (self.width - 1 - m)) - 1;
            match self.specials {
                Specials::NanOnly if ones => f64::NAN,
                Specials::Ieee if top_field && fraction == 0 => f64::INFINITY,
                Specials::Ieee if top_field => f64::NAN,
                _ if field == 0 => f64::from(fraction) * exp2(self.emin - m as i32),
                _ => f64::from((1 << m) | fraction) * exp2(self.emin + field - 1 - m as i32),
            }
        };
        if code >> (self.width - 1) == 1 { -value } else { value }
    }
}

impl Grid {
    /// The grid of a format's elements.
    pub fn of(format: Format) -> Self {
        let symmetric = |w: u32| (1i64 << (w - 1)) - 1;
        let width = format.width();
        match format.element() {
            Element::Native(float) | Element::Minifloat(float) | Element::MxFloat(float) => {
                Self::Float(FloatGrid::mini(float))
            }
            Element::NvFp4 => Self::Float(FloatGrid::mini(Minifloat::standard(2, 1))),
            Element::Fixed { signed: true, .. } => {
                Self::Integer { lo: -symmetric(width) - 1, hi: symmetric(width), layout: Integers::TwosComplement }
            }
            Element::Fixed { .. } => Self::Integer { lo: 0, hi: (1 << width) - 1, layout: Integers::TwosComplement },
            Element::Int { signed: true, .. } | Element::MxInt { .. } | Element::Ternary => {
                Self::Integer { lo: -symmetric(width), hi: symmetric(width), layout: Integers::TwosComplement }
            }
            Element::Int { .. } => Self::Integer { lo: 0, hi: (1 << width) - 1, layout: Integers::Offset },
            Element::KQuant(kind) if !kind.is_signed() => Self::Affine { lo: 0, hi: (1 << width) - 1 },
            Element::FullRange { .. } | Element::KQuant(_) => {
                Self::Affine { lo: -(1 << (width - 1)), hi: (1 << (width - 1)) - 1 }
            }
            Element::Affine { .. } => Self::Affine { lo: 0, hi: (1 << width) - 1 },
            Element::Bfp { .. } => {
                Self::Integer { lo: -symmetric(width), hi: symmetric(width), layout: Integers::SignMagnitude }
            }
            Element::Denorm { exponent, bias, .. } => {
                let m = width - 1 - u32::from(exponent);
                let etop = (1i32 << exponent) - 1 - i32::from(bias);
                Self::Float(FloatGrid {
                    mantissa: m - 1,
                    emin: -i32::from(bias) - 1,
                    top: exp2(etop) * (1.0 - exp2(-(m as i32))),
                    width,
                    specials: Specials::Finite,
                    explicit_one: true,
                    ties_by_field: false,
                })
            }
            Element::Log { bias, .. } => {
                let exponent = (width - 1) as u8;
                Self::Float(FloatGrid::mini(Minifloat { exponent, mantissa: 0, bias, specials: Specials::Finite }))
            }
            Element::BlockMinifloat { exponent, .. } => Self::Float(FloatGrid::shared(width, u32::from(exponent))),
            Element::BlockLog { .. } => Self::Float(FloatGrid::shared(width, width - 1)),
            Element::NormalFloat { width: 3 } => Self::Book(&NF3),
            Element::NormalFloat { .. } => Self::Book(&NF4),
            Element::Binary { levels } => Self::Levels(levels),
        }
    }
}

/// A group's scale, ready for arithmetic: `value = number * step`, plus the offset where there is one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct GroupScale {
    /// Step; exact for powers of two and float32 values alike. Zero for an all-zero group.
    pub(crate) step: f64,
    /// Zero point (`uintW`), else 0.
    pub(crate) zero: i32,
    /// What is added (`uintW:gN,offset`), else 0.
    pub(crate) offset: f64,
    /// Scales of the levels (`binaryN`), first level first.
    pub(crate) levels: [f32; 4],
}

impl GroupScale {
    /// A plain step without zero point or levels.
    pub(crate) const fn step(step: f64) -> Self {
        Self { step, zero: 0, offset: 0.0, levels: [0.0; 4] }
    }
}

/// Value of a code of `binaryN`: signed levels, added in float32 from the first to the last.
pub(crate) fn level_sum(code: u32, count: u8, levels: &[f32; 4]) -> f32 {
    let mut sum = 0.0;
    for (i, &level) in levels.iter().take(usize::from(count)).enumerate() {
        let negative = code >> (usize::from(count) - 1 - i) & 1 == 1;
        let signed = if negative { -level } else { level };
        sum = if i == 0 { signed } else { (sum + signed).clamp(-f32::MAX, f32::MAX) };
    }
    sum
}

/// The code nearest to `x`, which is finite, in a group with scale `scale`.
pub(crate) fn encode_element(grid: &Grid, width: u32, x: f32, scale: &GroupScale) -> u32 {
    let mask = u32::MAX >> (32 - width);
    match *grid {
        Grid::Levels(count) => return nearest_level(x, count, &scale.levels),
        Grid::Affine { lo, hi } => return nearest_affine(x, lo, hi, scale) as u32 & mask,
        _ => {}
    }
    // At scale 0 everything is zero; the quotient of float32 numbers is never rounded onto a tie in float64.
    let y = if scale.step == 0.0 { 0.0 } else { f64::from(x) / scale.step };
    match *grid {
        Grid::Integer { lo, hi, layout } => {
            let z = f64::from(scale.zero);
            let k = (y.round_ties_even() + z).clamp(lo as f64, hi as f64) as i64;
            match layout {
                Integers::SignMagnitude if k < 0 => (1 << (width - 1)) | k.unsigned_abs() as u32,
                _ => k as u32 & mask,
            }
        }
        Grid::Float(float) => {
            let sign = u32::from(y.is_sign_negative());
            let code = float.code(float.round(y.abs()));
            if code == 0 { 0 } else { code | (sign << (width - 1)) }
        }
        Grid::Book(levels) => {
            let above = levels.windows(2).enumerate().filter(|(i, pair)| {
                let threshold = (f64::from(pair[0]) + f64::from(pair[1])) / 2.0;
                y > threshold || (y == threshold && i % 2 == 1)
            });
            above.count() as u32
        }
        Grid::Levels(_) | Grid::Affine { .. } => 0,
    }
}

/// The integer of `lo..=hi` whose exact `k * step + offset` is nearest to `x`; ties go to the even one.
fn nearest_affine(x: f32, lo: i32, hi: i32, scale: &GroupScale) -> i32 {
    if scale.step == 0.0 {
        return 0;
    }
    // Two-sum: `far + error` is the exact distance to the offset. Under a negative step both change their signs.
    let sign = 1f64.copysign(scale.step);
    let (x, offset, step) = (sign * f64::from(x), -sign * scale.offset, scale.step.abs());
    let far = x + offset;
    let part = far - x;
    let error = (x - (far - part)) + (offset - part);
    // At most one off: a half of the step times an odd integer is a float64, so each threshold is compared exactly.
    let k = (far / step).round_ties_even().clamp(f64::from(lo), f64::from(hi));
    let beyond =
        |threshold: f64, tie: bool| far > threshold || (far == threshold && (error > 0.0 || error == 0.0 && tie));
    let k = k as i32;
    let odd = k & 1 == 1;
    if k < hi && beyond((f64::from(k) + 0.5) * step, odd) {
        k + 1
    } else if k > lo && !beyond((f64::from(k) - 0.5) * step, !odd) {
        k - 1
    } else {
        k
    }
}

/// The sums of signed levels in ascending order, each with the smallest code that gives it.
pub(crate) fn sorted_sums(count: u8, levels: &[f32; 4]) -> ([f32; 16], [u8; 16]) {
    let n = 1usize << count;
    let mut listed = [(f32::INFINITY, 0u8); 16];
    for (code, entry) in listed.iter_mut().enumerate().take(n) {
        *entry = (level_sum(code as u32, count, levels), code as u8);
    }
    listed[..n].sort_unstable_by(|a, b| (a.0 + 0.0).total_cmp(&(b.0 + 0.0)).then(a.1.cmp(&b.1)));
    for i in 1..n {
        if listed[i].0 == listed[i - 1].0 {
            listed[i].1 = listed[i - 1].1;
        }
    }
    (listed.map(|entry| entry.0), listed.map(|entry| entry.1))
}

/// True where `x` is not below the exact mean of `lower` and `upper`, which may lie far apart.
pub(crate) fn reaches_mean(x: f32, lower: f32, upper: f32) -> bool {
    // Two-sum: `twice + error` is the exact sum.
    let (lower, upper, x) = (f64::from(lower), f64::from(upper), 2.0 * f64::from(x));
    let twice = lower + upper;
    let part = twice - lower;
    let error = (lower - (twice - part)) + (upper - part);
    x > twice || (x == twice && error <= 0.0)
}

/// Nearest of the `2^count` sums of signed levels; ties go to the larger value, equal values to the smaller code.
fn nearest_level(x: f32, count: u8, levels: &[f32; 4]) -> u32 {
    let (sums, codes) = sorted_sums(count, levels);
    let above = sums[..1 << count].windows(2).filter(|pair| reaches_mean(x, pair[0], pair[1]));
    u32::from(codes[above.count()])
}

/// The value of a code, rounded once to float32.
pub(crate) fn decode_element(grid: &Grid, width: u32, code: u32, scale: &GroupScale) -> f32 {
    let number = match *grid {
        Grid::Integer { layout: Integers::TwosComplement, lo, .. } if lo < 0 => {
            f64::from(((code << (32 - width)) as i32) >> (32 - width))
        }
        Grid::Integer { layout: Integers::SignMagnitude, .. } => {
            let magnitude = f64::from(code & !(1 << (width - 1)));
            if code >> (width - 1) == 1 { -magnitude } else { magnitude }
        }
        Grid::Integer { .. } => f64::from(code) - f64::from(scale.zero),
        // Exact: 8 bits times 11, plus 11, all of them multiples of 2^-24. Zero has no sign.
        Grid::Affine { lo, .. } => {
            let k = if lo < 0 { ((code << (32 - width)) as i32) >> (32 - width) } else { code as i32 };
            return crate::float::to_f32_saturating(f64::from(k) * scale.step + scale.offset);
        }
        Grid::Float(float) => float.value(code),
        Grid::Book(levels) => f64::from(levels[code as usize]),
        Grid::Levels(count) => return level_sum(code, count, &scale.levels),
    };
    crate::float::to_f32_saturating(number * scale.step)
}

impl Grid {
    /// Lowest and highest number at scale 1; infinite where the group's levels decide.
    pub fn range(&self) -> (f64, f64) {
        range(self, &GroupScale::step(1.0))
    }
}

/// Lowest and highest representable value of a group, in float64.
pub(crate) fn range(grid: &Grid, scale: &GroupScale) -> (f64, f64) {
    let (lo, hi) = match *grid {
        Grid::Integer { lo, hi, .. } => (lo as f64 - f64::from(scale.zero), hi as f64 - f64::from(scale.zero)),
        Grid::Affine { lo, hi } => {
            let ends = [lo, hi].map(|k| f64::from(k) * scale.step + scale.offset);
            return (ends[0].min(ends[1]), ends[0].max(ends[1]));
        }
        Grid::Float(float) => (-float.top, float.top),
        Grid::Book(levels) => (f64::from(levels[0]), f64::from(levels[levels.len() - 1])),
        Grid::Levels(_) => return (f64::NEG_INFINITY, f64::INFINITY),
    };
    (lo * scale.step, hi * scale.step)
}
