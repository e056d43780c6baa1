//! The scalar reference of scales: statistics of a group, and the rule that turns them into the stored scale. FORMATS.md
//! section 3. It calls nothing fast: `lanes` answers the same queries, and is compared with it.

use crate::error::Result;
use crate::float::{LANES, exp2, floor_log2_bits, to_f16_saturating, tree_sum};
use crate::format::Minifloat;

use super::grid::{FloatGrid, Grid, GroupScale, encode_element, range};
use super::scale_search::{Chooser, ExponentRule, RawScale};

/// Elements per chunk: the unit of work, and of the fixed order in which float sums are taken.
pub(crate) const CHUNK: usize = 16_384;
/// Fraction bits that `fixedW:mse` tries.
pub(crate) const FRACTION_CANDIDATES: usize = 8;

/// The statistic of a group's values that a rule needs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Query {
    /// Largest magnitude.
    AbsMax,
    /// Smallest and largest value, 0 included.
    Range,
    /// Sum of `||..|x| - a_0| .. - a_l|`: magnitudes of what the given number of levels leaves over.
    Residual { levels: [f32; 4], count: u8 },
    /// Sum and number of magnitudes above a threshold.
    Above(f32),
    /// Squared error of fixed point with `first + i` fraction bits, for every candidate i.
    FixedError { first: i32, width: u32, signed: bool },
}

/// The answer; only the fields that belong to the query are filled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stat {
    pub(crate) absmax: u32,
    pub(crate) min: f32,
    pub(crate) max: f32,
    pub(crate) sum: f64,
    pub(crate) count: usize,
    pub(crate) errors: [f64; FRACTION_CANDIDATES],
}

impl Default for Stat {
    fn default() -> Self {
        Self { absmax: 0, min: 0.0, max: 0.0, sum: 0.0, count: 0, errors: [0.0; FRACTION_CANDIDATES] }
    }
}

impl Stat {
    /// Joins the answer of the next chunk.
    pub(crate) fn join(mut self, next: &Self) -> Self {
        self.absmax = self.absmax.max(next.absmax);
        self.min = self.min.min(next.min);
        self.max = self.max.max(next.max);
        self.sum += next.sum;
        self.count += next.count;
        for (sum, error) in self.errors.iter_mut().zip(next.errors) {
            *sum += error;
        }
        self
    }
}

/// Magnitude that is left after taking `count` levels off `x` by the residual rule.
pub(crate) fn residual(x: f32, levels: &[f32; 4], count: u8) -> f32 {
    let mut r = x;
    for &level in levels.iter().take(usize::from(count)) {
        r = if r < 0.0 { r + level } else { r - level };
    }
    r.abs()
}

/// Scalar answer to a query over one chunk of values without infinities; NaN takes no part.
pub(crate) fn stat_chunk(x: &[f32], query: &Query) -> Stat {
    let mut stat = Stat::default();
    match *query {
        Query::AbsMax => {
            let magnitudes = x.iter().filter(|v| !v.is_nan()).map(|v| v.to_bits() & 0x7fff_ffff);
            stat.absmax = magnitudes.max().unwrap_or(0);
        }
        Query::Range => {
            for &v in x {
                stat.min = stat.min.min(v);
                stat.max = stat.max.max(v);
            }
        }
        Query::Residual { levels, count } => {
            let mut lanes = [0.0; LANES];
            for (i, &v) in x.iter().enumerate() {
                if !v.is_nan() {
                    lanes[i % LANES] += f64::from(residual(v, &levels, count));
                    stat.count += 1;
                }
            }
            stat.sum = tree_sum(lanes);
        }
        Query::Above(threshold) => {
            let mut lanes = [0.0; LANES];
            for (i, &v) in x.iter().enumerate() {
                if v.abs() > threshold {
                    lanes[i % LANES] += f64::from(v.abs());
                    stat.count += 1;
                }
            }
            stat.sum = tree_sum(lanes);
        }
        Query::FixedError { first, width, signed } => {
            let (lo, hi) = if signed {
                (-exp2(width as i32 - 1), exp2(width as i32 - 1) - 1.0)
            } else {
                (0.0, exp2(width as i32) - 1.0)
            };
            for (i, error) in stat.errors.iter_mut().enumerate() {
                let (up, down) = (exp2(first + i as i32), exp2(-first - i as i32));
                let mut lanes = [0.0; LANES];
                for (j, &v) in x.iter().enumerate().filter(|(_, v)| !v.is_nan()) {
                    let q = (f64::from(v) * up).round_ties_even().clamp(lo, hi) * down;
                    lanes[j % LANES] += (f64::from(v) - q) * (f64::from(v) - q);
                }
                *error = tree_sum(lanes);
            }
        }
    }
    stat
}

