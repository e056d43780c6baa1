//! Attention of one row to its key/value cache.
//!
//! A vector holds the scores of four positions for four heads. The layout of keys lets one load bring four elements of four
//! positions: there is a cache line for every four positions and four elements, position by position. Values are stored
//! row by row.

use super::kept::Kept;
use super::lanes::{Floats, Lanes};
use super::products::Row;
use super::shape::{HEADS, Shape};
use octavo_core::simd::exp;

/// Positions that one vector of scores holds.
const POSITIONS: usize = 4;

/// Keys and values of the positions that one row may look at, in lines of `K`.
#[derive(Debug, Default)]
pub(super) struct Memory<K> {
    keys: Vec<K>,
    values: Vec<K>,
}

impl<K: Copy + Default> Memory<K> {
    /// Makes room for `positions`, each of `width` lines. What is there stays.
    #[inline(always)]
    pub(super) fn reserve(&mut self, positions: usize, width: usize) {
        let lines = positions.next_multiple_of(POSITIONS) * width;
        if self.keys.len() < lines {
            self.keys.resize(lines, K::default());
            self.values.resize(lines, K::default());
        }
    }

    /// Writes lines of a position's key, from `line`.
    #[inline(always)]
    pub(super) fn put_key<L: Lanes, const P: usize>(
        &mut self,
        l: L,
        width: usize,
        position: usize,
        line: usize,
        values: [L::F; P],
    ) where
        K: Kept<L>,
    {
        let first = (position / POSITIONS * width + line) * POSITIONS;
        let lines = self.keys[first..first + P * POSITIONS].chunks_exact_mut(POSITIONS);
        for (lines, v) in lines.zip(values) {
            let row = K::new(l, v);
            for (quarter, to) in lines.iter_mut().enumerate() {
                to.set_quarter(position % POSITIONS, &row, quarter);
            }
        }
    }

    /// Writes lines of a position's value, from `line`.
    #[inline(always)]
    pub(super) fn put_value<L: Lanes, const P: usize>(
        &mut self,
        l: L,
        width: usize,
        position: usize,
        line: usize,
        values: [L::F; P],
    ) where
        K: Kept<L>,
    {
        let first = position * width + line;
        for (to, v) in self.values[first..first + P].iter_mut().zip(values) {
            *to = K::new(l, v);
        }
    }
}

/// Attends from `query`, whose scale is that of the scores, to the first `positions` of `memory`, at least one, and
/// writes the mix of values into `to`. `scores` is room for a vector for every four positions.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "one call in two places; a struct would only name them again")]
pub(super) fn attend<L: Lanes, K: Kept<L>>(
    l: L,
    shape: &Shape,
    query: &[Floats],
    memory: &Memory<K>,
    positions: usize,
    scores: &mut [Floats],
    mut to: impl Row<L>,
    inverse: L::F,
) {
    let (width, head) = (shape.attention_lines, shape.head_lines);
    let groups = positions.div_ceil(POSITIONS);
    assert!(positions > 0 && query.len() == width && width == shape.head_groups * HEADS * head);
    assert!(memory.keys.len() >= groups * POSITIONS * width && memory.values.len() >= positions * width);
    let scores = &mut scores[..groups];
    for first in (0..width).step_by(HEADS * head) {
        // SAFETY: four heads from `first` lie within `width`, and memory holds the positions, as asserted.
        unsafe {
            weigh(l, &query[first..first + HEADS * head], &memory.keys[POSITIONS * first..], width, positions, scores)
        };
        let mut line = 0;
        while line < head {
            let values = &memory.values[first + line..];
            // SAFETY: as above; one or two lines of each head remain.
            unsafe {
                if line + 1 < head {
                    let mixed = mix::<L, K, 2>(l, values, width, head, positions, scores);
                    for (i, heads) in mixed.into_iter().enumerate() {
                        to.put(l, first + i * head + line, heads[0], inverse);
                        to.put(l, first + i * head + line + 1, heads[1], inverse);
                    }
                } else {
                    let mixed = mix::<L, K, 1>(l, values, width, head, positions, scores);
                    for (i, heads) in mixed.into_iter().enumerate() {
                        to.put(l, first + i * head + line, heads[0], inverse);
                    }
                }
            }
            line += 2;
        }
    }
}

/// Writes the softmax of four heads' scores.
///
/// # Safety
/// `query` must hold four heads, `keys` groups of `POSITIONS * width` lines for all `positions`, from the first of the
/// four heads, and four heads in the last; `scores` a line for each group, at least one.
#[inline(always)]
unsafe fn weigh<L: Lanes, K: Kept<L>>(
    l: L,
    query: &[Floats],
    keys: &[K],
    width: usize,
    positions: usize,
    scores: &mut [Floats],
) {
    let head = query.len() / HEADS;
    let query = query.as_ptr().cast::<[f32; 4]>();
    let last = scores.len() - 1;
    // Places of the last vector that hold a score.
    let held = (positions - last * POSITIONS) * HEADS;
    let mut greatest = l.splat(f32::NEG_INFINITY);
    for (group, scores) in scores.iter_mut().enumerate() {
        let mut products = [l.splat(0.0); HEADS];
        for quad in 0..head * 4 {
            for (i, product) in products.iter_mut().enumerate() {
                let at = i * head * 4 + quad;
                // SAFETY: inside, as the caller promises.
                let (q, k) = unsafe { (&*query.add(at), keys.get_unchecked(group * POSITIONS * width + at)) };
                *product = l.fma(l.quad(q), k.load(l), *product);
            }
        }
        let mut score = l.group_sums(products);
        if group == last {
            score = l.first(held, score, l.splat(f32::NEG_INFINITY));
        }
        greatest = l.max(greatest, score);
        l.store(score, scores);
    }
    let greatest = l.max_groups(greatest);
    let mut total = l.splat(0.0);
    for (group, scores) in scores.iter_mut().enumerate() {
        let mut weight = exp::exp(l, l.sub(l.load(scores), greatest));
        if group == last {
            weight = l.first(held, weight, l.splat(0.0));
        }
        total = l.add(total, weight);
        l.store(weight, scores);
    }
    let share = l.div(l.splat(1.0), l.add_groups(total));
    for scores in scores {
        l.store(l.mul(l.load(scores), share), scores);
    }
}

/// `N` lines of four heads' values, mixed by `weights`.
///
/// # Safety
/// `values` must hold `positions` rows, `width` lines apart, from the first of the `N` lines of the first head, and four
/// heads of `head` lines in each; `weights` a vector for every [`POSITIONS`] positions.
#[inline(always)]
unsafe fn mix<L: Lanes, K: Kept<L>, const N: usize>(
    l: L,
    values: &[K],
    width: usize,
    head: usize,
    positions: usize,
    weights: &[Floats],
) -> [[L::F; N]; HEADS] {
    let mut mixed = [[l.splat(0.0); N]; HEADS];
    for position in 0..positions {
        for (i, mixed) in mixed.iter_mut().enumerate() {
            // SAFETY: inside, as the caller promises.
            let weight = unsafe { weights.get_unchecked(position / POSITIONS) };
            let weight = l.splat(weight.0[position % POSITIONS * HEADS + i]);
            for (n, mixed) in mixed.iter_mut().enumerate() {
                // SAFETY: as above.
                let value = unsafe { values.get_unchecked(position * width + i * head + n) }.load(l);
                *mixed = l.fma(weight, value, *mixed);
            }
        }
    }
    mixed
}
