//! Custom ops on candle tensors, for operations that candle lacks or runs on threads of its own.
//!
//! All take contiguous f32 tensors whose rows are the first dimension, and treat every row by itself.

use candle_core::{CpuStorage, CustomOp1, CustomOp2, CustomOp3, Layout, Result, Shape, bail};
use octavo_core::simd::exp::unfused::{sigmoid, tanh};

use super::functions::{Loops, at_level, dot, softmax, sum};

/// The values of a contiguous f32 tensor.
pub(crate) fn values<'a>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [f32]> {
    match layout.contiguous_offsets() {
        Some((start, end)) => Ok(&storage.as_slice::<f32>()?[start..end]),
        None => bail!("a tensor of shape {:?} is not contiguous", layout.shape()),
    }
}

fn width(layout: &Layout) -> usize {
    layout.dims().last().copied().unwrap_or(1)
}

/// A layer norm over the last dimension.
pub(crate) struct Norm {
    pub(crate) weight: Vec<f32>,
    pub(crate) bias: Vec<f32>,
    /// Added to the variance.
    pub(crate) epsilon: f32,
}

impl Norm {
    /// The rows of `x` with mean 0 and variance 1, times the weight plus the bias.
    pub(crate) fn apply(&self, x: &[f32]) -> Vec<f32> {
        let mut out = vec![0.0; x.len()];
        at_level(Normed { norm: self, x, out: &mut out });
        out
    }
}

struct Normed<'a> {
    norm: &'a Norm,
    x: &'a [f32],
    out: &'a mut [f32],
}

impl Loops for Normed<'_> {
    #[inline(always)]
    fn run(self) {
        let Self { norm: Norm { weight, bias, epsilon }, x, out } = self;
        let count = weight.len() as f32;
        for (row, out) in x.chunks_exact(weight.len()).zip(out.chunks_exact_mut(weight.len())) {
            let mean = sum(row, |x| x) / count;
            let variance = sum(row, |x| (x - mean) * (x - mean)) / count;
            let scale = 1.0 / (variance + epsilon).sqrt();
            for (((out, x), weight), bias) in out.iter_mut().zip(row).zip(weight).zip(bias) {
                *out = (x - mean) * scale * weight + bias;
            }
        }
    }
}

impl CustomOp1 for Norm {
    fn name(&self) -> &'static str {
        "norm"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let x = values(storage, layout)?;
        if width(layout) != self.weight.len() {
            bail!("a norm of width {} got shape {:?}", self.weight.len(), layout.shape());
        }
        Ok((CpuStorage::F32(self.apply(x)), layout.shape().clone()))
    }
}

/// The cell of an LSTM: two summands of the gates `[rows, 4 units]`, in PyTorch's order i, f, g, o, and cell states
/// `[rows, units]` give `[2, rows, units]`, hidden states and then cell states.
pub(super) struct Cell;

impl CustomOp3 for Cell {
    fn name(&self) -> &'static str {
        "cell"
    }

    fn cpu_fwd(
        &self,
        s1: &CpuStorage,
        l1: &Layout,
        s2: &CpuStorage,
        l2: &Layout,
        s3: &CpuStorage,
        l3: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (gates, cells) = ([values(s1, l1)?, values(s2, l2)?], values(s3, l3)?);
        if gates.iter().any(|gates| gates.len() != 4 * cells.len()) {
            bail!("gates of shapes {:?} and {:?} with cells of shape {:?}", l1.shape(), l2.shape(), l3.shape());
        }
        let units = width(l3);
        let mut out = vec![0.0; 2 * cells.len()];
        at_level(States { gates, cells, units, out: &mut out });
        Ok((CpuStorage::F32(out), (2, cells.len() / units, units).into()))
    }
}

struct States<'a> {
    gates: [&'a [f32]; 2],
    cells: &'a [f32],
    units: usize,
    out: &'a mut [f32],
}

impl Loops for States<'_> {
    #[inline(always)]
    fn run(self) {
        let Self { gates: [input, state], cells, units, out } = self;
        let (hidden, cell) = out.split_at_mut(cells.len());
        let mut gates = vec![0.0; 4 * units];
        for (row, before) in cells.chunks_exact(units).enumerate() {
            let summands = input[4 * units * row..].iter().zip(&state[4 * units * row..]);
            gates.iter_mut().zip(summands).for_each(|(gate, (input, state))| *gate = input + state);
            let (hidden, cell) = (&mut hidden[units * row..][..units], &mut cell[units * row..][..units]);
            let (enter, rest) = gates.split_at(units);
            let (forget, rest) = rest.split_at(units);
            let (new, leave) = rest.split_at(units);
            for unit in 0..units {
                cell[unit] = sigmoid(forget[unit]) * before[unit] + sigmoid(enter[unit]) * tanh(new[unit]);
            }
            for unit in 0..units {
                hidden[unit] = sigmoid(leave[unit]) * tanh(cell[unit]);
            }
        }
    }
}

