//! [`PackedVarBuilder`]: the layers of a model folder by the names of their weights.

use std::path::Path;
use std::rc::Rc;

use candle_core::{Device, Shape, Tensor};

use super::embedding::PackedEmbedding;
use super::linear::PackedLinear;
use crate::error::Result;
use crate::layers::{Demand, Source};

/// The weights of a model folder below a path, as `candle_nn::VarBuilder` gives those of a checkpoint.
///
/// The file is one of `octavo.save_model` or `octavo pack`, or a plain checkpoint: layers whose weights are not packed are
/// float32. A layer that the file describes rounds its inputs and outputs as it says.
#[derive(Clone)]
pub struct PackedVarBuilder {
    source: Rc<Source>,
    path: String,
}

impl std::fmt::Debug for PackedVarBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PackedVarBuilder").field("path", &self.path).finish_non_exhaustive()
    }
}

impl PackedVarBuilder {
    /// Opens a folder and checks the headers of its weights.
    ///
    /// # Errors
    /// [`octavo_core::Error::Io`] where a file cannot be read; [`octavo_core::Error::Container`] naming the file for one that is
    /// no container, and for a folder without weights.
    pub fn open(folder: &Path) -> Result<Self> {
        Ok(Self { source: Rc::new(Source::open(folder, &[])?), path: String::new() })
    }

    /// The weights below `name`.
    #[must_use]
    pub fn pp(&self, name: impl std::fmt::Display) -> Self {
        Self { source: Rc::clone(&self.source), path: self.name(name) }
    }

    fn name(&self, name: impl std::fmt::Display) -> String {
        if self.path.is_empty() { name.to_string() } else { format!("{}.{name}", self.path) }
    }

    /// Whether the file has a tensor, or ties it to one that it has.
    pub fn contains(&self, name: &str) -> bool {
        self.source.has(&self.name(name))
    }

    /// `weight` and `bias` as a linear layer.
    ///
    /// # Errors
    /// [`octavo_core::Error::Container`] naming file and tensor where one is missing or has another shape or dtype, and for a
    /// layer that is described as another than a packed linear one.
    pub fn linear(&self, inputs: usize, outputs: usize) -> Result<PackedLinear> {
        self.layer(Demand::of(inputs, outputs, true))
    }

    /// `weight` alone as a linear layer.
    ///
    /// # Errors
    /// As [`Self::linear`].
    pub fn linear_no_bias(&self, inputs: usize, outputs: usize) -> Result<PackedLinear> {
        self.layer(Demand::of(inputs, outputs, false))
    }

    fn layer(&self, demand: Demand) -> Result<PackedLinear> {
        Ok(PackedLinear::new(self.source.dense(&self.path, demand)?))
    }

    /// `weight` as rows that ids look up.
    ///
    /// # Errors
    /// As [`Self::linear`].
    pub fn embedding(&self, rows: usize, width: usize) -> Result<PackedEmbedding> {
        Ok(PackedEmbedding::new(self.source.table(&self.path, rows, width)?, rows))
    }

    /// The values of a tensor as float32, decoded where they are packed: the factors of a norm.
    ///
    /// # Errors
    /// As [`Self::linear`], for values that are not finite, and for a tensor of a layer that rounds.
    pub fn get(&self, shape: impl Into<Shape>, name: &str) -> candle_core::Result<Tensor> {
        let shape = shape.into();
        let values = self.source.values(&self.name(name), shape.dims())?;
        Tensor::from_vec(values, shape, &Device::Cpu)
    }

    /// Refuses tensors of the file that nothing was made of, so that nothing is passed over in silence.
    ///
    /// # Errors
    /// [`octavo_core::Error::Container`] naming file and tensor.
    pub fn check_all_taken(&self) -> Result<()> {
        self.source.check_all_taken(|_| false)
    }
}
