//! Qwen 2, whose projections have biases, and Qwen 3, whose heads are normed.

use super::Architecture;
use super::usual::{Usual, set_windows, window};
use crate::decoder::fields::Fields;
use crate::decoder::names::Names;
use crate::decoder::plan::{Gains, HeadNorm, Plan};
use crate::error::Result;

const QWEN_2: Usual =
    Usual { vocabulary: 151_936, inner: 22_016, kv_heads: Some(32), positions: 32_768, ..Usual::LLAMA };
const QWEN_3: Usual = Usual { size: Some(128), ..QWEN_2 };

pub(super) fn read_2(fields: &Fields<'_>) -> Result<Architecture> {
    let mut plan = QWEN_2.plan(fields, [true, false])?;
    set_qwen_windows(&mut plan, fields)?;
    Ok(Architecture { plan, names: Names::LLAMA })
}

pub(super) fn read_3(fields: &Fields<'_>) -> Result<Architecture> {
    let biased = fields.flag("attention_bias", false)?;
    let mut plan = QWEN_3.plan(fields, [biased; 2])?;
    set_qwen_windows(&mut plan, fields)?;
    norm_heads(&mut plan, fields)?;
    Ok(Architecture { plan, names: Names::LLAMA })
}

/// Norms queries and keys, head by head.
pub(super) fn norm_heads(plan: &mut Plan, fields: &Fields<'_>) -> Result<()> {
    let epsilon = fields.epsilon("rms_norm_eps", Usual::LLAMA.epsilon)?;
    plan.blocks.iter_mut().for_each(|block| block.head_norm = HeadNorm::Heads { epsilon, gains: Gains::Whole });
    Ok(())
}

/// The window, where it is switched on.
pub(super) fn used_window(fields: &Fields<'_>) -> Result<Option<usize>> {
    let used = fields.flag("use_sliding_window", false)?;
    Ok(window(fields, Some(4096))?.filter(|_| used))
}

/// Later layers have the window.
fn set_qwen_windows(plan: &mut Plan, fields: &Fields<'_>) -> Result<()> {
    let first = fields.size("max_window_layers", Some(28), 0, usize::MAX >> 1)?;
    set_windows(plan, fields, used_window(fields)?, |number| number >= first)
}
