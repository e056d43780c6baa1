//! Layers that the architectures share, by the names of their weights.

use candle_core::{DType, Device, Tensor};

use super::ops::{Cell, Norm, Visible};
use super::product::Matrix;
use super::state::{Memory, Source, ids, linear};
use crate::error::{Error, Result};
use crate::weights::Weights;

/// Layer norms add this to the variance, as PyTorch does by default.
const EPSILON: f32 = 1e-5;

/// Weights under a common path.
#[derive(Clone)]
pub(super) struct Path<'a> {
    weights: &'a Weights,
    path: String,
}

impl<'a> Path<'a> {
    /// All weights.
    pub(super) const fn root(weights: &'a Weights) -> Self {
        Self { weights, path: String::new() }
    }

    /// The weights under `name`, which follows the path so far.
    pub(super) fn at(&self, name: &str) -> Self {
        let path = if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) };
        Self { weights: self.weights, path }
    }

    fn values(&self, name: &str) -> Result<&'a [f32]> {
        self.weights.values(&self.at(name).path)
    }

    /// A tensor as candle holds it.
    pub(super) fn tensor(&self, name: &str) -> Result<Tensor> {
        let weight = self.weights.get(&self.at(name).path)?;
        Ok(Tensor::from_slice(&weight.values, weight.shape.as_slice(), &Device::Cpu)?)
    }

    fn matrix(&self, weight: &str, bias: &[f32]) -> Result<Matrix> {
        let weight = self.weights.get(&self.at(weight).path)?;
        match weight.shape[..] {
            [outputs, inputs] => Ok(Matrix::new(inputs, outputs, &weight.values, bias)),
            _ => Err(Error::Internal(format!("{}: a matrix of shape {:?}", self.path, weight.shape))),
        }
    }

    /// `weight` and `bias` as a linear layer.
    pub(super) fn linear(&self) -> Result<Matrix> {
        self.matrix("weight", self.values("bias")?)
    }

    /// `weight` alone as a linear layer.
    pub(super) fn linear_without_bias(&self) -> Result<Matrix> {
        self.matrix("weight", &[])
    }

    /// `weight` and `bias` as a layer norm.
    pub(super) fn norm(&self) -> Result<Norm> {
        let (weight, bias) = (self.values("weight")?.to_vec(), self.values("bias")?.to_vec());
        Ok(Norm { weight, bias, epsilon: EPSILON })
    }

    /// The numbers of `weight`.
    pub(super) fn vector(&self) -> Result<Vec<f32>> {
        self.values("weight").map(<[f32]>::to_vec)
    }
}

/// Multi-head attention: four projections.
pub(super) struct Attention {
    heads: usize,
    query: Matrix,
    key: Matrix,
    value: Matrix,
    output: Matrix,
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
        let normed = x.apply_op1_no_bwd(&self.norm)?;
        Ok((x + self.attention.forward(&normed, memory, visible)?)?)
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
        let normed = x.apply_op1_no_bwd(&self.norm)?;
        self.attention.remember(&normed, memory)?;
        Ok((x + self.attention.forward(&normed, memory, visible)?)?)
    }
}

/// `x += contract(relu(expand(norm(x))))`.
pub(super) struct FeedForward {
    norm: Norm,
    expand: Matrix,
    contract: Matrix,
}

impl FeedForward {
    pub(super) fn new(path: &Path<'_>) -> Result<Self> {
        let (norm, path) = (path.at("feedforward_norm").norm()?, path.at("feedforward"));
        Ok(Self { norm, expand: path.at("expand").linear()?, contract: path.at("contract").linear()? })
    }

    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let inner = linear(&x.apply_op1_no_bwd(&self.norm)?, &self.expand)?.relu()?;
        Ok((x + linear(&inner, &self.contract)?)?)
    }
}

/// A layer norm and the last linear layer.
pub(super) struct Output {
    norm: Norm,
    linear: Matrix,
}

