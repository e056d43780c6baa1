//! What solvers compute with: the numbers of a format, sums over a group, and tiles of sums.

use crate::codec::grid::{FloatGrid, Grid};
use crate::float::{exp2, to_f32_saturating};
use crate::simd::{Doubles, LANES};

/// Rows that are eliminated from all of those below them at once.
pub(super) const ELIMINATED: usize = 64;

/// Sixteen values of a row, or of a column.
pub(super) type Sixteen = Doubles;
/// Sixteen rows of sixteen sums.
pub(super) type Tile = [Sixteen; LANES];

/// The numbers that codes stand for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Numbers {
    /// All of float32.
    All,
    /// Integers, counted from the zero point, or the offset.
    Integers { lo: f32, hi: f32 },
    /// Floats of `23 - drop` mantissa bits; below `smallest` the step stays the same, and adding `magic` rounds to it.
    Floats { drop: u32, smallest: f32, magic: f32, top: f32 },
    /// Sorted numbers.
    Book(&'static [f32]),
    /// Sums of signed levels.
    Sums(u8),
}

impl Numbers {
    pub(super) fn of(grid: &Grid) -> Self {
        match *grid {
            Grid::Integer { lo, hi, .. } => Self::Integers { lo: lo as f32, hi: hi as f32 },
            Grid::Affine { lo, hi } => Self::Integers { lo: lo as f32, hi: hi as f32 },
            Grid::Float(FloatGrid { mantissa, .. }) if mantissa >= 23 => Self::All,
            Grid::Float(FloatGrid { mantissa, emin, top, .. }) => Self::Floats {
                drop: 23 - mantissa,
                smallest: exp2(emin.clamp(-126, 127)) as f32,
                magic: 1.5 * exp2((emin + 23 - mantissa as i32).clamp(-126, 126)) as f32,
                top: to_f32_saturating(top),
            },
            Grid::Book(levels) => Self::Book(levels),
            Grid::Levels(count) => Self::Sums(count),
        }
    }
}

/// Sums over a group: errors in units; `c` numbers, `u` values in steps, `w` the weights of the fit.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Moments {
    pub(super) error: f64,
    pub(super) square: f64,
    pub(super) w: f64,
    pub(super) c: f64,
    pub(super) u: f64,
    pub(super) cc: f64,
    pub(super) uc: f64,
}

impl Moments {
    /// Number of sums.
    pub(super) const COUNT: usize = 7;

    /// The sums in the order in which they are taken.
    #[inline(always)]
    pub(super) fn of([error, cc, uc, square, w, c, u]: [f64; Self::COUNT]) -> Self {
        Self { error, square, w, c, u, cc, uc }
    }

    pub(super) fn plus(&self, other: &Self) -> Self {
        Self {
            error: self.error + other.error,
            square: self.square + other.square,
            w: self.w + other.w,
            c: self.c + other.c,
            u: self.u + other.u,
            cc: self.cc + other.cc,
            uc: self.uc + other.uc,
        }
    }
}

/// What the error of a group is asked for.
#[derive(Clone, Copy)]
pub(super) struct Query<'a> {
    pub(super) x: &'a [f32],
    /// Empty: all 1.
    pub(super) weights: &'a [f32],
    pub(super) numbers: &'a Numbers,
    pub(super) power: f32,
    pub(super) affine: bool,
    /// Step in which errors are counted.
    pub(super) unit: f32,
}
