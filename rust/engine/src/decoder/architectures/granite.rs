//! Granite: factors of embeddings, scores, sums and logits.

use super::Architecture;
use super::usual::Usual;
use crate::decoder::fields::Fields;
use crate::decoder::names::Names;
use crate::error::Result;

pub(super) fn read(fields: &Fields<'_>) -> Result<Architecture> {
    let biased = fields.flag("attention_bias", false)?;
    let mut plan = Usual::LLAMA.plan(fields, [biased; 2])?;
    plan.embedding_scale = fields.number("embedding_multiplier", 1.0)?;
    plan.head.divisor = fields.number("logits_scaling", 1.0)?;
    if plan.head.divisor == 0.0 {
        return Err(fields.refused("logits_scaling", "accepted is a number other than 0"));
    }
    let (scale, added) = (fields.number("attention_multiplier", 1.0)?, fields.number("residual_multiplier", 1.0)?);
    let feed_biased = fields.flag("mlp_bias", false)?;
    for block in &mut plan.blocks {
        block.scale = scale;
        block.added = [added; 2];
        block.feed.biased = feed_biased;
    }
    Ok(Architecture { plan, names: Names::LLAMA })
}
