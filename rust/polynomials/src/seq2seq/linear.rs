//! [`Linear`]: `y = x W^T + bias` with the weights of the file, as an operation on candle's tensors.

use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp1, Layout, Shape, bail};
use octavo_core::linear::multiply_batch_invariant;
use octavo_engine::parts::{Matrix, Weight};
use octavo_engine::{Result, StoredTensor};

use super::ops::values;
use super::workspace::{Place, Workspace};

/// A linear layer.
pub(crate) struct Linear {
    inputs: usize,
    outputs: usize,
    weight: Weight,
    bias: Vec<f32>,
    /// Where the packed weight is prepared.
    place: Option<Place>,
}

impl Linear {
    /// A layer of packed weights `[outputs, inputs]`, prepared at the first product if `workspace` has room; an empty bias
    /// is zero.
    ///
    /// # Errors
    /// [`octavo_core::Error::Shape`] where the parts of the weight do not fit the shape.
    pub(crate) fn packed(
        weight: Arc<StoredTensor>,
        inputs: usize,
        outputs: usize,
        bias: &[f32],
        workspace: &Arc<Workspace>,
    ) -> Result<Self> {
        let place = workspace.place(&weight.matrix(outputs, inputs))?;
        Ok(Self { inputs, outputs, weight: Weight::Packed(weight), bias: bias.to_vec(), place })
    }

    /// A layer of plain weights `[outputs, inputs]`, row-major; an empty bias is zero.
    pub(crate) fn plain(weight: &[f32], inputs: usize, outputs: usize, bias: &[f32]) -> Self {
        let weight = Weight::Plain(Matrix::new(inputs, outputs, weight, bias));
        Self { inputs, outputs, weight, bias: Vec::new(), place: None }
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
        let mut out = vec![0.0; rows * self.outputs];
        match &self.weight {
            Weight::Plain(matrix) => matrix.apply(x, &mut out),
            Weight::Packed(held) => {
                let held = held.matrix(self.outputs, self.inputs);
                let prepared = self.place.as_ref().map(|place| place.get(&held)).transpose()?.flatten();
                let bias = (!self.bias.is_empty()).then_some(self.bias.as_slice());
                multiply_batch_invariant(x, rows, &held, prepared, bias, &mut out)?;
            }
        }
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