impl Output {
    pub(super) fn new(path: &Path<'_>) -> Result<Self> {
        Ok(Self { norm: path.at("output_norm").norm()?, linear: path.at("output").linear()? })
    }

    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(linear(&x.apply_op1_no_bwd(&self.norm)?, &self.linear)?)
    }
}

/// Hidden and cell states `[rows, units]` of an LSTM, from the input's share of its gates `[rows, 4 units]`.
fn cell_step(input: &Tensor, recurrent: &Matrix, hidden: &Tensor, cell: &Tensor) -> Result<(Tensor, Tensor)> {
    let gates = (input + linear(hidden, recurrent)?)?;
    let states = gates.apply_op2_no_bwd(cell, &Cell)?;
    Ok((states.get(0)?, states.get(1)?))
}

/// One layer of an LSTM.
pub(super) struct Lstm {
    input: Matrix,
    recurrent: Matrix,
}

impl Lstm {
    pub(super) fn new(path: &Path<'_>) -> Result<Self> {
        let input = path.matrix("weight_ih_l0", path.values("bias_ih_l0")?)?;
        Ok(Self { input, recurrent: path.matrix("weight_hh_l0", path.values("bias_hh_l0")?)? })
    }

    /// Hidden and cell states `[rows, units]` after one more input.
    pub(super) fn step(&self, x: &Tensor, hidden: &Tensor, cell: &Tensor) -> Result<(Tensor, Tensor)> {
        cell_step(&linear(x, &self.input)?, &self.recurrent, hidden, cell)
    }
}

/// An LSTM whose inputs are tokens: their vectors and the input matrix are folded into one table.
pub(super) struct TokenLstm {
    table: Tensor,
    recurrent: Matrix,
}

impl TokenLstm {
    /// `embedding`: vectors of the tokens, `[vocabulary, inputs]`.
    pub(super) fn new(path: &Path<'_>, embedding: &Tensor) -> Result<Self> {
        let Lstm { input, recurrent } = Lstm::new(path)?;
        Ok(Self { table: linear(embedding, &input)?, recurrent })
    }

    /// Hidden and cell states `[rows, units]` after one more token a row.
    pub(super) fn step(&self, tokens: &Tensor, hidden: &Tensor, cell: &Tensor) -> Result<(Tensor, Tensor)> {
        cell_step(&self.table.index_select(tokens, 0)?, &self.recurrent, hidden, cell)
    }

    /// States of all steps, `[steps, units]`: the first step of all rows that have one, then the second, and so on.
    ///
    /// `order`: the rows by descending length, the order within each step. `token(row, step)` is the input.
    fn run(&self, rows: &[&[u8]], order: &[usize], token: impl Fn(&[u8], usize) -> u8) -> Result<Tensor> {
        let shape = (rows.len(), self.recurrent.inputs());
        let mut hidden = Tensor::zeros(shape, DType::F32, &Device::Cpu)?;
        let mut cell = hidden.clone();
        let mut all = Vec::new();
        for step in 0.. {
            let going = order.partition_point(|&row| rows[row].len() > step);
            if going == 0 {
                break;
            }
            let tokens = ids(order[..going].iter().map(|&row| token(rows[row], step)))?;
            (hidden, cell) = self.step(&tokens, &hidden.narrow(0, 0, going)?, &cell.narrow(0, 0, going)?)?;
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
    pub(super) fn new(path: &Path<'_>, embedding: &Tensor) -> Result<Self> {
        let lstm = |name: &str| TokenLstm::new(&path.at(name), embedding);
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
pub(super) fn bridge(matrix: &Matrix, ends: &Tensor) -> Result<(Tensor, Tensor)> {
    let both = linear(ends, matrix)?;
    let halves = both.chunk(2, 1)?;
    match &halves[..] {
        [hidden, cell] => Ok((hidden.contiguous()?.tanh()?, cell.contiguous()?)),
        _ => Err(Error::Internal("the bridge has an odd number of outputs".to_owned())),
    }
}
