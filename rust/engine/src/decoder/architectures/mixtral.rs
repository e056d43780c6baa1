//! Mixtral: a Llama whose feed-forward networks are mixtures of experts.

use super::Architecture;
use super::usual::{Usual, set_windows, window};
use crate::decoder::fields::Fields;
use crate::decoder::names::{ExpertNames, Names};
use crate::decoder::plan::ExpertsPlan;
use crate::decoder::rope::Defaults;
use crate::error::Result;

const NAMES: Names = Names {
    experts: ExpertNames::of("block_sparse_moe.gate", "block_sparse_moe.experts", ["w1", "w3", "w2"]),
    ..Names::LLAMA
};

pub(super) fn read(fields: &Fields<'_>) -> Result<Architecture> {
    let usual = Usual {
        inner: 14_336,
        kv_heads: Some(8),
        positions: 1 << 17,
        epsilon: 1e-5,
        rope: Defaults { base: 1_000_000.0, ..Defaults::USUAL },
        ..Usual::LLAMA
    };
    let mut plan = usual.plan(fields, [false; 2])?;
    fields.absent("layer_types", "one window for all layers")?;
    set_windows(&mut plan, fields, window(fields, None)?, |_| true)?;
    let count = match fields.get("num_experts") {
        Some(_) => fields.size("num_experts", None, 1, 1 << 12)?,
        None => fields.size("num_local_experts", Some(8), 1, 1 << 12)?,
    };
    let chosen = fields.size("num_experts_per_tok", Some(2), 1, count)?;
    let experts = Some(ExpertsPlan { count, chosen, normed: true });
    plan.blocks.iter_mut().for_each(|block| block.feed.experts = experts);
    Ok(Architecture { plan, names: NAMES })
}
