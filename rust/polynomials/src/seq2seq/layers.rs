//! Layers that the architectures share, by the names of their weights.

use std::borrow::Cow;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use octavo_engine::parts::{Norm, Table, Visible};

use super::error::{Error, Result};
use super::linear::Linear;
use super::ops::{Cell, Each, Sum};
use super::state::{Memory, Source, ids, linear, look_up, norm};
use super::workspace::Workspace;
use crate::weights::{Weight, Weights};

/// Layer norms add this to the variance, as PyTorch does by default.
const EPSILON: f32 = 1e-5;

/// Weights under a common path.
#[derive(Clone)]
pub(super) struct Path<'a> {
    weights: &'a Weights,
    /// For the weights of layers, in the order in which layers are made.
    workspace: &'a Arc<Workspace>,
    path: String,
}

impl<'a> Path<'a> {
    /// All weights.
    pub(super) const fn root(weights: &'a Weights, workspace: &'a Arc<Workspace>) -> Self {
        Self { weights, workspace, path: String::new() }
    }

    /// The weights under `name`, which follows the path so far.
    pub(super) fn at(&self, name: &str) -> Self {
        let path = if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) };
        Self { path, ..*self }
    }

    fn values(&self, name: &str) -> Result<Cow<'a, [f32]>> {
        Ok(self.weights.values(&self.at(name).path)?)
    }

    /// Rows and columns of a matrix, and its weights.
    fn matrix(&self, name: &str) -> Result<(usize, usize, &'a Weight)> {
        match self.weights.get(&self.at(name).path)? {
            (&[rows, columns], weight) => Ok((rows, columns, weight)),
            (shape, _) => Err(Error::defect(format!("{}: a matrix of shape {shape:?}", self.path))),
        }
    }

    /// The rows of a matrix that ids look up.
    pub(super) fn table(&self, name: &str) -> Result<Table> {
        let (rows, width, weight) = self.matrix(name)?;
        Ok(match weight {
            Weight::Packed(held) => Table::Packed(Arc::clone(held), rows, width),
            Weight::Plain(values) => Table::Plain(values.to_vec(), width),
        })
    }

    fn layer(&self, weight: &str, bias: &[f32]) -> Result<Linear> {
        let (outputs, inputs, weight) = self.matrix(weight)?;
        Ok(match weight {
            Weight::Packed(held) => Linear::packed(Arc::clone(held), inputs, outputs, bias, self.workspace)?,
            Weight::Plain(values) => Linear::plain(values, inputs, outputs, bias),
        })
    }

    /// `weight` and `bias` as a linear layer.
    pub(super) fn linear(&self) -> Result<Linear> {
        self.layer("weight", &self.values("bias")?)
    }

    /// `weight` alone as a linear layer.
    pub(super) fn linear_without_bias(&self) -> Result<Linear> {
        self.layer("weight", &[])
    }

    /// `weight` and `bias` as a layer norm.
    pub(super) fn norm(&self) -> Result<Norm> {
        let (weight, bias) = (self.values("weight")?.into_owned(), self.values("bias")?.into_owned());
        Ok(Norm { weight, bias, epsilon: EPSILON })
    }

    /// The numbers of `weight`.
    pub(super) fn vector(&self) -> Result<Vec<f32>> {
        self.values("weight").map(Cow::into_owned)
    }
}

/// Multi-head attention: four projections.
pub(super) struct Attention {
    heads: usize,
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
}

impl Attention {
    pub(super) fn new(path: &Path<'_>, heads: usize) -> Result<Self> {
        Ok(Self {
            heads,
            query: path.at("query").linear()?,
            key: path.at("key").linear()?,
            value: path.at("value").linear()?,
            output: path.at("output").linear()?,
        })
    }

    /// Adds keys and values of `x` to a memory.
    pub(super) fn remember(&self, x: &Tensor, memory: &mut Memory) -> Result<()> {
        Ok(memory.push(&linear(x, &self.key)?, &linear(x, &self.value)?)?)
    }

    /// Attends from `x` to a memory.
    pub(super) fn forward(&self, x: &Tensor, memory: &Memory, visible: Visible<'_>) -> Result<Tensor> {
        let mixed = memory.attend(&linear(x, &self.query)?, self.heads, visible)?;
        Ok(linear(&mixed, &self.output)?)
    }
}

/// `x += attention(norm(x))` to a memory that does not depend on x.
pub(super) struct Cross {
    norm: Norm,
    pub(super) attention: Attention,
}

impl Cross {
    pub(super) fn new(path: &Path<'_>, heads: usize) -> Result<Self> {
        let attention = Attention::new(&path.at("cross_attention"), heads)?;
        Ok(Self { norm: path.at("cross_norm").norm()?, attention })
    }

