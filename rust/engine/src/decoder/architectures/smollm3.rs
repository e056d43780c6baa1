//! SmolLM3: some layers have no positions.

use super::Architecture;
use super::usual::{Usual, set_rotary, set_windows, window};
use crate::decoder::fields::Fields;
use crate::decoder::names::Names;
use crate::decoder::rope::Defaults;
use crate::error::Result;

pub(super) fn read(fields: &Fields<'_>) -> Result<Architecture> {
    let usual = Usual {
        vocabulary: 128_256,
        width: 2048,
        layers: 36,
        heads: 16,
        kv_heads: Some(4),
        positions: 32_768,
        tied: true,
        rope: Defaults { base: 2_000_000.0, ..Defaults::USUAL },
        ..Usual::LLAMA
    };
    let biased = fields.flag("attention_bias", false)?;
    let mut plan = usual.plan(fields, [biased; 2])?;
    let feed_biased = fields.flag("mlp_bias", false)?;
    plan.blocks.iter_mut().for_each(|block| block.feed.biased = feed_biased);
    let turns = turns(fields, plan.blocks.len())?;
    set_rotary(&mut plan, None, |number| !turns.get(number).copied().unwrap_or(true));
    let used = fields.flag("use_sliding_window", false)?;
    let window = window(fields, None)?.filter(|_| used);
    set_windows(&mut plan, fields, window, |number| !turns.get(number).copied().unwrap_or(true))?;
    Ok(Architecture { plan, names: Names::LLAMA })
}

/// Which layers turn their heads: all but every fourth, or as the field says.
fn turns(fields: &Fields<'_>, layers: usize) -> Result<Vec<bool>> {
    if fields.get("no_rope_layers").is_some() {
        let marks = fields.sizes("no_rope_layers", 0, 1)?;
        if marks.len() < layers {
            return Err(fields.refused("no_rope_layers", "accepted is a 0 or 1 for each layer"));
        }
        return Ok(marks.into_iter().map(|mark| mark == 1).collect());
    }
    let interval = fields.size("no_rope_layer_interval", Some(4), 1, 1 << 10)?;
    Ok((1..=layers).map(|number| !number.is_multiple_of(interval)).collect())
}
