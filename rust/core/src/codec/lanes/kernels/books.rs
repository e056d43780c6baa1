//! Kernels of code books: quantiles of a normal distribution (`nf`), residual levels, signs.

use std::sync::LazyLock;

use super::{Factors, Kernel, exponent_of, power};
use crate::codec::grid::{Grid, GroupScale, NF3, NF4, level_sum, reaches_mean, sorted_sums};
use crate::codec::group_scales::Work;
use crate::simd::Lanes;

/// Up to 16 levels times a scale, by comparison with exact thresholds: nf4, nf3, binaryN.
#[derive(Clone, Copy)]
pub(in crate::codec::lanes) struct Book<V: Lanes> {
    /// Smallest float32 that goes to level i + 1; infinity behind the last.
    thresholds: V::F,
    /// Values by level.
    values: V::F,
    /// Values by code.
    decoded: V::F,
    /// Codes by level, as bits.
    codes: V::F,
    /// Half the number of levels, where the search starts.
    half: i32,
}

/// What the groups of a book format share.
#[derive(Clone, Copy)]
pub(in crate::codec::lanes) enum BookBase {
    /// Levels, and their thresholds for every float16 significand (`nf4`, `nf3`).
    Scaled { levels: [f32; 16], thresholds: &'static [[f32; 16]], half: i32 },
    /// Levels of `binaryN`, whose sums belong to each group's scale.
    Sums(u8),
}

impl<V: Lanes> Book<V> {
    /// Index of the level of each lane: a binary search.
    ///
    /// # Safety
    /// The processor must have the features of `V`.
    #[inline(always)]
    unsafe fn level(&self, x: V::F) -> V::I {
        // SAFETY: as the caller promises.
        unsafe {
            let mut index = V::splat_i(0);
            for half in [8, 4, 2, 1] {
                if half <= self.half {
                    let probe = V::add_i(index, V::splat_i(half - 1));
                    let reached = V::ge(x, V::lookup(self.thresholds, probe));
                    index = V::select_i(reached, V::add_i(index, V::splat_i(half)), index);
                }
            }
            index
        }
    }
}

impl<V: Lanes> Kernel<V> for Book<V> {
    type Base = BookBase;