    pub(super) fn forward(&self, x: &Tensor, memory: &Memory, visible: Visible<'_>) -> Result<Tensor> {
        let normed = norm(x, &self.norm)?;
        Ok(x.apply_op2_no_bwd(&self.attention.forward(&normed, memory, visible)?, &Sum)?)
    }
}

/// `x += attention(norm(x))` to a memory that x itself is first added to.
pub(super) struct Own {
    norm: Norm,
    attention: Attention,
}

impl Own {
    pub(super) fn new(path: &Path<'_>, heads: usize) -> Result<Self> {
        let attention = Attention::new(&path.at("self_attention"), heads)?;
        Ok(Self { norm: path.at("self_norm").norm()?, attention })
    }

    pub(super) fn forward(&self, x: &Tensor, memory: &mut Memory, visible: Visible<'_>) -> Result<Tensor> {
        let normed = norm(x, &self.norm)?;
        self.attention.remember(&normed, memory)?;
        Ok(x.apply_op2_no_bwd(&self.attention.forward(&normed, memory, visible)?, &Sum)?)
    }
}

/// `x += contract(relu(expand(norm(x))))`.
pub(super) struct FeedForward {
    norm: Norm,
    expand: Linear,
    contract: Linear,
}

impl FeedForward {
    pub(super) fn new(path: &Path<'_>) -> Result<Self> {
        let (norm, path) = (path.at("feedforward_norm").norm()?, path.at("feedforward"));
        Ok(Self { norm, expand: path.at("expand").linear()?, contract: path.at("contract").linear()? })
    }

    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let inner = linear(&norm(x, &self.norm)?, &self.expand)?.apply_op1_no_bwd(&Each(|x| x.max(0.0)))?;
        Ok(x.apply_op2_no_bwd(&linear(&inner, &self.contract)?, &Sum)?)
    }
}

/// A layer norm and the last linear layer.
pub(super) struct Output {
    norm: Norm,
    linear: Linear,
}

impl Output {
    pub(super) fn new(path: &Path<'_>) -> Result<Self> {
        Ok(Self { norm: path.at("output_norm").norm()?, linear: path.at("output").linear()? })
    }

    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(linear(&norm(x, &self.norm)?, &self.linear)?)
    }
}

/// Hidden and cell states `[rows, units]` of an LSTM, from the input's share of its gates `[rows, 4 units]`.
fn cell_step(input: &Tensor, recurrent: &Linear, hidden: &Tensor, cell: &Tensor) -> Result<(Tensor, Tensor)> {
    let states = input.apply_op3_no_bwd(&linear(hidden, recurrent)?, cell, &Cell)?;
    Ok((states.get(0)?, states.get(1)?))
}

/// One layer of an LSTM.
pub(super) struct Lstm {
    input: Linear,
    recurrent: Linear,
}

impl Lstm {
    pub(super) fn new(path: &Path<'_>) -> Result<Self> {
        let input = path.layer("weight_ih_l0", &path.values("bias_ih_l0")?)?;
        Ok(Self { input, recurrent: path.layer("weight_hh_l0", &path.values("bias_hh_l0")?)? })
    }

    /// Hidden and cell states `[rows, units]` after one more input.
    pub(super) fn step(&self, x: &Tensor, hidden: &Tensor, cell: &Tensor) -> Result<(Tensor, Tensor)> {
        cell_step(&linear(x, &self.input)?, &self.recurrent, hidden, cell)
    }
}

/// An LSTM whose inputs are tokens.
pub(super) struct TokenLstm {
    embedding: Table,
    lstm: Lstm,
}

impl TokenLstm {
    /// `embedding`: vectors of the tokens, `[vocabulary, inputs]`.
    pub(super) fn new(path: &Path<'_>, embedding: Table) -> Result<Self> {
        Ok(Self { embedding, lstm: Lstm::new(path)? })
    }

    /// The share of the gates, `[tokens, 4 units]`, that each token brings in; equal tokens are computed once.
    fn shares(&self, tokens: &[u8]) -> Result<Tensor> {
        let mut places = [None; 256];
        let mut distinct = Vec::new();
        let of_each = tokens.iter().map(|&token| {
            *places[usize::from(token)].get_or_insert_with(|| {
                distinct.push(token);
                distinct.len() as u32 - 1
            })
        });
        let of_each = Tensor::new(of_each.collect::<Vec<_>>(), &Device::Cpu)?;
        let shares = linear(&look_up(&self.embedding, &ids(&distinct))?, &self.lstm.input)?;
        Ok(shares.index_select(&of_each, 0)?)
    }

