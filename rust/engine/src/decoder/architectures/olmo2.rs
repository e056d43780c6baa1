//! OLMo 2: norms of what attention and feed-forward network give, and of all queries and keys of a position.

use super::Architecture;
use super::usual::Usual;
use crate::decoder::fields::Fields;
use crate::decoder::names::Names;
use crate::decoder::plan::{HeadNorm, Norms};
use crate::error::Result;

const NAMES: Names = Names {
    attention_norms: ["", "post_attention_layernorm"],
    feed_norms: ["", "post_feedforward_layernorm"],
    ..Names::LLAMA
};

pub(super) fn read(fields: &Fields<'_>) -> Result<Architecture> {
    let usual = Usual { vocabulary: 50_304, epsilon: 1e-5, ..Usual::LLAMA };
    let biased = fields.flag("attention_bias", false)?;
    let mut plan = usual.plan(fields, [biased; 2])?;
    let epsilon = fields.epsilon("rms_norm_eps", usual.epsilon)?;
    for block in &mut plan.blocks {
        block.norms = Norms::After;
        block.head_norm = HeadNorm::Together { epsilon };
    }
    Ok(Architecture { plan, names: NAMES })
}