/// The sum of two tensors of one shape. candle's own starts threads for large ones.
pub(super) struct Sum;

impl CustomOp2 for Sum {
    fn name(&self) -> &'static str {
        "sum"
    }

    fn cpu_fwd(&self, s1: &CpuStorage, l1: &Layout, s2: &CpuStorage, l2: &Layout) -> Result<(CpuStorage, Shape)> {
        if l1.shape() != l2.shape() {
            bail!("a sum of shapes {:?} and {:?}", l1.shape(), l2.shape());
        }
        let sums = values(s1, l1)?.iter().zip(values(s2, l2)?).map(|(a, b)| a + b).collect();
        Ok((CpuStorage::F32(sums), l1.shape().clone()))
    }
}

/// A function of each number.
pub(super) struct Each(pub(super) fn(f32) -> f32);

impl CustomOp1 for Each {
    fn name(&self) -> &'static str {
        "each"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let found = values(storage, layout)?.iter().map(|&x| self.0(x)).collect();
        Ok((CpuStorage::F32(found), layout.shape().clone()))
    }
}

/// Which rows of a memory each row of queries sees, never none.
#[derive(Clone, Copy)]
pub(crate) enum Visible<'a> {
    /// A run of rows: first and how many.
    Runs(&'a [(usize, usize)]),
    /// Any rows, in order.
    Lists(&'a [Vec<u32>]),
}

impl Visible<'_> {
    fn rows(self) -> usize {
        match self {
            Self::Runs(runs) => runs.len(),
            Self::Lists(lists) => lists.len(),
        }
    }

    fn collect(self, row: usize, into: &mut Vec<usize>) {
        into.clear();
        match self {
            Self::Runs(runs) => into.extend(runs[row].0..runs[row].0 + runs[row].1),
            Self::Lists(lists) => into.extend(lists[row].iter().map(|&at| at as usize)),
        }
    }
}

/// Multi-head scaled dot-product attention of queries `[rows, width]` to keys and values of the same width.
pub(crate) struct Attend<'a> {
    pub(crate) heads: usize,
    pub(crate) keys: &'a [f32],
    pub(crate) values: &'a [f32],
    pub(crate) visible: Visible<'a>,
}

impl Attend<'_> {
    /// What each row of queries `[rows, width]` sees: the mean of the values, weighted with the softmax of its scores.
    pub(crate) fn apply(&self, queries: &[f32], width: usize) -> Vec<f32> {
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

impl CustomOp1 for Attend<'_> {
    fn name(&self) -> &'static str {
        "attend"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (queries, width) = (values(storage, layout)?, width(layout));
        if self.visible.rows() * width != queries.len() {
            bail!("queries of shape {:?} for {} rows", layout.shape(), self.visible.rows());
        }
        Ok((CpuStorage::F32(self.apply(queries, width)), layout.shape().clone()))
    }
}

/// Additive attention (Bahdanau et al. 2015) of queries `[rows, width]`: the mean of the values `[.., deep]`, weighted
/// with the softmax of `score . tanh(query + key)`.
pub(super) struct Additive<'a> {
    pub(super) score: &'a [f32],
    pub(super) keys: &'a [f32],
    pub(super) values: &'a [f32],
    pub(super) deep: usize,
    pub(super) visible: Visible<'a>,
}

impl CustomOp1 for Additive<'_> {
    fn name(&self) -> &'static str {
        "additive"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (queries, width) = (values(storage, layout)?, width(layout));
        let rows = self.visible.rows();
        if rows * width != queries.len() || width != self.score.len() {
            bail!("queries of shape {:?} for {rows} rows of width {}", layout.shape(), self.score.len());
        }
        let mut out = vec![0.0; rows * self.deep];
        at_level(Mixed { additive: self, queries, width, out: &mut out });
        Ok((CpuStorage::F32(out), (rows, self.deep).into()))
    }
}

struct Mixed<'a> {
    additive: &'a Additive<'a>,
    queries: &'a [f32],
    width: usize,
    out: &'a mut [f32],
}

impl Loops for Mixed<'_> {
    #[inline(always)]
    fn run(self) {
        let Self { additive: Additive { score, keys, values, deep, visible }, queries, width, out } = self;
        let (mut seen, mut scores, mut sums) = (Vec::new(), Vec::new(), vec![0.0; width]);
        for (row, (query, out)) in queries.chunks_exact(width).zip(out.chunks_exact_mut(*deep)).enumerate() {
            visible.collect(row, &mut seen);
            scores.clear();
            for &at in &seen {
                for ((sum, query), key) in sums.iter_mut().zip(query).zip(&keys[at * width..][..width]) {
                    *sum = tanh(query + key);
                }
                scores.push(dot(&sums, score));
            }
            softmax(&mut scores);
            for (&at, &share) in seen.iter().zip(&scores) {
                for (out, value) in out.iter_mut().zip(&values[at * deep..][..*deep]) {
                    *out += share * value;
                }
            }
        }
    }
}
