//! [`Usual`]: the fields that Llama and the architectures after it share.

use super::super::fields::{Fields, divided};
use super::super::plan::{
    BlockPlan, FeedPlan, Gains, Gate, HeadNorm, HeadPlan, NormPlan, Norms, Order, Plan, RotaryPlan,
};
use super::super::rope::{self, Defaults};
use crate::error::Result;

/// Defaults that differ between architectures.
pub(super) struct Usual {
    pub(super) vocabulary: u64,
    pub(super) width: u64,
    pub(super) inner: u64,
    pub(super) layers: u64,
    pub(super) heads: u64,
    /// None: as many as heads of queries.
    pub(super) kv_heads: Option<u64>,
    /// Numbers of a head; none: the width, divided by the heads.
    pub(super) size: Option<u64>,
    pub(super) positions: u64,
    pub(super) epsilon: f64,
    pub(super) tied: bool,
    pub(super) rope: Defaults,
    /// The field of the activation, and its default.
    pub(super) activation: [&'static str; 2],
}

impl Usual {
    pub(super) const LLAMA: Self = Self {
        vocabulary: 32_000,
        width: 4096,
        inner: 11_008,
        layers: 32,
        heads: 32,
        kv_heads: None,
        size: None,
        positions: 2048,
        epsilon: 1e-6,
        tied: false,
        rope: Defaults::USUAL,
        activation: ["hidden_act", "silu"],
    };

    /// The plan of a Llama: norms by the root mean square before attention and feed-forward network, rotary positions, a
    /// gated network. `biased`: the projections of attention, and its output.
    pub(super) fn plan(&self, fields: &Fields<'_>, biased: [bool; 2]) -> Result<Plan> {
        let (width, heads, kv_heads, size) = self.heads(fields)?;
        let positions = self.positions(fields)?;
        let (rotary, positions) = rope::rotary(fields, self.rope, size, positions)?;
        let block = BlockPlan {
            norms: Norms::Before,
            heads,
            kv_heads,
            size,
            rotary: Some(rotary),
            is_sloped: false,
            head_norm: HeadNorm::None,
            scale: 1.0 / (size as f32).sqrt(),
            score_cap: None,
            has_sinks: false,
            window: None,
            projections_biased: biased[0],
            order: Order::Stacked,
            out_biased: biased[1],
            added: [1.0; 2],
            feed: FeedPlan {
                inner: self.inner(fields)?,
                activation: fields.activation(self.activation[0], self.activation[1])?,
                gate: Gate::Apart,
                biased: false,
                experts: None,
            },
        };
        let vocabulary = vocabulary(fields, self.vocabulary)?;
        Ok(Plan {
            vocabulary,
            rows: vocabulary,
            width,
            row_width: width,
            positions: Some(positions),
            position_rows_before: None,
            embedding_scale: 1.0,
            norm: NormPlan::Rms { epsilon: fields.epsilon("rms_norm_eps", self.epsilon)?, gains: Gains::Whole },
            norms_embedding: false,
            norms_last: true,
            blocks: vec![block; self.layers(fields)?],
            head: HeadPlan::plain(fields.flag("tie_word_embeddings", self.tied)?),
            document: None,
        })
    }

    /// Width, heads of queries and of keys, and numbers of a head.
    pub(super) fn heads(&self, fields: &Fields<'_>) -> Result<(usize, usize, usize, usize)> {
        let width = fields.size("hidden_size", Some(self.width), 1, 1 << 16)?;
        let heads = fields.size("num_attention_heads", Some(self.heads), 1, 1 << 10)?;
        let kv_heads = self.kv_heads.unwrap_or(heads as u64);
        // A null is as many as heads of queries, whatever the default is.
        let kv_heads = fields
            .optional("num_key_value_heads", Some(()), || Ok(()))?
            .map_or(Ok(heads), |()| fields.size("num_key_value_heads", Some(kv_heads), 1, 1 << 10))?;
        divided("num_key_value_heads", kv_heads, "num_attention_heads", heads)?;
        let size = match (fields.get("head_dim"), self.size) {
            (None, None) => divided("num_attention_heads", heads, "hidden_size", width)?,
            (_, default) => fields.size("head_dim", default, 2, 1 << 12)?,
        };
        Ok((width, heads, kv_heads, size))
    }

    pub(super) fn positions(&self, fields: &Fields<'_>) -> Result<usize> {
        fields.size("max_position_embeddings", Some(self.positions), 1, 1 << 24)
    }

    pub(super) fn layers(&self, fields: &Fields<'_>) -> Result<usize> {
        fields.size("num_hidden_layers", Some(self.layers), 1, 1 << 10)
    }

    fn inner(&self, fields: &Fields<'_>) -> Result<usize> {
        fields.size("intermediate_size", Some(self.inner), 1, 1 << 22)
    }
}

/// The number of ids.
pub(super) fn vocabulary(fields: &Fields<'_>, default: u64) -> Result<usize> {
    fields.size("vocab_size", Some(default), 1, 1 << 24)
}

/// The positions that are seen, the own one included; none where the field is null. `default`: where it is missing.
pub(super) fn window(fields: &Fields<'_>, default: Option<u64>) -> Result<Option<usize>> {
    let default = default.and_then(|window| usize::try_from(window).ok());
    fields.optional("sliding_window", default, || fields.size("sliding_window", None, 1, usize::MAX >> 1))
}

/// Sets the windows of the blocks that `layer_types` names, or else of those that `is_default` gives one.
pub(super) fn set_windows(
    plan: &mut Plan,
    fields: &Fields<'_>,
    window: Option<usize>,
    is_default: impl Fn(usize) -> bool,
) -> Result<()> {
    let kinds = is_local(fields, plan.blocks.len(), is_default)?;
    for (block, is_local) in plan.blocks.iter_mut().zip(kinds) {
        block.window = window.filter(|_| is_local);
    }
    Ok(())
}

/// Which layers see a window alone.
pub(super) fn is_local(fields: &Fields<'_>, layers: usize, is_default: impl Fn(usize) -> bool) -> Result<Vec<bool>> {
    if fields.get("layer_types").is_none() {
        return Ok((0..layers).map(is_default).collect());
    }
    fields
        .texts("layer_types", layers)?
        .into_iter()
        .map(|kind| match kind {
            "sliding_attention" => Ok(true),
            "full_attention" => Ok(false),
            _ => Err(fields.refused("layer_types", "accepted are sliding_attention and full_attention")),
        })
        .collect()
}

/// Sets how the heads of all blocks turn.
pub(super) fn set_rotary(plan: &mut Plan, rotary: Option<&RotaryPlan>, of: impl Fn(usize) -> bool) {
    for (number, block) in plan.blocks.iter_mut().enumerate() {
        if of(number) {
            block.rotary = rotary.cloned();
        }
    }
}
