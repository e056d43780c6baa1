//! Scales fitted to the values of a group: least sum of `weight * |x - q|^p` over all scales that were tried and that
//! do not raise the sum of squares.
//!
//! Real scales alternate between rounding and a weighted least-squares fit of the scale (and zero point) to the codes,
//! where the weight `|x - q|^(p - 2)` makes least squares descend on the p-norm (half-quadratic; Badri and Shaji 2023).
//! Scales with few values are tried one by one. The scale to start from stays unless another is better.

use super::operands::{Moments, Numbers, Query};
use super::reference::{self, EXACT, SMALLEST, power};
use super::round::{All, Book, Floats, Integers, Round, Scales, Sums, with_round};
use crate::codec::grid::GroupScale;
use crate::codec::group_scales::Work;
use crate::codec::scale::{mse_candidates, real_bits, resolve_real, signed_half};
use crate::codec::scale_search::{Chooser, RawScale};
use crate::float::to_f32_saturating;
use crate::float::tree_sum;
use crate::pool;
use crate::simd::LANES;
use crate::simd::{Floats as F, Job, Level, fast};

/// Steps below this have no exact inverse; their scales stay as they are.
const TINY: f32 = 64.0 * f32::MIN_POSITIVE;
/// Mean square of residuals, in steps, that rounding in float32 alone makes.
const NOISE: f64 = 1e-12;
/// Factor between the clipped scales that are tried, and how many are at most.
const SHRINK: f64 = 0.93;
const SHRINKS: usize = 14;
/// Elements that one thread sums up; longer groups go to several.
const LONG: usize = 16 * EXACT;

struct Measure<'a>(&'a Query<'a>, &'a GroupScale);

impl<L> Job<L> for Measure<'_> {
    type Output = Moments;
    #[inline(always)]
    fn run(self, _: L) -> Moments {
        measure_in_lanes(self.0, self.1)
    }
}

/// Error under a scale, and the sums that tell a better one.
fn measure(level: Level, query: &Query<'_>, scale: &GroupScale) -> Moments {
    fast(level, Measure(query, scale)).unwrap_or_else(|_| reference::measure(query, scale))
}

#[inline(always)]
fn measure_in_lanes(query: &Query<'_>, scale: &GroupScale) -> Moments {
    let scales = Scales::splat(query.numbers, scale);
    with_round!(query.numbers, &scales, |round| {
        let (inverse, offset) = (scales.inverse.0[0], scales.offset.0[0]);
        let units = Units { inverse, offset, ratio: scales.step.0[0] / query.unit };
        match (query.power == 2.0, query.affine) {
            (true, false) => measure_as::<_, false, false>(query, &units, &round),
            (true, true) => measure_as::<_, false, true>(query, &units, &round),
            (false, false) => measure_as::<_, true, false>(query, &units, &round),
            (false, true) => measure_as::<_, true, true>(query, &units, &round),
        }
    })
}

#[inline(always)]
fn measure_as<R: Round, const LP: bool, const AFFINE: bool>(query: &Query<'_>, units: &Units, round: &R) -> Moments {
    let Query { x, weights, power, .. } = *query;
    let ones = F::splat(1.0);
    let mut all = Moments::default();
    for start in (0..x.len()).step_by(EXACT) {
        let end = (start + EXACT).min(x.len());
        let mut sums = [F::splat(0.0); Moments::COUNT];
        let (whole, rest) = x[start..end].as_chunks::<LANES>();
        if weights.is_empty() {
            for x in whole {
                add_to::<R, LP, AFFINE>(&mut sums, x, &ones.0, units, power, round);
            }
            if !rest.is_empty() {
                let weights = F::part(&ones.0[..rest.len()]);
                add_to::<R, LP, AFFINE>(&mut sums, &F::part(rest).0, &weights.0, units, power, round);
            }
        } else {
            let (whole_weights, rest_weights) = weights[start..end].as_chunks::<LANES>();
            for (x, weights) in whole.iter().zip(whole_weights) {
                add_to::<R, LP, AFFINE>(&mut sums, x, weights, units, power, round);
            }
            if !rest.is_empty() {
                let weights = F::part(rest_weights);
                add_to::<R, LP, AFFINE>(&mut sums, &F::part(rest).0, &weights.0, units, power, round);
            }
        }
        let mut part = Moments::of(sums.map(|lanes| f64::from(tree_sum(lanes.0))));
        if !LP {
            part.square = part.error;
        }
        all = all.plus(&part);
    }
    all
}

