//! Custom ops on candle tensors, for operations that candle lacks or runs on threads of its own.
//!
//! All take contiguous f32 tensors whose rows are the first dimension, and treat every row by itself.

use candle_core::{CpuStorage, CustomOp1, CustomOp2, CustomOp3, Layout, Result, Shape, bail};
use octavo_core::simd::exp::unfused::{sigmoid, tanh};
use octavo_engine::parts::{Attend, Loops, Norm, Visible, at_level, dot, softmax};

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

/// A layer norm over the last dimension.
pub(super) struct NormOp<'a>(pub(super) &'a Norm);

impl CustomOp1 for NormOp<'_> {
    fn name(&self) -> &'static str {
        "norm"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let x = values(storage, layout)?;
        let Self(norm) = self;
        if width(layout) != norm.weight.len() {
            bail!("a norm of width {} got shape {:?}", norm.weight.len(), layout.shape());
        }
        Ok((CpuStorage::F32(norm.apply(x)), layout.shape().clone()))
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

/// Multi-head attention of queries `[rows, width]` to keys and values of the same width.
pub(super) struct AttendOp<'a>(pub(super) Attend<'a>);

impl CustomOp1 for AttendOp<'_> {
    fn name(&self) -> &'static str {
        "attend"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (queries, width) = (values(storage, layout)?, width(layout));
        let Self(attend) = self;
        let rows = attend.visible.rows();
        if rows * width != queries.len() {
            bail!("queries of shape {:?} for {rows} rows", layout.shape());
        }
        Ok((CpuStorage::F32(attend.apply(queries, width)), layout.shape().clone()))
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
