//! [`PackedLinear`]: `y = x W^T + bias` with packed weights, on candle's tensors.

use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp1, DType, Layout, Module, Shape, Tensor, bail};
use octavo_core::Format;

use crate::layers::{Added, Dense};
use crate::packed::Weight;
use crate::tensors::StoredTensor;

/// A linear layer whose weight stays packed, in the place of `candle_nn::Linear`.
///
/// Inputs are `[.., inputs]` of any float dtype on the CPU; products are float32, or of integers where the model says so, and
/// the outputs have the dtype of the inputs. A row's outputs do not depend on the other rows. There is no gradient: a backward
/// pass that reaches the layer is an error.
#[derive(Clone)]
pub struct PackedLinear {
    inputs: usize,
    outputs: usize,
    nbytes: usize,
    operation: Arc<Box<dyn CustomOp1 + Send + Sync>>,
}

impl PackedLinear {
    pub(super) fn new(layer: Dense) -> Self {
        let (inputs, outputs, nbytes) = (layer.inputs, layer.outputs, layer.nbytes());
        Self { inputs, outputs, nbytes, operation: Arc::new(Box::new(layer)) }
    }

    /// Packs the weight `[outputs, inputs]` of a layer of candle.
    ///
    /// # Errors
    /// Where a tensor has another shape or a value that is not finite, and where the format does not take its shape.
    pub fn pack(weight: &Tensor, bias: Option<&Tensor>, format: Format) -> candle_core::Result<Self> {
        let (outputs, inputs) = weight.dims2()?;
        let values = |tensor: &Tensor| tensor.flatten_all()?.to_dtype(DType::F32)?.to_vec1::<f32>();
        if let Some(bias) = bias.filter(|bias| bias.dims() != [outputs]) {
            bail!("a bias of shape {:?} beside a weight of shape {:?}", bias.shape(), weight.shape());
        }
        let held = StoredTensor::encode(&values(weight)?, [outputs, inputs], format)?;
        let bias = Added::Floats(bias.map(values).transpose()?.unwrap_or_default());
        let weight = Weight::Packed(Arc::new(held));
        Ok(Self::new(Dense { inputs, outputs, weight, bias, input: None, output: None, integer: false }))
    }

    /// Numbers of a row of inputs.
    pub const fn inputs(&self) -> usize {
        self.inputs
    }

    /// Numbers of a row of outputs.
    pub const fn outputs(&self) -> usize {
        self.outputs
    }

    /// Bytes of the weight that a product reads.
    pub const fn nbytes(&self) -> usize {
        self.nbytes
    }
}

impl std::fmt::Debug for PackedLinear {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { inputs, outputs, nbytes, .. } = self;
        let mut shown = f.debug_struct("PackedLinear");
        shown.field("inputs", inputs).field("outputs", outputs).field("nbytes", nbytes).finish_non_exhaustive()
    }
}

impl Module for PackedLinear {
    fn forward(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        let y = x.to_dtype(DType::F32)?.contiguous()?.apply_op1_arc(Arc::clone(&self.operation))?;
        y.to_dtype(x.dtype())
    }
}

impl CustomOp1 for Dense {
    fn name(&self) -> &'static str {
        "packed-linear"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        let Some((start, end)) = layout.contiguous_offsets() else {
            bail!("a tensor of shape {:?} is not contiguous", layout.shape());
        };
        let Some((&width, rows)) = layout.dims().split_last().filter(|(width, _)| **width == self.inputs) else {
            bail!("a linear layer of {} inputs got shape {:?}", self.inputs, layout.shape());
        };
        let out = self.apply_rows_independently(&storage.as_slice::<f32>()?[start..end])?;
        debug_assert_eq!(out.len() * width, (end - start) * self.outputs);
        let shape: Vec<usize> = rows.iter().copied().chain([self.outputs]).collect();
        Ok((CpuStorage::F32(out), shape.into()))
    }
}