/// From values to steps, and from steps to the unit of errors.
struct Units {
    inverse: f32,
    offset: f32,
    ratio: f32,
}

/// Adds sixteen elements to the sums.
#[inline(always)]
fn add_to<R: Round, const LP: bool, const AFFINE: bool>(
    sums: &mut [F; Moments::COUNT],
    x: &[f32; LANES],
    weights: &[f32; LANES],
    units: &Units,
    p: f32,
    round: &R,
) {
    let [error, cc, uc, squares, sum_w, sum_c, sum_u] = sums;
    for lane in 0..LANES {
        let u = (x[lane] - units.offset) * units.inverse;
        let c = round.round(u, lane);
        let r = (u - c).abs() * units.ratio;
        let square = r * r;
        let w =
            if LP { power(if r > SMALLEST { r } else { SMALLEST }, p - 2.0) * weights[lane] } else { weights[lane] };
        error.0[lane] += w * square;
        cc.0[lane] += w * c * c;
        uc.0[lane] += w * c * u;
        if LP {
            squares.0[lane] += weights[lane] * square;
        }
        if AFFINE {
            sum_w.0[lane] += w;
            sum_c.0[lane] += w * c;
            sum_u.0[lane] += w * u;
        }
    }
}

/// A scale and what it costs.
#[derive(Clone, Copy)]
struct Tried {
    raw: RawScale,
    moments: Moments,
}

impl Tried {
    /// Less error than `best` has, and no more squared error than `start`: a norm with p below 2 alone would clip large
    /// values, which matter to products.
    fn beats(&self, best: &Self, start: &Self) -> bool {
        self.moments.error < best.moments.error && self.moments.square <= start.moments.square
    }
}

/// Fits the scales of one format's groups.
#[derive(Clone, Copy)]
pub(super) struct Fit<'a> {
    pub(super) work: &'a Work,
    pub(super) numbers: &'a Numbers,
    /// The norm's p, above 0 and up to 2.
    pub(super) power: f32,
    /// Most refits of a real scale.
    pub(super) iterations: usize,
}