/// Positive scale in its storage type: bits of a float32 or float16, never 0 for a group that is not all zero.
pub(crate) fn real_bits(scale: f64, float16: bool, all_zero: bool) -> u32 {
    let single = crate::float::to_f32_saturating(scale);
    let bits = if float16 { u32::from(to_f16_saturating(single)) } else { single.to_bits() };
    if all_zero { 0 } else { bits.max(1) }
}

/// Bits of the float16 nearest to a number with a sign, the largest one beyond them; never 0 unless `or_zero`.
pub(crate) fn signed_half(value: f64, or_zero: bool) -> u32 {
    let half = real_bits(value.abs(), true, false);
    match (value.abs() as f32, or_zero) {
        (magnitude, true) if to_f16_saturating(magnitude) == 0 => 0,
        // Of a quotient that vanished, too.
        _ => half | if value.is_sign_negative() { 0x8000 } else { 0 },
    }
}

/// The mean that a sum and a count give, rounded to float32.
fn mean(stat: &Stat) -> f32 {
    match (stat.sum / stat.count.max(1) as f64) as f32 {
        // Not all zero: the smallest positive number.
        0.0 if stat.sum > 0.0 => f32::from_bits(1),
        mean => mean,
    }
}

/// Chooses the scale of one group of finite values for all formats but blocks; `ask` answers queries about the group.
pub(crate) fn choose(
    chooser: &Chooser,
    float16: bool,
    mut ask: impl FnMut(&Query) -> Result<Stat>,
) -> Result<RawScale> {
    let mut raw = RawScale::default();
    match *chooser {
        Chooser::Symmetric { qmax } => {
            let absmax = ask(&Query::AbsMax)?.absmax;
            raw.bits[0] = real_bits(f64::from(f32::from_bits(absmax) / qmax), float16, absmax == 0);
        }
        Chooser::Asymmetric { qmax } => {
            let stat = ask(&Query::Range)?;
            let (min, max) = (f64::from(stat.min), f64::from(stat.max));
            raw.bits[0] = real_bits((max - min) / qmax, float16, min == max);
            let step = resolve_real(raw.bits[0], float16);
            if step > 0.0 {
                raw.zero = (-min / step).round_ties_even().clamp(0.0, qmax) as u16;
            }
        }
        Chooser::FullRange { most } => {
            let stat = ask(&Query::Range)?;
            // Of two values of one magnitude the negative one.
            let extreme = if -stat.min >= stat.max { stat.min } else { stat.max };
            raw.bits[0] = signed_half(f64::from(extreme / -most), extreme == 0.0);
        }
        Chooser::Affine { qmax } => {
            let stat = ask(&Query::Range)?;
            raw.bits[1] = signed_half(stat.min.into(), true);
            let least = resolve_real(raw.bits[1], true);
            raw.bits[0] = signed_half((f64::from(stat.max) - least).max(0.0) / qmax, stat.min == stat.max);
        }
        Chooser::Binary { levels } => {
            let mut found = [0.0f32; 4];
            for i in 0..levels {
                let a = mean(&ask(&Query::Residual { levels: found, count: i })?);
                found[usize::from(i)] = a;
                raw.bits[usize::from(i)] = a.to_bits();
            }
        }
        Chooser::Ternary => {
            let all = mean(&ask(&Query::Residual { levels: [0.0; 4], count: 0 })?);
            let a = mean(&ask(&Query::Above(0.75 * all))?);
            raw.bits[0] = if all > 0.0 { a.to_bits().max(1) } else { 0 };
        }
        Chooser::Fraction { width, signed, mse } => {
            let stat = ask(&if signed { Query::AbsMax } else { Query::Range })?;
            let largest = if signed { f32::from_bits(stat.absmax) } else { stat.max };
            let number = exp2(width as i32 - i32::from(signed)) - 1.0;
            let mut f = 0;
            if largest > 0.0 {
                // floor(log2 number) - floor(log2 largest) is the answer or one more than it.
                f = crate::float::floor_log2(number) - crate::float::floor_log2(f64::from(largest));
                if f64::from(largest) * exp2(f) > number {
                    f -= 1;
                }
                f = f.clamp(-128, 127);
                if mse {
                    let errors = ask(&Query::FixedError { first: f, width, signed })?.errors;
                    let mut best = 0;
                    for (i, &error) in errors.iter().enumerate() {
                        if f + i as i32 <= 127 && error < errors[best] {
                            best = i;
                        }
                    }
                    f += best as i32;
                }
            }
            raw.bits[0] = u32::from(f as i8 as u8);
        }
        Chooser::Unit(_) | Chooser::Exponent { .. } | Chooser::NvFp4 | Chooser::Carried => {}
    }
    Ok(raw)
}

/// A real scale from its bits.
pub(crate) fn resolve_real(bits: u32, float16: bool) -> f64 {
    if float16 { f64::from(half::f16::from_bits(bits as u16)) } else { f64::from(f32::from_bits(bits)) }
}

