//! Sums and softmax in loops that compilers turn into vectors, run at the SIMD level in use.
//!
//! Plain multiplications and additions in a fixed order: the same bits at every level.

use octavo_core::simd::exp::unfused::exp;
use octavo_core::simd::{Job, Level, fast};

/// Numbers that are added side by side.
const LANES: usize = 16;

/// Loops that are compiled for each instruction set; `run` is `#[inline(always)]`, as is everything that it calls.
pub trait Loops {
    /// Runs them.
    fn run(self);
}

struct At<J>(J);

impl<J: Loops, L> Job<L> for At<J> {
    type Output = ();

    #[inline(always)]
    fn run(self, _lanes: L) {
        self.0.run();
    }
}

/// Runs loops with the instructions in use.
pub fn at_level(loops: impl Loops) {
    if let Err(At(loops)) = fast(Level::current(), At(loops)) {
        loops.run();
    }
}

/// The sum of products: [`LANES`] sums side by side, then one.
#[inline(always)]
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0f32; LANES];
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    for (a, b) in a.iter().zip(b) {
        for (sum, (a, b)) in sums.iter_mut().zip(a.iter().zip(b)) {
            *sum += a * b;
        }
    }
    a_rest.iter().zip(b_rest).fold(folded(sums), |sum, (a, b)| sum + a * b)
}

/// The sum of `f` of all numbers, in the order of [`dot`].
#[inline(always)]
pub fn sum(x: &[f32], f: impl Fn(f32) -> f32) -> f32 {
    let mut sums = [0.0f32; LANES];
    let (x, rest) = x.as_chunks::<LANES>();
    for x in x {
        for (sum, x) in sums.iter_mut().zip(x) {
            *sum += f(*x);
        }
    }
    rest.iter().fold(folded(sums), |sum, x| sum + f(*x))
}

#[inline(always)]
fn folded(mut sums: [f32; LANES]) -> f32 {
    for half in [8, 4, 2, 1] {
        for at in 0..half {
            sums[at] += sums[at + half];
        }
    }
    sums[0]
}

/// Scores to shares that add up to 1 with that of one more score.
#[inline(always)]
pub(crate) fn softmax_beside(scores: &mut [f32], other: f32) {
    let largest = scores.iter().copied().fold(other, f32::max);
    for score in scores.iter_mut() {
        *score = exp(*score - largest);
    }
    let total = sum(scores, |score| score) + exp(other - largest);
    for score in scores {
        *score /= total;
    }
}

/// Scores to shares that add up to 1.
#[inline(always)]
pub fn softmax(scores: &mut [f32]) {
    let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    for score in scores.iter_mut() {
        *score = exp(*score - largest);
    }
    let total = sum(scores, |score| score);
    for score in scores {
        *score /= total;
    }
}
