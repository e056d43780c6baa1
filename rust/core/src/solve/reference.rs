//! The scalar reference of the solvers: rounding to a format's numbers, one row of GPTQ, and the error of a group.
//!
//! It calls nothing fast. The dispatch in `gptq` and `fit` calls it at the level `scalar`; at the others sixteen rows, or
//! sixteen elements of a group, go through the same rounding side by side, which gives the same bits.

use super::operands::{ELIMINATED, Moments, Numbers, Query, Sixteen, Tile};
use crate::codec::grid::{GroupScale, level_sum};
use crate::float::{LANES, to_f32_saturating, tree_sum};

/// Residuals, in units, below which the p-norm continues as a parabola.
pub(super) const SMALLEST: f32 = 1e-3;
/// Elements whose sums are taken in float32.
pub(super) const EXACT: usize = 4096;

/// The integer in `lo..=hi` nearest to `u`.
#[inline(always)]
pub(super) fn integer(u: f32, lo: f32, hi: f32) -> f32 {
    let k = u.round_ties_even();
    let k = if k > lo { k } else { lo };
    if k < hi { k } else { hi }
}

/// The float of `23 - drop` mantissa bits nearest to `u`, at most `top`; below `smallest` the step stays the same, and
/// adding `magic` rounds to it.
#[inline(always)]
pub(super) fn float(u: f32, drop: u32, smallest: f32, magic: f32, top: f32) -> f32 {
    let bits = u.to_bits() & 0x7fff_ffff;
    let magnitude = f32::from_bits(bits);
    let odd = (bits >> drop) & 1;
    let whole = (bits + ((1 << (drop - 1)) - 1) + odd) & (u32::MAX << drop);
    let near = (magnitude + magic) - magic;
    let rounded = if magnitude < smallest { near } else { f32::from_bits(whole) };
    let clipped = if rounded < top { rounded } else { top };
    f32::from_bits(clipped.to_bits() | (u.to_bits() & 0x8000_0000))
}

/// The levels of a code book, the last one repeated, and the middles above which the next one is nearer.
#[inline(always)]
pub(super) fn book(levels: &[f32]) -> ([f32; 16], [f32; 15]) {
    let at = |i: usize| levels[i.min(levels.len() - 1)];
    let middle = |i: usize| if i + 1 < levels.len() { 0.5 * (at(i) + at(i + 1)) } else { f32::INFINITY };
    (std::array::from_fn(at), std::array::from_fn(middle))
}

/// The level of a code book nearest to `u`.
#[inline(always)]
pub(super) fn level(u: f32, levels: &[f32; 16], middles: &[f32; 15]) -> f32 {
    let mut number = levels[0];
    for i in 0..15 {
        number = if u > middles[i] { levels[i + 1] } else { number };
    }
    number
}

/// The one of two numbers nearest to `u`; the first where both are as near.
#[inline(always)]
pub(super) fn nearer(u: f32, number: f32, other: f32) -> f32 {
    if (u - other).abs() < (u - number).abs() { other } else { number }
}

/// `v^p` of a normal positive number, to 5e-5 of itself: powers only weigh errors here.
#[inline(always)]
pub(super) fn power(v: f32, p: f32) -> f32 {
    exp2(p * log2(v))
}

/// Polynomials of least error at Chebyshev points.
const LOG2: [f32; 6] = [-2.794_153_7, 5.069_756_5, -3.520_218_8, 1.610_177_5, -0.409_475_6, 0.043_928_627];
const EXP2: [f32; 5] = [1.0, 0.693_121, 0.240_221_08, 0.055_922_035, 0.009_676_037];

#[inline(always)]
fn polynomial<const N: usize>(x: f32, terms: &[f32; N]) -> f32 {
    terms.iter().rev().fold(0.0, |sum, term| sum * x + term)
}

#[inline(always)]
fn log2(v: f32) -> f32 {
    let bits = v.to_bits();
    let exponent = (bits >> 23) as i32 - 127;
    exponent as f32 + polynomial(f32::from_bits((bits & 0x007f_ffff) | 0x3f80_0000), &LOG2)
}

#[inline(always)]
fn exp2(v: f32) -> f32 {
    let v = if v > -126.0 { v } else { -126.0 };
    let v = if v < 126.0 { v } else { 126.0 };
    // Adding 1.5 * 2^23 leaves the nearest integer in the low bits.
    let shifted = v + 12_582_912.0;
    let whole = shifted - 12_582_912.0;
    let scale = f32::from_bits(shifted.to_bits().wrapping_sub(0x4b40_0000).wrapping_add(127) << 23);
    scale * polynomial(v - whole, &EXP2)
}

/// Step and its inverse, both finite. A group of zeros has step 0, and everything in it becomes 0.
pub(super) fn step_and_inverse(scale: &GroupScale) -> (f32, f32) {
    let step = to_f32_saturating(scale.step);
    (step, if step == 0.0 { 0.0 } else { (1.0 / step).clamp(-f32::MAX, f32::MAX) })
}