/// nvfp4's tensor scale: `absmax / (6 * 448)` in float32, never 0 unless all is zero.
pub(crate) fn nvfp4_tensor_scale(absmax: u32) -> f32 {
    f32::from_bits(real_bits(f64::from(f32::from_bits(absmax) / 2688.0), false, absmax == 0))
}

/// Default scale code of a block, from the bits of its largest magnitude; `tensor` is nvfp4's tensor scale.
#[inline(always)]
pub(crate) fn block_code(chooser: &Chooser, absmax: u32, tensor: f32) -> u8 {
    if absmax == 0 {
        return 0;
    }
    let exponent = match *chooser {
        Chooser::Exponent { default: ExponentRule::Floor { emax }, .. } => floor_log2_bits(absmax) - emax,
        Chooser::Exponent { default: ExponentRule::Fits { m }, .. } => {
            let e = floor_log2_bits(absmax) + 1;
            // At e, absmax * 2^(m-e) lies in [2^(m-1), 2^m): it fits unless it rounds up to 2^m.
            let scaled = f64::from(f32::from_bits(absmax)) * exp2(m as i32 - e);
            e + i32::from(scaled.round_ties_even() >= exp2(m as i32))
        }
        Chooser::Exponent { default: ExponentRule::NearestPower, .. } => {
            let e = floor_log2_bits(absmax);
            e + i32::from(f64::from(f32::from_bits(absmax)) >= 1.5 * exp2(e))
        }
        Chooser::NvFp4 => {
            let wanted = f32::from_bits(absmax) / (6.0 * tensor);
            return e4m3(wanted);
        }
        _ => return 0,
    };
    (exponent + 127).clamp(0, 254) as u8
}

/// Code of the E4M3 number nearest to a finite value that is not negative.
fn e4m3(value: f32) -> u8 {
    let grid = Grid::of_minifloat(Minifloat::standard(4, 3));
    encode_element(&grid, 8, value, &GroupScale::step(1.0)) as u8
}

impl Grid {
    pub(crate) fn of_minifloat(float: Minifloat) -> Self {
        Self::Float(FloatGrid::mini(float))
    }
}

/// The scale that a block's stored code stands for; NaN for code 255 of a shared exponent.
#[inline(always)]
pub(crate) fn block_step(chooser: &Chooser, code: u8, tensor: f32) -> f64 {
    match *chooser {
        Chooser::Exponent { .. } if code == 255 => f64::NAN,
        Chooser::Exponent { shift, .. } => exp2(i32::from(code) - 127 - shift),
        // g * scale is a float32 product (FORMATS.md section 3).
        Chooser::NvFp4 => {
            let product = tensor * e4m3_value(code);
            f64::from(if product.is_infinite() { f32::MAX.copysign(product) } else { product })
        }
        _ => 1.0,
    }
}

/// Value of an E4M3 code.
pub(crate) fn e4m3_value(code: u8) -> f32 {
    let grid = Grid::of_minifloat(Minifloat::standard(4, 3));
    super::grid::decode_element(&grid, 8, u32::from(code), &GroupScale::step(1.0))
}

/// Largest scale code an encoder writes.
pub(crate) const fn largest_code(chooser: &Chooser) -> u8 {
    if matches!(chooser, Chooser::NvFp4) { 126 } else { 254 }
}

/// The code under `scale=ceil`: the smallest one with `absmax <= largest element * step`.
pub(crate) fn ceil_code(chooser: &Chooser, grid: &Grid, absmax: u32, tensor: f32, default: u8) -> u8 {
    let fits = |code: u8| {
        let (_, hi) = range(grid, &GroupScale::step(block_step(chooser, code, tensor)));
        f64::from(f32::from_bits(absmax)) <= hi
    };
    let mut code = default;
    while code > 0 && fits(code - 1) {
        code -= 1;
    }
    while code < largest_code(chooser) && !fits(code) {
        code += 1;
    }
    if absmax == 0 { 0 } else { code }
}

/// The candidates of `scale=mse` in order of preference: the default code, then the lower, then the higher neighbour.
pub(crate) fn mse_candidates(chooser: &Chooser, default: u8) -> [Option<u8>; 3] {
    let lowest = u8::from(matches!(chooser, Chooser::NvFp4));
    let lower = default.checked_sub(1).filter(|&code| code >= lowest);
    let higher = Some(default + 1).filter(|&code| code <= largest_code(chooser));
    [Some(default), lower, higher]
}

/// Squared error of a block, float32 throughout: errors times `inverse`, sixteen lanes by position, added as a tree.
pub(crate) fn block_error(x: &[f32], inverse: f32, mut quantized: impl FnMut(f32) -> f32) -> f32 {
    let mut lanes = [0.0f32; LANES];
    for (i, &v) in x.iter().enumerate() {
        let error = (v - quantized(v)) * inverse;
        lanes[i % LANES] += error * error;
    }
    tree_sum(lanes)
}
