//! Attention of rows, each to its key/value cache.
//!
//! A vector holds the scores of four positions for four heads. The layout of keys lets one load bring four elements of four
//! positions: there is a cache line for every four positions and four elements, position by position. Values are stored
//! row by row.

use super::kept::Kept;
use super::lanes::{Floats, Lanes};
use super::products::{Input, Row};
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

/// Room for the scores of `rows` rows, each to at most `positions`.
pub(super) fn room(rows: usize, positions: usize) -> Vec<Floats> {
    vec![Floats::default(); rows * (positions.div_ceil(POSITIONS) + 1)]
}

/// Attends from `queries`, whose scale is that of the scores, one behind the other, and writes the mixes of values into the
/// first rows of `to`. `memory` is what a row looks at: its keys and values, and the number of their first positions, at
/// least one; `scores` is [`room`]. What a row gets does not depend on the others.
///
/// Each step runs over all rows before the next does: one row's is too short to keep the processor busy until it ends.
#[inline(always)]
pub(super) fn attend<'a, L: Lanes, K: Kept<L>, I: Input<L>>(
    l: L,
    shape: &Shape,
    queries: &[Floats],
    memory: impl Fn(usize) -> (&'a Memory<K>, usize),
    scores: &mut [Floats],
    to: &mut I,
    inverse: L::F,
) {
    let (width, head) = (shape.attention_lines, shape.head_lines);
    let rows = queries.len() / width;
    let room = scores.len() / rows.max(1);
    assert!(queries.len() == rows * width && width == shape.head_groups * HEADS * head);
    let memory = |row: usize| {
        let (memory, positions) = memory(row);
        let groups = positions.div_ceil(POSITIONS);
        assert!(positions > 0 && groups < room);
        assert!(memory.keys.len() >= groups * POSITIONS * width && memory.values.len() >= positions * width);
        (memory, positions)
    };
    for first in (0..width).step_by(HEADS * head) {
        let of_rows = || queries.chunks_exact(width).enumerate();
        for ((row, query), scores) in of_rows().zip(scores.chunks_exact_mut(room)) {
            let (memory, positions) = memory(row);
            let (scores, greatest) = parts(scores, positions);
            let (query, keys) = (&query[first..][..HEADS * head], &memory.keys[POSITIONS * first..]);
            // SAFETY: four heads from `first` lie within `width`, and memory holds the positions, as asserted.
            unsafe { score(l, query, keys, width, positions, scores, greatest) };
        }
        for ((row, _), scores) in of_rows().zip(scores.chunks_exact_mut(room)) {
            let (scores, greatest) = parts(scores, memory(row).1);
            weigh(l, scores, greatest);
        }
        for ((row, _), scores) in of_rows().zip(scores.chunks_exact_mut(room)) {
            let (memory, positions) = memory(row);
            let (weights, shares) = parts(scores, positions);
            let mut to = to.row(row);
            let mut line = 0;
            while line < head {
                let values = &memory.values[first + line..];
                // SAFETY: as above; one or two lines of each head remain.
                unsafe {
                    if line + 1 < head {
                        let mixed = mix::<L, K, 2>(l, values, width, head, positions, weights);
                        for (i, [a, b]) in mixed.into_iter().enumerate() {
                            let share = l.splat(shares.0[i]);
                            to.put(l, first + i * head + line, l.mul(a, share), inverse);
                            to.put(l, first + i * head + line + 1, l.mul(b, share), inverse);
                        }
                    } else {
                        let mixed = mix::<L, K, 1>(l, values, width, head, positions, weights);
                        for (i, [a]) in mixed.into_iter().enumerate() {
                            to.put(l, first + i * head + line, l.mul(a, l.splat(shares.0[i])), inverse);
                        }
                    }
                }
                line += 2;
            }
        }
    }
}

/// A row's vectors of scores, and the one behind them.
#[inline(always)]
fn parts(room: &mut [Floats], positions: usize) -> (&mut [Floats], &mut Floats) {
    let (scores, rest) = room.split_at_mut(positions.div_ceil(POSITIONS));
    (scores, &mut rest[0])
}

/// Writes four heads' scores, negative infinity behind the last position, and the greatest of each lane.
///
/// # Safety
/// `query` must hold four heads, `keys` groups of `POSITIONS * width` lines for all `positions`, from the first of the
/// four heads, and four heads in the last; `scores` a line for each group, at least one.
#[inline(always)]
unsafe fn score<L: Lanes, K: Kept<L>>(
    l: L,
    query: &[Floats],
    keys: &[K],
    width: usize,
    positions: usize,
    scores: &mut [Floats],
    greatest: &mut Floats,
) {
    let head = query.len() / HEADS;
    let query = query.as_ptr().cast::<[f32; 4]>();
    let last = scores.len() - 1;
    // Places of the last vector that hold a score.
    let held = (positions - last * POSITIONS) * HEADS;
    let mut most = l.splat(f32::NEG_INFINITY);
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
        most = l.max(most, score);
        l.store(score, scores);
    }
    l.store(most, greatest);
}

/// Replaces four heads' scores by the exponentials of their distances from the greatest, and `greatest` by one over each
/// head's sum: the softmax, less a product. Places without a score become e^-87, which a sum of at least 1 does not notice.
#[inline(always)]
fn weigh<L: Lanes>(l: L, scores: &mut [Floats], greatest: &mut Floats) {
    let most = l.max_groups(l.load(greatest));
    let mut total = l.splat(0.0);
    for scores in scores {
        let weight = exp::exp(l, l.sub(l.load(scores), most));
        total = l.add(total, weight);
        l.store(weight, scores);
    }
    l.store(l.div(l.splat(1.0), l.add_groups(total)), greatest);
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
