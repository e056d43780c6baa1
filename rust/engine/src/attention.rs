//! [`Attend`]: multi-head attention of rows to rows.

use crate::functions::{Loops, at_level, dot, softmax};

/// Which rows of a memory each row of queries sees, never none.
#[derive(Clone, Copy)]
pub enum Visible<'a> {
    /// A run of rows: first and how many.
    Runs(&'a [(usize, usize)]),
    /// Any rows, in order.
    Lists(&'a [Vec<u32>]),
}

impl Visible<'_> {
    /// Rows of queries.
    pub fn rows(self) -> usize {
        match self {
            Self::Runs(runs) => runs.len(),
            Self::Lists(lists) => lists.len(),
        }
    }

    /// Writes the rows that row `row` of queries sees.
    pub fn collect(self, row: usize, into: &mut Vec<usize>) {
        into.clear();
        match self {
            Self::Runs(runs) => into.extend(runs[row].0..runs[row].0 + runs[row].1),
            Self::Lists(lists) => into.extend(lists[row].iter().map(|&at| at as usize)),
        }
    }
}

/// Multi-head scaled dot-product attention of queries `[rows, width]` to keys and values of the same width.
pub struct Attend<'a> {
    /// Heads, which share the width.
    pub heads: usize,
    /// Rows of keys.
    pub keys: &'a [f32],
    /// Rows of values.
    pub values: &'a [f32],
    /// What each row of queries sees.
    pub visible: Visible<'a>,
}

impl Attend<'_> {
    /// What each row of queries `[rows, width]` sees: the mean of the values, weighted with the softmax of its scores.
    pub fn apply(&self, queries: &[f32], width: usize) -> Vec<f32> {
        let mut out = vec![0.0; queries.len()];
        at_level(Attended { attend: self, queries, width, out: &mut out });
        out
    }
}

struct Attended<'a> {
    attend: &'a Attend<'a>,
    queries: &'a [f32],
    width: usize,
    out: &'a mut [f32],
}

impl Loops for Attended<'_> {
    #[inline(always)]
    fn run(self) {
        let Self { attend: Attend { heads, keys, values, visible }, queries, width, out } = self;
        let share = width / heads;
        let scale = 1.0 / (share as f32).sqrt();
        let (mut seen, mut scores) = (Vec::new(), Vec::new());
        for (row, (queries, out)) in queries.chunks_exact(width).zip(out.chunks_exact_mut(width)).enumerate() {
            visible.collect(row, &mut seen);
            for head in 0..*heads {
                let part = head * share..(head + 1) * share;
                let query = &queries[part.clone()];
                scores.clear();
                scores.extend(seen.iter().map(|&at| dot(query, &keys[at * width..][part.clone()]) * scale));
                softmax(&mut scores);
                let out = &mut out[part.clone()];
                for (&at, &share) in seen.iter().zip(&scores) {
                    for (out, value) in out.iter_mut().zip(&values[at * width..][part.clone()]) {
                        *out += share * value;
                    }
                }
            }
        }
    }
}
