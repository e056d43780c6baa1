//! State of generation: the sources of a tile, the encoder's output, and the decoder's position.

use candle_core::{Device, Result, Tensor};
use octavo_engine::parts::{Attend, Norm, Table, Visible};

use super::linear::Linear;
use super::ops::{Additive, AttendOp, NormOp};

/// The rows of a tile, one after the other without padding.
pub(super) struct Source<'a> {
    pub(super) rows: &'a [&'a [u8]],
    /// First position and length of each row in what is made of all positions.
    pub(super) runs: Vec<(usize, usize)>,
}

impl<'a> Source<'a> {
    /// Rows of at least one id each.
    pub(super) fn new(rows: &'a [&'a [u8]]) -> Self {
        let mut first = 0;
        let runs = rows.iter().map(|row| {
            first += row.len();
            (first - row.len(), row.len())
        });
        Self { rows, runs: runs.collect() }
    }

    /// All positions: their run of rows, one entry each.
    pub(super) fn positions(&self) -> Vec<(usize, usize)> {
        self.runs.iter().flat_map(|&run| std::iter::repeat_n(run, run.1)).collect()
    }
}

/// Rows of keys and values that attention looks at; rows are only ever added.
#[derive(Default)]
pub(super) struct Memory {
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl Memory {
    /// Adds rows.
    pub(super) fn push(&mut self, keys: &Tensor, values: &Tensor) -> Result<()> {
        self.keys.extend(keys.flatten_all()?.to_vec1::<f32>()?);
        self.values.extend(values.flatten_all()?.to_vec1::<f32>()?);
        Ok(())
    }

    /// Multi-head attention of `queries`.
    pub(super) fn attend(&self, queries: &Tensor, heads: usize, visible: Visible<'_>) -> Result<Tensor> {
        let attend = Attend { heads, keys: &self.keys, values: &self.values, visible };
        queries.apply_op1_no_bwd(&AttendOp(attend))
    }

    /// Additive attention of `queries` with the vector `score` to values of width `deep`.
    pub(super) fn additive(
        &self,
        queries: &Tensor,
        score: &[f32],
        deep: usize,
        visible: Visible<'_>,
    ) -> Result<Tensor> {
        queries.apply_op1_no_bwd(&Additive { score, keys: &self.keys, values: &self.values, deep, visible })
    }
}

/// What the decoder needs of the encoded sources.
pub(super) struct Encoded {
    /// Rows of the memories that belong to each source.
    pub(super) runs: Vec<(usize, usize)>,
    /// A memory for each attention to the source.
    pub(super) memories: Vec<Memory>,
    /// Hidden and cell states that a recurrent decoder begins with, `[sources, units]`.
    pub(super) first: Option<(Tensor, Tensor)>,
}

/// Where generation stands: one entry for each hypothesis, so that hypotheses can be chosen and repeated.
///
/// The caches keep the keys and values of every token that any hypothesis ever took in; each hypothesis lists those
/// that are its own past. So choosing hypotheses moves small lists, not caches.
pub(super) struct State {
    /// Rows of the memories that each hypothesis may see.
    pub(super) runs: Vec<(usize, usize)>,
    /// Hidden and cell states of a recurrent decoder, `[hypotheses, units]`.
    pub(super) recurrent: Option<(Tensor, Tensor)>,
    /// A cache for each attention to earlier tokens.
    pub(super) caches: Vec<Memory>,
    /// The rows of the caches that are the past of each hypothesis.
    pub(super) pasts: Vec<Vec<u32>>,
    /// Rows that the caches hold.
    cached: u32,
}

impl State {
    /// One hypothesis for each source, before the first token, with `caches` caches.
    pub(super) fn new(encoded: &Encoded, caches: usize) -> Self {
        Self {
            runs: encoded.runs.clone(),
            recurrent: encoded.first.clone(),
            caches: (0..caches).map(|_| Memory::default()).collect(),
            pasts: vec![Vec::new(); encoded.runs.len()],
            cached: 0,
        }
    }

    /// Gives every hypothesis the row of the caches that its next token will be written to.
    pub(super) fn advance(&mut self) {
        for past in &mut self.pasts {
            past.push(self.cached);
            self.cached += 1;
        }
    }

    /// Goes on with the hypotheses `chosen`, repeated or left out as given.
    pub(super) fn select(&mut self, chosen: &[u32]) -> Result<()> {
        self.runs = chosen.iter().map(|&at| self.runs[at as usize]).collect();
        self.pasts = chosen.iter().map(|&at| self.pasts[at as usize].clone()).collect();
        if let Some((hidden, cell)) = &mut self.recurrent {
            let chosen = Tensor::new(chosen, &Device::Cpu)?;
            (*hidden, *cell) = (hidden.index_select(&chosen, 0)?, cell.index_select(&chosen, 0)?);
        }
        Ok(())
    }
}

/// Applies a linear layer to rows.
pub(super) fn linear(x: &Tensor, layer: &Linear) -> Result<Tensor> {
    x.apply_op1_no_bwd(layer)
}

/// Norms rows.
pub(super) fn norm(x: &Tensor, norm: &Norm) -> Result<Tensor> {
    x.apply_op1_no_bwd(&NormOp(norm))
}

/// The rows of a table that ids name, `[ids, width]`.
pub(super) fn look_up(table: &Table, ids: &[i64]) -> super::error::Result<Tensor> {
    let mut rows = vec![0.0; ids.len() * table.width()];
    table.add(ids, &mut rows)?;
    Ok(Tensor::from_vec(rows, (ids.len(), table.width()), &Device::Cpu)?)
}

/// The ids of tokens as tables want them.
pub(super) fn ids(tokens: &[u8]) -> Vec<i64> {
    tokens.iter().copied().map(i64::from).collect()
}
