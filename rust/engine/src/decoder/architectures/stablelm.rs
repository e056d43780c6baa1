//! StableLM: layer norms, a part of each head is turned.

use super::Architecture;
use super::usual::Usual;
use crate::decoder::fields::Fields;
use crate::decoder::names::Names;
use crate::decoder::plan::{HeadNorm, NormPlan, Norms};
use crate::decoder::rope::Defaults;
use crate::error::Result;

const NAMES: Names = Names { head_norms: ["self_attn.q_layernorm", "self_attn.k_layernorm"], ..Names::LLAMA };

pub(super) fn read(fields: &Fields<'_>) -> Result<Architecture> {
    let usual = Usual {
        vocabulary: 50_304,
        width: 2560,
        inner: 6912,
        kv_heads: Some(32),
        positions: 4096,
        rope: Defaults { partial: Some(0.25), ..Defaults::USUAL },
        ..Usual::LLAMA
    };
    let biased = fields.flag("use_qkv_bias", false)?;
    // Heads are the width, divided, whatever head_dim says.
    let mut plan = usual.plan(&fields.without(&["head_dim"]).fields(), [biased, false])?;
    let epsilon = fields.epsilon("layer_norm_eps", 1e-5)?;
    plan.norm = NormPlan::Layer { epsilon };
    let head_norm = if fields.flag("qk_layernorm", false)? { HeadNorm::Layers { epsilon } } else { HeadNorm::None };
    let norms = if fields.flag("use_parallel_residual", false)? { Norms::ParallelShared } else { Norms::Before };
    for block in &mut plan.blocks {
        (block.head_norm, block.norms) = (head_norm, norms);
    }
    Ok(Architecture { plan, names: NAMES })
}
