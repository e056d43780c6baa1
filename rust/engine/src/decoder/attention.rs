//! Attention of one query to the pages of its sequence, in loops that compilers turn into vectors.

use super::cache::{PAGE, Slice};
use crate::functions::{Loops, at_level, softmax, softmax_beside};
use octavo_core::simd::exp::unfused::tanh;

/// One position's query, `[heads, size]`, and what it sees.
pub(super) struct Query<'a> {
    pub(super) query: &'a [f32],
    /// Heads of queries that share a head of keys and values.
    pub(super) share: usize,
    pub(super) scale: f32,
    /// A bound that scaled scores approach.
    pub(super) cap: Option<f32>,
    /// By head: what scores grow with the position of the key, before they are scaled. Empty where they do not.
    pub(super) slopes: &'a [f32],
    /// By head: a score beside those of positions, whose share is of nothing. Empty where there is none.
    pub(super) sinks: &'a [f32],
    /// The pages of its sequence.
    pub(super) pages: &'a [&'a [f32]],
    pub(super) layer: Slice,
    /// First position that is seen, and the end of those.
    pub(super) first: usize,
    pub(super) end: usize,
}

impl Query<'_> {
    /// The mean of the values that one head sees, weighted with the softmax of its scores, `[size]`. Sums run in the order
    /// of the positions, the same at every SIMD level and however the cache is cut into pages.
    pub(super) fn attend(&self, head: usize, out: &mut [f32]) {
        at_level(Attended { of: self, head, out });
    }
}

/// The slope of each head: powers of one base, and where the heads are no power of two, of its root between them. They
/// and their products are rounded to bfloat16, as transformers has them for Falcon. Source: Press et al. 2022, section 3.
pub(super) fn slopes(heads: usize) -> Vec<f32> {
    let of = |count: usize, power: usize| {
        in_bfloat16(f64::from(2.0f64.powf(-8.0 / count as f64) as f32).powi(power as i32) as f32)
    };
    let whole = 1 << heads.max(1).ilog2();
    let between = (0..heads - whole).map(|number| of(2 * whole, 2 * number + 1));
    (1..=whole).map(|power| of(whole, power)).chain(between).collect()
}

/// The nearest number of bfloat16, even where two are as near.
#[inline(always)]
fn in_bfloat16(value: f32) -> f32 {
    let bits = value.to_bits();
    f32::from_bits((bits.wrapping_add(0x7fff + (bits >> 16 & 1))) & 0xffff_0000)
}

struct Attended<'a> {
    of: &'a Query<'a>,
    head: usize,
    out: &'a mut [f32],
}

impl Loops for Attended<'_> {
    #[inline(always)]
    fn run(self) {
        let Self { of: &Query { query, share, scale, cap, slopes, sinks, pages, layer, first, end }, head, out } = self;
        let size = layer.size;
        let query = &query[head * size..][..size];
        let (start, from) = (first / PAGE, head / share);
        let pages = &pages[start..end.div_ceil(PAGE)];
        let mut scores = vec![0.0f32; pages.len() * PAGE];
        let (places, _) = scores.as_chunks_mut::<PAGE>();
        for (page, scores) in pages.iter().zip(places) {
            let (keys, _) = layer.keys(page, from).as_chunks::<PAGE>();
            let mut sums = [0.0f32; PAGE];
            for (query, keys) in query.iter().zip(keys) {
                for (sum, key) in sums.iter_mut().zip(keys) {
                    *sum += query * key;
                }
            }
            for (score, sum) in scores.iter_mut().zip(sums) {
                *score = sum * scale;
            }
        }
        let seen = &mut scores[first - start * PAGE..end - start * PAGE];
        if let Some(&slope) = slopes.get(head) {
            for (number, score) in (first..).zip(seen.iter_mut()) {
                *score += in_bfloat16(slope * in_bfloat16(number as f32)) * scale;
            }
        }
        if let Some(cap) = cap {
            seen.iter_mut().for_each(|score| *score = cap * tanh(*score / cap));
        }
        match sinks.get(head) {
            Some(&sink) => softmax_beside(seen, sink),
            None => softmax(seen),
        }
        out.fill(0.0);
        for (number, &weight) in (first..).zip(seen.iter()) {
            let values = &layer.values(pages[number / PAGE - start], from)[number % PAGE * size..][..size];
            for (out, value) in out.iter_mut().zip(values) {
                *out += weight * value;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use octavo_core::Level;

    use super::super::cache::{Cache, Pages};
    use super::*;

    /// One loop over positions that lie one after the other.
    fn reference(query: &[f32], keys: &[Vec<f32>], values: &[Vec<f32>], from: usize, scale: f32) -> Vec<f32> {
        let size = query.len();
        let part = |row: &Vec<f32>| row[from * size..][..size].to_vec();
        let score =
            |key: &Vec<f32>| part(key).iter().zip(query).fold(0.0, |sum, (key, query)| sum + query * key) * scale;
        let mut scores: Vec<f32> = keys.iter().map(score).collect();
        softmax(&mut scores);
        let mut out = vec![0.0; size];
        for (value, share) in values.iter().zip(scores) {
            out.iter_mut().zip(part(value)).for_each(|(out, value)| *out += share * value);
        }
        out
    }

    #[test]
    fn pages_change_no_bit_of_a_plain_loop() {
        let (heads, kept, size) = (4, 2, 12);
        let noise = |i: usize| ((i as u32).wrapping_mul(0x9e37_79b9) >> 8) as f32 / 8_388_608.0 - 1.0;
        let row = |seed: usize, width: usize| (0..width).map(|i| noise(seed * 977 + i)).collect::<Vec<f32>>();
        let (keys, values): (Vec<_>, Vec<_>) =
            (0..150).map(|at| (row(at, kept * size), row(at + 999, kept * size))).unzip();
        let mut cache = Cache::new([(1, 8), (kept, size)].into_iter(), 8, None).unwrap();
        let (mut other, mut pages) = (Pages::default(), Pages::default());
        for at in 0..keys.len() {
            cache.grow(&mut other, 1).unwrap();
            cache.grow(&mut pages, 1).unwrap();
            cache.write(&pages, 1, at, &keys[at], &values[at]).unwrap();
            other.length += 1;
            pages.length += 1;
        }
        let query = row(5, heads * size);
        for (first, end) in [(0, 1), (0, 63), (0, 64), (0, 65), (3, 130), (64, 128), (70, 150)] {
            let cached = cache.of(&[&pages], 1, &[(first, end)]).unwrap();
            let (some, layer) = (cached.of(0), cached.slice);
            let one = Query {
                query: &query,
                share: heads / kept,
                scale: 0.3,
                cap: None,
                slopes: &[],
                sinks: &[],
                pages: &some,
                layer,
                first,
                end,
            };
            for head in 0..heads {
                let part = &query[head * size..][..size];
                let wanted = reference(part, &keys[first..end], &values[first..end], head / 2, 0.3);
                for level in [Level::Scalar, Level::detect()] {
                    Level::force(Some(level)).unwrap();
                    let mut out = vec![f32::NAN; size];
                    one.attend(head, &mut out);
                    assert_eq!(out, wanted, "{first}..{end} head {head} {level:?}");
                }
                Level::force(None).unwrap();
            }
        }
    }
}
