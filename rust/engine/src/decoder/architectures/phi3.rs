//! Phi-3 and Phi-4-mini: one layer of queries, keys and values, one of both projections of the feed-forward network.

use super::Architecture;
use super::usual::{Usual, set_windows, window};
use crate::decoder::fields::Fields;
use crate::decoder::names::Names;
use crate::decoder::plan::Gate;
use crate::decoder::rope::Defaults;
use crate::error::Result;

const NAMES: Names = Names { projections: &["self_attn.qkv_proj"], gate: "", up: "mlp.gate_up_proj", ..Names::LLAMA };

pub(super) fn read(fields: &Fields<'_>) -> Result<Architecture> {
    let usual = Usual {
        vocabulary: 32_064,
        width: 3072,
        inner: 8192,
        positions: 4096,
        epsilon: 1e-5,
        rope: Defaults { partial: Some(1.0), is_phi3: true, ..Defaults::USUAL },
        ..Usual::LLAMA
    };
    let mut plan = usual.plan(fields, [false; 2])?;
    plan.blocks.iter_mut().for_each(|block| block.feed.gate = Gate::Together);
    set_windows(&mut plan, &fields.without(&["layer_types"]).fields(), window(fields, None)?, |_| true)?;
    Ok(Architecture { plan, names: NAMES })
}
