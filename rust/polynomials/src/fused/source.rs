//! [`Source`]: the layers of a model by name, in float or in int8.

use std::borrow::Cow;

use octavo_engine::Result;

use crate::config::Config;
use crate::integer_weights::{IntegerLinear, IntegerLstm, IntegerWeights, Norm};
use crate::weights::Weights;

/// A linear layer, or the recurrent matrix of an LSTM.
#[derive(Clone, Debug)]
pub(super) struct Layer<'a, C: Clone, N> {
    pub(super) name: String,
    pub(super) columns: usize,
    /// One row an output, row-major.
    pub(super) codes: Cow<'a, [C]>,
    /// One number a row.
    pub(super) bias: Vec<N>,
    /// What a sum is worth, one a row; empty in float.
    pub(super) scales: Vec<f32>,
    /// One over the step of the input's codes; 1 in float.
    pub(super) inverse: f32,
    /// True where the codes of the input have 16 bits; false in float.
    pub(super) wide: bool,
}

impl<C: Copy + Default, N> Layer<'_, C, N> {
    /// An element; zero where there is no such column.
    pub(super) fn code(&self, row: usize, column: Option<usize>) -> C {
        column.map_or(C::default(), |column| self.codes[row * self.columns + column])
    }
}

/// Tensors by name.
pub(super) trait Values {
    /// The values of a tensor, row-major.
    fn values(&self, name: &str) -> Result<Cow<'_, [f32]>>;
}

impl Values for Weights {
    fn values(&self, name: &str) -> Result<Cow<'_, [f32]>> {
        Weights::values(self, name)
    }
}

/// Layers of an integer model by name.
pub(super) trait IntegerLayers {
    /// A linear layer.
    fn linear(&self, name: &str) -> Result<&IntegerLinear>;
    /// An LSTM.
    fn lstm(&self, name: &str) -> Result<&IntegerLstm>;
    /// A layer norm.
    fn norm(&self, name: &str) -> Result<&Norm>;
}

impl IntegerLayers for IntegerWeights {
    fn linear(&self, name: &str) -> Result<&IntegerLinear> {
        IntegerWeights::linear(self, name)
    }
    fn lstm(&self, name: &str) -> Result<&IntegerLstm> {
        IntegerWeights::lstm(self, name)
    }
    fn norm(&self, name: &str) -> Result<&Norm> {
        IntegerWeights::norm(self, name)
    }
}

/// The recurrent matrix of an LSTM, and what each token adds to its sums.
pub(super) type Recurrent<'a, C, N> = (Layer<'a, C, N>, Vec<N>);

/// Where a model comes from.
pub(super) trait Source {
    /// An element of a matrix.
    type Code: Copy + Default;
    /// What sums are counted in.
    type Number: Copy;

    /// A linear layer, its outputs times `factor`.
    fn linear(&self, name: &str, factor: f32) -> Result<Layer<'_, Self::Code, Self::Number>>;
    /// The recurrent matrix of an LSTM, its bias all zeros, and what each token adds to the gates: `[vocabulary, rows]`.
    fn lstm(&self, name: &str) -> Result<Recurrent<'_, Self::Code, Self::Number>>;
    /// Gain and bias of a layer norm.
    fn norm(&self, name: &str) -> Result<(Vec<f32>, Vec<f32>)>;
}

/// A float model.
#[derive(Clone, Copy, Debug)]
pub(super) struct FloatSource<'a, V> {
    pub(super) config: &'a Config,
    pub(super) weights: &'a V,
}

impl<V: Values> Source for FloatSource<'_, V> {
    type Code = f32;
    type Number = f32;

    fn linear(&self, name: &str, factor: f32) -> Result<Layer<'_, f32, f32>> {
        let codes = self.weights.values(&format!("{name}.weight"))?;
        let bias = self.weights.values(&format!("{name}.bias"))?;
        Ok(Layer {
            name: name.to_owned(),
            columns: codes.len() / bias.len(),
            codes: codes.iter().map(|code| code * factor).collect(),
            bias: bias.iter().map(|bias| bias * factor).collect(),
            scales: Vec::new(),
            inverse: 1.0,
            wide: false,
        })
    }

    fn lstm(&self, name: &str) -> Result<Recurrent<'_, f32, f32>> {
        let get = |part: &str| self.weights.values(&format!("{name}.{part}_l0"));
        let (input, codes) = (get("weight_ih")?, get("weight_hh")?);
        let bias: Vec<f64> =
            get("bias_ih")?.iter().zip(&*get("bias_hh")?).map(|(&a, &b)| f64::from(a) + f64::from(b)).collect();
        let embedding = if name == "decoder" { "target_embedding.weight" } else { "source_embedding.weight" };
        let width = self.config.embedding;
        let mut table = Vec::new();
        for token in self.weights.values(embedding)?.chunks(width) {
            table.extend(input.chunks(width).zip(&bias).map(|(row, bias)| {
                let product: f64 = row.iter().zip(token).map(|(&w, &x)| f64::from(w) * f64::from(x)).sum();
                (product + bias) as f32
            }));
        }
        let layer = Layer {
            name: name.to_owned(),
            columns: codes.len() / bias.len(),
            codes,
            bias: vec![0.0; bias.len()],
            scales: Vec::new(),
            inverse: 1.0,
            wide: false,
        };
        Ok((layer, table))
    }

    fn norm(&self, name: &str) -> Result<(Vec<f32>, Vec<f32>)> {
        let get = |part: &str| self.weights.values(&format!("{name}.{part}"));
        Ok((get("weight")?.into_owned(), get("bias")?.into_owned()))
    }
}

/// An integer model.
#[derive(Clone, Copy, Debug)]
pub(super) struct IntegerSource<'a, I>(pub(super) &'a I);

impl<I: IntegerLayers> Source for IntegerSource<'_, I> {
    type Code = i8;
    type Number = i32;

    fn linear(&self, name: &str, factor: f32) -> Result<Layer<'_, i8, i32>> {
        let linear = self.0.linear(name)?;
        Ok(Layer {
            name: name.to_owned(),
            columns: linear.columns,
            codes: linear.codes.as_slice().into(),
            bias: linear.bias.clone(),
            scales: linear.scales.iter().map(|scale| linear.input_scale * scale * factor).collect(),
            inverse: 1.0 / linear.input_scale,
            wide: linear.wide,
        })
    }

    fn lstm(&self, name: &str) -> Result<Recurrent<'_, i8, i32>> {
        let lstm = self.0.lstm(name)?;
        let layer = Layer {
            name: name.to_owned(),
            columns: lstm.units,
            codes: lstm.codes.as_slice().into(),
            bias: vec![0; 4 * lstm.units],
            scales: lstm.scales.iter().map(|scale| lstm.state_scale * scale).collect(),
            inverse: 1.0 / lstm.state_scale,
            wide: false,
        };
        Ok((layer, lstm.table.clone()))
    }

    fn norm(&self, name: &str) -> Result<(Vec<f32>, Vec<f32>)> {
        let norm = self.0.norm(name)?;
        Ok((norm.weight.clone(), norm.bias.clone()))
    }
}
