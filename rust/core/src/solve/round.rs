//! Rounding to the numbers of a format's codes at scale 1, sixteen at once: the element functions of `reference` in lanes.
//!
//! Searches may be an ulp off where the codec is exact (a product with the inverse scale instead of a quotient): what
//! they choose is brought to exact values by the codec afterwards.

use super::operands::Numbers;
use super::reference::{self, step_and_inverse};
use crate::codec::grid::{GroupScale, level_sum};
use crate::simd::{Floats as F, Line};

/// Scales of sixteen lanes.
#[derive(Clone, Debug)]
pub(super) struct Scales {
    pub(super) step: F,
    pub(super) inverse: F,
    /// Taken from values before they are counted in steps.
    pub(super) offset: F,
    zero: F,
    /// Value of each of sixteen codes; empty but for sums of levels.
    sums: Vec<F>,
}

impl Scales {
    /// Scale 1 in all lanes.
    pub(super) const fn unit() -> Self {
        Self {
            step: F::splat(1.0),
            inverse: F::splat(1.0),
            offset: F::splat(0.0),
            zero: F::splat(0.0),
            sums: Vec::new(),
        }
    }

    /// One scale for all lanes.
    #[inline(always)]
    pub(super) fn splat(numbers: &Numbers, scale: &GroupScale) -> Self {
        let (step, inverse) = step_and_inverse(scale);
        let sums = sums_of(numbers, scale).map(F::splat).collect();
        let (offset, zero) = (F::splat(scale.offset as f32), F::splat(scale.zero as f32));
        Self { step: F::splat(step), inverse: F::splat(inverse), offset, zero, sums }
    }

    /// Gives one lane its scale.
    pub(super) fn set(&mut self, lane: usize, numbers: &Numbers, scale: &GroupScale) {
        (self.step.0[lane], self.inverse.0[lane]) = step_and_inverse(scale);
        self.offset.0[lane] = scale.offset as f32;
        self.zero.0[lane] = scale.zero as f32;
        self.sums.resize(sums_of(numbers, scale).count(), F::splat(0.0));
        for (lanes, sum) in self.sums.iter_mut().zip(sums_of(numbers, scale)) {
            lanes.0[lane] = sum;
        }
    }

    pub(super) fn sums(&self) -> &[F] {
        &self.sums
    }
}

/// The value of each code where numbers are sums of levels.
fn sums_of(numbers: &Numbers, scale: &GroupScale) -> impl Iterator<Item = f32> {
    let count = if let Numbers::Sums(count) = *numbers { count } else { 0 };
    (0..1u32 << count).filter(move |_| count > 0).map(move |code| level_sum(code, count, &scale.levels))
}

/// The number nearest to `u`, which is in steps of the lane's scale.
pub(super) trait Round {
    fn round(&self, u: f32, lane: usize) -> f32;
}

pub(super) struct All;

impl Round for All {
    #[inline(always)]
    fn round(&self, u: f32, _: usize) -> f32 {
        u
    }
}

pub(super) struct Integers {
    lo: F,
    hi: F,
}

impl Integers {
    #[inline(always)]
    pub(super) fn new(lo: f32, hi: f32, scales: &Scales) -> Self {
        let from = |end: f32| Line(std::array::from_fn(|lane| end - scales.zero.0[lane]));
        Self { lo: from(lo), hi: from(hi) }
    }
}

impl Round for Integers {
    #[inline(always)]
    fn round(&self, u: f32, lane: usize) -> f32 {
        reference::integer(u, self.lo.0[lane], self.hi.0[lane])
    }
}

pub(super) struct Floats {
    pub(super) drop: u32,
    pub(super) smallest: f32,
    pub(super) magic: f32,
    pub(super) top: f32,
}

impl Round for Floats {
    #[inline(always)]
    fn round(&self, u: f32, _: usize) -> f32 {
        reference::float(u, self.drop, self.smallest, self.magic, self.top)
    }
}

pub(super) struct Book([f32; 16], [f32; 15]);

impl Book {
    #[inline(always)]
    pub(super) fn new(levels: &[f32]) -> Self {
        let (levels, middles) = reference::book(levels);
        Self(levels, middles)
    }
}

impl Round for Book {
    #[inline(always)]
    fn round(&self, u: f32, _: usize) -> f32 {
        reference::level(u, &self.0, &self.1)
    }
}

pub(super) struct Sums<'a>(pub(super) &'a [F]);

impl Round for Sums<'_> {
    #[inline(always)]
    fn round(&self, u: f32, lane: usize) -> f32 {
        let mut number = self.0[0].0[lane];
        for sum in &self.0[1..] {
            number = reference::nearer(u, number, sum.0[lane]);
        }
        number
    }
}

/// Calls `$body` with `$round` bound to the [`Round`] of `$numbers`.
macro_rules! with_round {
    ($numbers:expr, $scales:expr, |$round:ident| $body:expr) => {
        match *$numbers {
            Numbers::All => {
                let $round = All;
                $body
            }
            Numbers::Integers { lo, hi } => {
                let $round = Integers::new(lo, hi, $scales);
                $body
            }
            Numbers::Floats { drop, smallest, magic, top } => {
                let $round = Floats { drop, smallest, magic, top };
                $body
            }
            Numbers::Book(levels) => {
                let $round = Book::new(levels);
                $body
            }
            Numbers::Sums(_) => {
                let $round = Sums($scales.sums());
                $body
            }
        }
    };
}
pub(super) use with_round;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::group_scales::Work;
    use crate::format::{Format, catalogue};
    use crate::simd::Level;

    /// The codec's own rounding, but for numbers that lie halfway between two.
    #[test]
    fn agrees_with_the_codec() {
        let extra =
            ["int4:g32", "uint3:g8", "binary3:channel", "e3m0", "e5m2", "bm6e3/16", "blog4/8", "denorm6e3", "fixed6.3"];
        let texts: Vec<String> = catalogue().iter().map(|f| f.to_string()).chain(extra.map(String::from)).collect();
        for text in texts {
            let Ok(format) = Format::parse(&text) else { continue };
            let work = Work::new(format, Level::Scalar);
            let numbers = Numbers::of(&work.grid);
            let zero = if format.has_zeros() { 3 } else { 0 };
            let step = if matches!(numbers, Numbers::Sums(_)) { 1.0 } else { 0.25 };
            let scale = GroupScale { step, zero, offset: 0.0, levels: [0.7, 0.4, 0.15, 0.1] };
            let scales = Scales::splat(&numbers, &scale);
            for i in -4000..4000 {
                let x = (i as f32 * 0.004).sinh() * 1e-3 + i as f32 * 1.37e-3;
                let number = with_round!(&numbers, &scales, |round| round.round(x * scales.inverse.0[5], 5));
                let value = number * step as f32;
                let exact = crate::codec::reference::round(&work, x, &scale);
                let (got, best) = ((value - x).abs(), (exact - x).abs());
                assert!(value == exact || (got - best).abs() <= 1e-6 * x.abs().max(1.0), "{text}: {x} {value} {exact}");
            }
        }
    }
}
