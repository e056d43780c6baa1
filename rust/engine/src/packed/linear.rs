//! [`Linear`]: `y = x W^T + bias` with the weights of the file, as an operation on candle's tensors.

use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp1, Layout, Shape, bail};
use octavo_core::linear::{kernel, multiply};
use octavo_core::{Result, Values, ValuesMut};

use super::Matrix;
use crate::general::values;
use crate::tensors::Held;

/// With this many rows or more octavo-core multiplies by one kernel whatever their number, so that no row's result
/// depends on how many others there are.
const MANY_ROWS: usize = 5;

/// What a layer multiplies with.
pub(crate) enum Weight {
    /// `[outputs, inputs]`, in the codes of the file.
    Packed(Arc<Held>),
    /// Plain numbers, the bias among them.
    Plain(Matrix),
}

/// A linear layer.
pub(crate) struct Linear {
    inputs: usize,
    outputs: usize,
    weight: Weight,
    bias: Vec<f32>,
}

impl Linear {
    /// A layer of packed weights `[outputs, inputs]`; an empty bias is zero.
    pub(crate) fn packed(weight: Arc<Held>, inputs: usize, outputs: usize, bias: &[f32]) -> Self {
        Self { inputs, outputs, weight: Weight::Packed(weight), bias: bias.to_vec() }
    }

    /// A layer of plain weights `[outputs, inputs]`, row-major; an empty bias is zero.
    pub(crate) fn plain(weight: &[f32], inputs: usize, outputs: usize, bias: &[f32]) -> Self {
        let weight = Weight::Plain(Matrix::new(inputs, outputs, weight, bias));
        Self { inputs, outputs, weight, bias: Vec::new() }
    }

    /// Columns of the weight.
    pub(crate) const fn inputs(&self) -> usize {
        self.inputs
    }

    /// The outputs `[rows, outputs]` of `x`, `[rows, inputs]`. A row's outputs do not depend on the other rows.
    ///
    /// # Errors
    /// Where memory is short.
    pub(crate) fn apply(&self, x: &[f32]) -> Result<Vec<f32>> {
        let rows = x.len() / self.inputs;
        let held = match &self.weight {
            Weight::Plain(matrix) => {
                let mut out = vec![0.0; rows * self.outputs];
                matrix.apply(x, &mut out);
                return Ok(out);
            }
            Weight::Packed(held) => held.matrix(self.outputs, self.inputs),
        };
        let by = |rows| kernel(held.format, None, rows, self.outputs, self.inputs);
        let bias = (!self.bias.is_empty()).then_some(Values::F32(&self.bias));
        if rows >= MANY_ROWS || by(rows)? == by(MANY_ROWS)? {
            let mut out = vec![0.0; rows * self.outputs];
            multiply(Values::F32(x), rows, &held, bias, ValuesMut::F32(&mut out))?;
            return Ok(out);
        }
        let (mut filled, mut out) = (x.to_vec(), vec![0.0; MANY_ROWS * self.outputs]);
        filled.resize(MANY_ROWS * self.inputs, 0.0);
        multiply(Values::F32(&filled), MANY_ROWS, &held, bias, ValuesMut::F32(&mut out))?;
        out.truncate(rows * self.outputs);
        Ok(out)
    }
}

impl CustomOp1 for Linear {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        let x = values(storage, layout)?;
        if layout.dims().last() != Some(&self.inputs) {
            bail!("a linear layer of {} inputs got shape {:?}", self.inputs, layout.shape());
        }
        let out = self.apply(x).map_err(candle_core::Error::wrap)?;
        let rows = out.len() / self.outputs;
        Ok((CpuStorage::F32(out), (rows, self.outputs).into()))
    }
}