/// The number of a format nearest to `u`, which is in steps of `scale`, counted from its offset.
pub(super) fn nearest(numbers: &Numbers, scale: &GroupScale, u: f32) -> f32 {
    match *numbers {
        Numbers::All => u,
        Numbers::Integers { lo, hi } => integer(u, lo - scale.zero as f32, hi - scale.zero as f32),
        Numbers::Floats { drop, smallest, magic, top } => float(u, drop, smallest, magic, top),
        Numbers::Book(levels) => {
            let (levels, middles) = book(levels);
            level(u, &levels, &middles)
        }
        Numbers::Sums(count) => {
            let sums = (0..1u32 << count).map(|code| level_sum(code, count, &scale.levels));
            sums.reduce(|number, other| nearer(u, number, other)).unwrap_or(0.0)
        }
    }
}

/// One row of a block of GPTQ, as [`super::Block`] describes it.
pub(super) struct Row<'a> {
    pub(super) values: &'a mut [f32],
    pub(super) errors: &'a mut [f32],
    /// Row k holds what the error of each column j < k adds to column k.
    pub(super) feedback: &'a [f32],
    pub(super) weights: &'a [f32],
    /// Group of each column.
    pub(super) groups: &'a [u32],
    /// Scales are chosen when a group is entered, from the values as they are then.
    pub(super) chosen: bool,
}

impl Row<'_> {
    /// Rounds the columns in order, feeding errors back; returns the weighted squared error. `scale` gives the scale of a
    /// group, of these values and columns.
    pub(super) fn solve(self, numbers: &Numbers, mut scale: impl FnMut(&[f32], &[f32], usize) -> GroupScale) -> f32 {
        let Self { values, errors, feedback, weights, groups, chosen } = self;
        let columns = groups.len();
        let feed = |v: f32, errors: &[f32], feedback: &[f32]| {
            errors.iter().zip(feedback).fold(v, |sum, (error, share)| sum + error * share)
        };
        let (mut current, mut loss) = (GroupScale::step(1.0), 0.0);
        let mut fed = 0; // errors of columns below this one are in the values of the group
        for k in 0..columns {
            if k == 0 || groups[k] != groups[k - 1] {
                let end = k + groups[k..].iter().take_while(|&&group| group == groups[k]).count();
                if chosen {
                    for c in k..end {
                        values[c] = feed(values[c], &errors[..k], &feedback[c * columns..]);
                    }
                    fed = k;
                }
                current = scale(&values[k..end], &weights[k..end], groups[k] as usize);
            }
            let (step, inverse) = step_and_inverse(&current);
            let offset = current.offset as f32;
            let v = feed(values[k], &errors[fed..k], &feedback[k * columns + fed..]);
            let q = nearest(numbers, &current, (v - offset) * inverse) * step + offset;
            loss += (v - q) * (v - q) * weights[k];
            errors[k] -= q;
            values[k] = q;
        }
        loss
    }
}

/// The error of a group under a scale, and the sums that tell a better one.
pub(super) fn measure(query: &Query<'_>, scale: &GroupScale) -> Moments {
    let (step, inverse) = step_and_inverse(scale);
    let (offset, ratio) = (scale.offset as f32, step / query.unit);
    let quadratic = query.power == 2.0;
    let mut all = Moments::default();
    for (piece, x) in query.x.chunks(EXACT).enumerate() {
        let mut sums = [[0.0f32; LANES]; Moments::COUNT];
        for (i, &x) in x.iter().enumerate() {
            let weight = query.weights.get(piece * EXACT + i).copied().unwrap_or(1.0);
            let u = (x - offset) * inverse;
            let c = nearest(query.numbers, scale, u);
            let r = (u - c).abs() * ratio;
            let bent = if r > SMALLEST { r } else { SMALLEST };
            let w = if quadratic { weight } else { power(bent, query.power - 2.0) * weight };
            let terms = [w * (r * r), w * c * c, w * c * u, weight * (r * r), w, w * c, w * u];
            for (sum, term) in sums.iter_mut().zip(terms) {
                sum[i % LANES] += term;
            }
        }
        all = all.plus(&Moments::of(sums.map(|lanes| f64::from(tree_sum(lanes)))));
    }
    all
}

/// The products of all elements of a line of `left` with all of the same line of `right`, added to the sums of a tile
/// line after line, or taken away.
pub(super) fn terms(sums: &mut Tile, left: &[Sixteen], right: &[Sixteen], take: bool) {
    for (left, right) in left.iter().zip(right) {
        for (sums, a) in sums.iter_mut().zip(left.0) {
            for (sum, b) in sums.0.iter_mut().zip(right.0) {
                if take { *sum -= a * b } else { *sum += a * b }
            }
        }
    }
}

/// Lines of a factor, by the block to the left of them: each over the pivot, then taken from those below.
pub(super) fn eliminate(lines: &mut [Sixteen], block: &[[f64; ELIMINATED]]) {
    for j in 0..lines.len() {
        let own = lines[j].0.map(|v| v / block[j][j]);
        lines[j].0 = own;
        for (line, a) in lines[j + 1..].iter_mut().zip(&block[j][j + 1..]) {
            for (v, own) in line.0.iter_mut().zip(own) {
                *v -= a * own;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_are_close() {
        for p in [-1.3f32, -0.3, 0.7, 1.0, 2.0] {
            for i in 0..2000 {
                let v = 1e-3 * 1.01f32.powi(i);
                let exact = f64::from(v).powf(f64::from(p));
                let got = f64::from(power(v, p));
                assert!((got / exact - 1.0).abs() < 6e-5, "{v}^{p}: {got} against {exact}");
            }
        }
    }
}
