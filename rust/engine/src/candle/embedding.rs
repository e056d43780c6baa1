//! [`PackedEmbedding`]: rows that ids look up, packed, on candle's tensors.

use std::sync::Arc;

use candle_core::{DType, Device, Module, Tensor};

use super::linear::PackedLinear;
use crate::layers::Source;
use crate::packed::Table;

/// An embedding whose rows stay packed, in the place of `candle_nn::Embedding`.
///
/// Ids are whole numbers of any shape; the rows that they name are float32 and follow the axes of the ids.
#[derive(Clone)]
pub struct PackedEmbedding {
    table: Arc<Table>,
    rows: usize,
}

impl PackedEmbedding {
    pub(super) fn new(table: Table, rows: usize) -> Self {
        Self { table: Arc::new(table), rows }
    }

    /// Number of rows.
    pub const fn rows(&self) -> usize {
        self.rows
    }

    /// Numbers of a row.
    pub fn width(&self) -> usize {
        self.table.width()
    }

    /// The linear layer without a bias whose outputs are products with the rows: the head of a model that ties it.
    pub fn as_linear(&self) -> PackedLinear {
        PackedLinear::new(Source::dense_of(&self.table, self.rows, self.width()))
    }
}

impl std::fmt::Debug for PackedEmbedding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PackedEmbedding")
            .field("rows", &self.rows)
            .field("width", &self.width())
            .finish_non_exhaustive()
    }
}

impl Module for PackedEmbedding {
    fn forward(&self, ids: &Tensor) -> candle_core::Result<Tensor> {
        let shape: Vec<usize> = ids.dims().iter().copied().chain([self.width()]).collect();
        let ids = ids.flatten_all()?.to_dtype(DType::I64)?.to_vec1::<i64>()?;
        let mut out = vec![0.0; ids.len() * self.width()];
        self.table.add(&ids, &mut out)?;
        Tensor::from_vec(out, shape, &Device::Cpu)
    }
}