    /// Hidden and cell states `[rows, units]` after one more token a row.
    pub(super) fn step(&self, tokens: &[u8], hidden: &Tensor, cell: &Tensor) -> Result<(Tensor, Tensor)> {
        cell_step(&self.shares(tokens)?, &self.lstm.recurrent, hidden, cell)
    }

    /// States of all steps, `[steps, units]`: the first step of all rows that have one, then the second, and so on.
    ///
    /// `order`: the rows by descending length, the order within each step. `token(row, step)` is the input.
    fn run(&self, rows: &[&[u8]], order: &[usize], token: impl Fn(&[u8], usize) -> u8) -> Result<Tensor> {
        let lengths = || (0..).map(|step| order.partition_point(|&row| rows[row].len() > step)).take_while(|&n| n > 0);
        let tokens = lengths()
            .enumerate()
            .flat_map(|(step, going)| order[..going].iter().map(move |&row| (row, step)).collect::<Vec<_>>());
        let shares = self.shares(&tokens.map(|(row, step)| token(rows[row], step)).collect::<Vec<_>>())?;
        let shape = (rows.len(), self.lstm.recurrent.inputs());
        let mut hidden = Tensor::zeros(shape, DType::F32, &Device::Cpu)?;
        let mut cell = hidden.clone();
        let (mut all, mut first) = (Vec::new(), 0);
        for going in lengths() {
            let input = shares.narrow(0, first, going)?;
            first += going;
            let (before, cells) = (hidden.narrow(0, 0, going)?, cell.narrow(0, 0, going)?);
            (hidden, cell) = cell_step(&input, &self.lstm.recurrent, &before, &cells)?;
            all.push(hidden.clone());
        }
        Ok(Tensor::cat(&all, 0)?)
    }
}

/// An LSTM over each row and another over the row in reverse.
pub(super) struct BidirectionalLstm {
    forwards: TokenLstm,
    backwards: TokenLstm,
}

impl BidirectionalLstm {
    pub(super) fn new(path: &Path<'_>, embedding: impl Fn() -> Result<Table>) -> Result<Self> {
        let lstm = |name: &str| TokenLstm::new(&path.at(name), embedding()?);
        Ok(Self { forwards: lstm("forwards")?, backwards: lstm("backwards")? })
    }

    /// The states of all positions, `[positions, 2 units]`, and the last state of both directions, `[rows, 2 units]`.
    pub(super) fn forward(&self, source: &Source<'_>) -> Result<(Tensor, Tensor)> {
        let rows = source.rows;
        let mut order: Vec<usize> = (0..rows.len()).collect();
        order.sort_by_key(|&row| std::cmp::Reverse(rows[row].len()));
        let mut places = vec![0; rows.len()];
        for (place, &row) in order.iter().enumerate() {
            places[row] = place;
        }
        // Where the states of each step begin.
        let longest = rows[order[0]].len();
        let mut starts = Vec::with_capacity(longest);
        let mut start = 0;
        for step in 0..longest {
            starts.push(start);
            start += order.partition_point(|&row| rows[row].len() > step);
        }
        let ahead = self.forwards.run(rows, &order, |row, step| row[step])?;
        let mirrored = self.backwards.run(rows, &order, |row, step| row[row.len() - 1 - step])?;
        let pick = |states: &Tensor, steps: &dyn Fn(usize) -> Vec<usize>| -> Result<Tensor> {
            let chosen = rows.iter().zip(&places).flat_map(|(row, place)| {
                steps(row.len()).into_iter().map(|step| (starts[step] + place) as u32).collect::<Vec<_>>()
            });
            Ok(states.index_select(&Tensor::new(chosen.collect::<Vec<_>>(), &Device::Cpu)?, 0)?)
        };
        let in_order = pick(&ahead, &|length| (0..length).collect())?;
        let in_reverse = pick(&mirrored, &|length| (0..length).rev().collect())?;
        let states = Tensor::cat(&[in_order, in_reverse], 1)?;
        let (last, first) = (pick(&ahead, &|length| vec![length - 1])?, pick(&mirrored, &|length| vec![length - 1])?);
        Ok((states, Tensor::cat(&[last, first], 1)?))
    }
}

/// Hidden and cell state of a decoder from the last states of the encoder.
pub(super) fn bridge(matrix: &Linear, ends: &Tensor) -> Result<(Tensor, Tensor)> {
    let both = linear(ends, matrix)?;
    let halves = both.chunk(2, 1)?;
    match &halves[..] {
        [hidden, cell] => Ok((hidden.contiguous()?.apply_op1_no_bwd(&Each(f32::tanh))?, cell.contiguous()?)),
        _ => Err(Error::defect("the bridge has an odd number of outputs")),
    }
}