    fn base(work: &Work) -> Option<BookBase> {
        static NF3_THRESHOLDS: LazyLock<Vec<[f32; 16]>> = LazyLock::new(|| threshold_table(&NF3));
        static NF4_THRESHOLDS: LazyLock<Vec<[f32; 16]>> = LazyLock::new(|| threshold_table(&NF4));
        match work.grid {
            Grid::Book(book) => {
                let mut levels = [0.0; 16];
                levels[..book.len()].copy_from_slice(book);
                let thresholds = if book.len() == 8 { &NF3_THRESHOLDS } else { &NF4_THRESHOLDS };
                Some(BookBase::Scaled { levels, thresholds, half: book.len() as i32 / 2 })
            }
            Grid::Levels(count) if count > 1 => Some(BookBase::Sums(count)),
            _ => None,
        }
    }
    #[inline(always)]
    fn factors(base: &BookBase, _: i32) -> Factors {
        if matches!(base, BookBase::Sums(_)) { Factors::Single } else { Factors::Real }
    }
    #[inline(always)]
    unsafe fn make(base: &BookBase, scale: &GroupScale) -> Option<Self> {
        const INDEX: [u32; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
        // SAFETY: as the caller promises.
        unsafe {
            match base {
                // Sums that are no numbers, which only a foreign file can hold, are left to the scalar code.
                BookBase::Sums(count) => {
                    let finite = scale.levels.iter().take(usize::from(*count)).all(|level| level.is_finite());
                    finite.then(|| Self::of_sums(*count, &scale.levels))
                }
                BookBase::Scaled { levels, thresholds, half } => {
                    if !(1e-20..=1e30).contains(&scale.step) {
                        return None;
                    }
                    // Thresholds of the significand, times its power of two.
                    let row = &thresholds[(scale.step.to_bits() >> 42) as usize & 1023];
                    let values = V::mul(V::load(levels.as_ptr()), V::splat(scale.step as f32));
                    Some(Self {
                        thresholds: V::mul(V::load(row.as_ptr()), V::splat(power(exponent_of(scale.step)))),
                        values,
                        decoded: values,
                        codes: V::load(INDEX.as_ptr().cast()),
                        half: *half,
                    })
                }
            }
        }
    }
    #[inline(always)]
    unsafe fn quantize(&self, x: V::F) -> V::F {
        // SAFETY: as the caller promises.
        unsafe { V::select(V::unordered(x), x, V::lookup(self.values, self.level(x))) }
    }
    #[inline(always)]
    unsafe fn code(&self, x: V::F) -> V::I {
        // SAFETY: as the caller promises.
        unsafe { V::bits(V::lookup(self.codes, self.level(x))) }
    }
    #[inline(always)]
    unsafe fn decode(&self, code: V::I) -> V::F {
        // SAFETY: as the caller promises.
        unsafe { V::lookup(self.decoded, code) }
    }
}

impl<V: Lanes> Book<V> {
    /// The book of `binaryN`: sums in ascending order. Made once for a row or a tensor.
    ///
    /// # Safety
    /// The processor must have the features of `V`.
    #[inline(never)]
    unsafe fn of_sums(count: u8, levels: &[f32; 4]) -> Self {
        let n = 1usize << count;
        let (sums, sum_codes) = sorted_sums(count, levels);
        let (mut thresholds, mut codes, mut decoded) = ([f32::INFINITY; 16], [0.0f32; 16], [0.0f32; 16]);
        let mut values = [0.0f32; 16];
        for i in 0..n {
            codes[i] = f32::from_bits(u32::from(sum_codes[i]));
            decoded[i] = level_sum(i as u32, count, levels);
            // That of the code, which may be a zero of another sign than the sum.
            values[i] = level_sum(u32::from(sum_codes[i]), count, levels);
            if i + 1 < n {
                thresholds[i] = smallest_reaching(sums[i], sums[i + 1]);
            }
        }
        // SAFETY: as the caller promises; the arrays hold 16 lanes.
        unsafe {
            Self {
                thresholds: V::load(thresholds.as_ptr()),
                values: V::load(values.as_ptr()),
                decoded: V::load(decoded.as_ptr()),
                codes: V::load(codes.as_ptr()),
                half: 1 << (count - 1),
            }
        }
    }
}

/// For every significand 1 + i/1024 of a float16 scale, the smallest float32 that goes to each next level of a book.
fn threshold_table(levels: &[f32]) -> Vec<[f32; 16]> {
    let row = |i: u32| {
        let scale = 1.0 + f64::from(i) / 1024.0;
        let mut row = [f32::INFINITY; 16];
        for (j, pair) in levels.windows(2).enumerate() {
            let exact = (f64::from(pair[0]) + f64::from(pair[1])) / 2.0 * scale;
            // Level j + 1 is even where j is odd: then a tie goes up.
            let reached = |x: f32| f64::from(x) > exact || (f64::from(x) == exact && j % 2 == 1);
            let nearest = exact as f32;
            let candidates = [nearest.next_down(), nearest, nearest.next_up()];
            row[j] = candidates.into_iter().find(|&x| reached(x)).unwrap_or(nearest);
        }
        row
    };
    (0..1024).map(row).collect()
}

/// Smallest float32 that is not below the exact mean of two numbers.
fn smallest_reaching(lower: f32, upper: f32) -> f32 {
    let mut candidate = ((f64::from(lower) + f64::from(upper)) / 2.0) as f32;
    while reaches_mean(candidate.next_down(), lower, upper) && candidate > f32::MIN {
        candidate = candidate.next_down();
    }
    while !reaches_mean(candidate, lower, upper) {
        candidate = candidate.next_up();
    }
    candidate
}

/// The sign times one scale: binary.
#[derive(Clone, Copy)]
pub(in crate::codec::lanes) struct Signs<V: Lanes> {
    plus: V::F,
    minus: V::F,
}

impl<V: Lanes> Kernel<V> for Signs<V> {
    type Base = ();

    fn base(work: &Work) -> Option<()> {
        matches!(work.grid, Grid::Levels(1)).then_some(())
    }
    #[inline(always)]
    unsafe fn make((): &(), scale: &GroupScale) -> Option<Self> {
        // At scale 0 both values are equal and every code is 0.
        // SAFETY: as the caller promises.
        (scale.levels[0] > 0.0)
            .then(|| unsafe { Self { plus: V::splat(scale.levels[0]), minus: V::splat(-scale.levels[0]) } })
    }
    #[inline(always)]
    unsafe fn quantize(&self, x: V::F) -> V::F {
        // SAFETY: as the caller promises.
        unsafe {
            let q = V::select(V::lt(x, V::splat(0.0)), self.minus, self.plus);
            V::select(V::unordered(x), x, q)
        }
    }
    #[inline(always)]
    unsafe fn code(&self, x: V::F) -> V::I {
        // SAFETY: as the caller promises.
        unsafe { V::select_i(V::lt(x, V::splat(0.0)), V::splat_i(1), V::splat_i(0)) }
    }
    #[inline(always)]
    unsafe fn decode(&self, code: V::I) -> V::F {
        // SAFETY: as the caller promises.
        unsafe { V::select(V::gt_i(code, V::splat_i(0)), self.minus, self.plus) }
    }
}