impl Fit<'_> {
    /// The best scale found for `x`, at least as good as `start`. `weights`: one for each value, or none.
    pub(super) fn best(&self, x: &[f32], weights: &[f32], start: RawScale) -> RawScale {
        let (numbers, power) = (self.numbers, self.power);
        let affine = matches!(self.work.chooser, Chooser::Asymmetric { .. } | Chooser::Affine { .. });
        let unit = to_f32_saturating(self.work.resolve(&start).step);
        if unit.abs() < TINY {
            return start;
        }
        let query = Query { x, weights, numbers, power, affine, unit };
        match self.work.chooser {
            Chooser::Unit(_) | Chooser::Carried => start,
            Chooser::Exponent { .. } => {
                let codes = mse_candidates(&self.work.chooser, start.bits[0] as u8).into_iter().flatten();
                self.best_of(&query, start, codes.map(RawScale::code))
            }
            Chooser::NvFp4 => {
                let code = start.bits[0] as u8;
                self.best_of(&query, start, (code.saturating_sub(4).max(1)..=(code + 2).min(126)).map(RawScale::code))
            }
            Chooser::Fraction { .. } => {
                let first = i32::from(start.bits[0] as u8 as i8);
                let codes = (first..=(first + 4).min(127)).map(|f| RawScale::code(f as i8 as u8));
                self.best_of(&query, start, codes)
            }
            _ => self.best_real(&query, start),
        }
    }

    fn measure(&self, query: &Query<'_>, raw: RawScale) -> Tried {
        let (scale, level) = (self.work.resolve(&raw), self.work.level);
        if query.x.len() <= LONG {
            return Tried { raw, moments: measure(level, query, &scale) };
        }
        let part = |i: usize| {
            let range = i * LONG..((i + 1) * LONG).min(query.x.len());
            let weights = if query.weights.is_empty() { &[] } else { &query.weights[range.clone()] };
            measure(level, &Query { x: &query.x[range], weights, ..*query }, &scale)
        };
        let parts = query.x.len().div_ceil(LONG);
        // Threads or not, sums are added in the same order.
        let moments = pool::map(parts, query.x.len() * 4, part).unwrap_or_else(|_| (0..parts).map(part).collect());
        Tried { raw, moments: moments.iter().fold(Moments::default(), |sum, part| sum.plus(part)) }
    }

    fn best_of(&self, query: &Query<'_>, start: RawScale, others: impl Iterator<Item = RawScale>) -> RawScale {
        let start = self.measure(query, start);
        let mut best = start;
        for raw in others.filter(|raw| *raw != start.raw) {
            let tried = self.measure(query, raw);
            if tried.beats(&best, &start) {
                best = tried;
            }
        }
        best.raw
    }

    fn best_real(&self, query: &Query<'_>, start: RawScale) -> RawScale {
        let start = self.measure(query, start);
        if start.moments.square <= NOISE * query.x.len() as f64 {
            return start.raw;
        }
        let mut best = start;
        let (mut factor, mut misses) = (1.0, 0);
        for _ in 0..SHRINKS {
            factor *= SHRINK;
            let tried = self.measure(query, self.times(&start.raw, factor));
            if tried.beats(&best, &start) {
                (best, misses) = (tried, 0);
            } else {
                misses += 1;
            }
            if misses == 2 {
                break;
            }
        }
        for _ in 0..self.iterations {
            let Some(raw) = self.refit(&best.raw, &best.moments, query.affine) else { break };
            let tried = self.measure(query, raw);
            if !tried.beats(&best, &start) {
                break;
            }
            best = tried;
        }
        best.raw
    }

    /// The weighted least-squares scale for the numbers that a scale gave; none where it stays or degenerates.
    fn refit(&self, raw: &RawScale, m: &Moments, affine: bool) -> Option<RawScale> {
        let flat = m.w * m.cc - m.c * m.c;
        let next = if affine && flat > 1e-9 * m.w * m.cc {
            // u = t c + offset, and the offset moves the zero point.
            let t = (m.w * m.uc - m.u * m.c) / flat;
            let offset = (m.u - t * m.c) / m.w;
            if matches!(self.work.chooser, Chooser::Affine { .. }) {
                let scale = self.work.resolve(raw);
                let moved = scale.offset + offset * scale.step;
                let bits = [signed_half(scale.step * positive(t)?, false), signed_half(moved, true), 0, 0];
                return (bits != raw.bits).then_some(RawScale { bits, zero: 0 });
            }
            let top = f64::from(u32::MAX >> (32 - self.work.width));
            let zero = (f64::from(raw.zero) - offset / t).round_ties_even().clamp(0.0, top);
            RawScale { zero: zero as u16, ..self.times(raw, positive(t)?) }
        } else {
            self.times(raw, positive(m.uc / m.cc)?)
        };
        (next != *raw).then_some(next)
    }

    /// The scale times `factor`, in its storage type.
    fn times(&self, raw: &RawScale, factor: f64) -> RawScale {
        let float16 = self.work.float16();
        let mut next = *raw;
        for bits in &mut next.bits[..self.work.format.scales_per_group()] {
            if *bits != 0 {
                *bits = real_bits(resolve_real(*bits, float16) * factor, float16, false);
            }
        }
        next
    }
}

fn positive(t: f64) -> Option<f64> {
    (t.is_finite() && t > 0.0).then_some(t)
}
