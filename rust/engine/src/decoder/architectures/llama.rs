//! Llama, and Mistral, which sees a window.

use super::Architecture;
use super::usual::{Usual, set_windows, window};
use crate::decoder::fields::Fields;
use crate::decoder::names::Names;
use crate::error::Result;

pub(super) fn read(fields: &Fields<'_>) -> Result<Architecture> {
    let biased = fields.flag("attention_bias", false)?;
    let mut plan = Usual::LLAMA.plan(fields, [biased; 2])?;
    let feed_biased = fields.flag("mlp_bias", false)?;
    plan.blocks.iter_mut().for_each(|block| block.feed.biased = feed_biased);
    Ok(Architecture { plan, names: Names::LLAMA })
}

pub(super) fn read_mistral(fields: &Fields<'_>) -> Result<Architecture> {
    let usual = Usual { inner: 14_336, kv_heads: Some(8), positions: 1 << 17, ..Usual::LLAMA };
    let mut plan = usual.plan(fields, [false; 2])?;
    fields.absent("layer_types", "one window for all layers")?;
    set_windows(&mut plan, fields, window(fields, Some(4096))?, |_| true)?;
    Ok(Architecture { plan, names: Names::LLAMA })
}
