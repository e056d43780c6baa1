//! Custom ops on candle tensors, for operations that candle lacks or runs on threads of its own.
//!
//! All take contiguous f32 tensors whose rows are the first dimension, and treat every row by itself.

use candle_core::{CpuStorage, CustomOp1, CustomOp2, Layout, Result, Shape, bail};

use super::product::Matrix;

/// The values of a contiguous f32 tensor.
pub(super) fn values<'a>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [f32]> {
    match layout.contiguous_offsets() {
        Some((start, end)) => Ok(&storage.as_slice::<f32>()?[start..end]),
        None => bail!("a tensor of shape {:?} is not contiguous", layout.shape()),
    }
}

fn width(layout: &Layout) -> usize {
    layout.dims().last().copied().unwrap_or(1)
}

impl CustomOp1 for Matrix {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let x = values(storage, layout)?;
        if width(layout) != self.inputs() {
            bail!("a linear layer of {} inputs got shape {:?}", self.inputs(), layout.shape());
        }
        let rows = x.len() / self.inputs();
        let mut out = vec![0.0; rows * self.outputs()];
        self.apply(x, &mut out);
        Ok((CpuStorage::F32(out), (rows, self.outputs()).into()))
    }
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
        let mut out = Vec::with_capacity(x.len());
        for row in x.chunks_exact(self.weight.len()) {
            let count = row.len() as f32;
            let mean = row.iter().sum::<f32>() / count;
            let variance = row.iter().map(|x| (x - mean) * (x - mean)).sum::<f32>() / count;
            let scale = 1.0 / (variance + self.epsilon).sqrt();
            let affine = self.weight.iter().zip(&self.bias);
            out.extend(row.iter().zip(affine).map(|(x, (weight, bias))| (x - mean) * scale * weight + bias));
        }
        out
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

/// The cell of an LSTM: gates `[rows, 4 units]` in PyTorch's order i, f, g, o and cell states `[rows, units]` give
/// `[2, rows, units]`, hidden states and then cell states.
pub(super) struct Cell;

impl CustomOp2 for Cell {
    fn name(&self) -> &'static str {
        "cell"
    }

    fn cpu_fwd(&self, s1: &CpuStorage, l1: &Layout, s2: &CpuStorage, l2: &Layout) -> Result<(CpuStorage, Shape)> {
        let (gates, cells) = (values(s1, l1)?, values(s2, l2)?);
        if gates.len() != 4 * cells.len() {
            bail!("gates of shape {:?} with cells of shape {:?}", l1.shape(), l2.shape());
        }
        let units = width(l2);
        let mut out = vec![0.0; 2 * cells.len()];
        let (hidden, cell) = out.split_at_mut(cells.len());
        let states = hidden.chunks_exact_mut(units).zip(cell.chunks_exact_mut(units));
        for ((gates, before), (hidden, cell)) in
            gates.chunks_exact(4 * units).zip(cells.chunks_exact(units)).zip(states)
        {
            for unit in 0..units {
                let gate = |number: usize| gates[number * units + unit];
                cell[unit] = sigmoid(gate(1)) * before[unit] + sigmoid(gate(0)) * gate(2).tanh();
                hidden[unit] = sigmoid(gate(3)) * cell[unit].tanh();
            }
        }
        Ok((CpuStorage::F32(out), (2, cells.len() / units, units).into()))
    }
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
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
        let share = width / self.heads;
        let scale = 1.0 / (share as f32).sqrt();
        let mut out = vec![0.0; queries.len()];
        let (mut seen, mut scores) = (Vec::new(), Vec::new());
        for (row, (queries, out)) in queries.chunks_exact(width).zip(out.chunks_exact_mut(width)).enumerate() {
            self.visible.collect(row, &mut seen);
            for head in 0..self.heads {
                let part = head * share..(head + 1) * share;
                let query = &queries[part.clone()];
                scores.clear();
                scores.extend(seen.iter().map(|&at| dot(query, &self.keys[at * width..][part.clone()]) * scale));
                softmax(&mut scores);
                let out = &mut out[part.clone()];
                for (&at, &share) in seen.iter().zip(&scores) {
                    for (out, value) in out.iter_mut().zip(&self.values[at * width..][part.clone()]) {
                        *out += share * value;
                    }
                }
            }
        }
        out
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
        let (mut seen, mut scores) = (Vec::new(), Vec::new());
        for (row, (query, out)) in queries.chunks_exact(width).zip(out.chunks_exact_mut(self.deep)).enumerate() {
            self.visible.collect(row, &mut seen);
            scores.clear();
            scores.extend(seen.iter().map(|&at| {
                let sums = query.iter().zip(&self.keys[at * width..][..width]).map(|(query, key)| (query + key).tanh());
                sums.zip(self.score).map(|(sum, score)| sum * score).sum::<f32>()
            }));
            softmax(&mut scores);
            for (&at, &share) in seen.iter().zip(&scores) {
                for (out, value) in out.iter_mut().zip(&self.values[at * self.deep..][..self.deep]) {
                    *out += share * value;
                }
            }
        }
        Ok((CpuStorage::F32(out), (rows, self.deep).into()))
    }
}

/// Eight sums side by side, then one: the compiler makes vectors of it, and the order never changes.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0f32; 8];
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<8>(), b.as_chunks::<8>());
    for (a, b) in a.iter().zip(b) {
        for (sum, (a, b)) in sums.iter_mut().zip(a.iter().zip(b)) {
            *sum += a * b;
        }
    }
    a_rest.iter().zip(b_rest).fold(sums.iter().sum(), |sum, (a, b)| sum + a * b)
}

/// Scores to shares that add up to 1.
fn softmax(scores: &mut [f32]) {
    let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    for score in scores.iter_mut() {
        *score = (*score - largest).exp();
    }
    let total: f32 = scores.iter().sum();
    for score in scores {
        *score /= total;
    }
}
