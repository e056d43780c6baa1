//! gpt-oss: mixtures of experts whose activations are bounded, and heads with a score for seeing nothing.

use serde_json::json;

use super::Architecture;
use super::usual::{Usual, set_windows, window};
use crate::decoder::fields::Fields;
use crate::decoder::names::{ExpertNames, Names};
use crate::decoder::plan::{ExpertsPlan, Gate};
use crate::decoder::rope::Defaults;
use crate::error::Result;

const NAMES: Names = Names {
    sinks: "self_attn.sinks",
    experts: ExpertNames {
        routers: ["mlp.router"; 2],
        modules: ["mlp.experts"; 2],
        together: ["gate_up_proj", "down_proj"],
        apart: [""; 3],
    },
    ..Names::LLAMA
};
const ROPE: &str = "rope_parameters";

pub(super) fn read(fields: &Fields<'_>) -> Result<Architecture> {
    let usual = Usual {
        vocabulary: 201_088,
        width: 2880,
        inner: 2880,
        layers: 36,
        heads: 64,
        kv_heads: Some(8),
        size: Some(64),
        positions: 1 << 17,
        epsilon: 1e-5,
        rope: Defaults { base: 150_000.0, ..Defaults::USUAL },
        ..Usual::LLAMA
    };
    let biased = fields.flag("attention_bias", true)?;
    // Positions are scaled where the configuration is silent.
    let mut content = fields.of.clone();
    if fields.get(ROPE).is_none() && fields.get("rope_scaling").is_none() {
        let yarn = json!({"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false,
            "original_max_position_embeddings": 4096});
        content.insert(ROPE.to_owned(), yarn);
    }
    let mut plan = usual.plan(&Fields { of: &content, name: fields.name }, [biased; 2])?;
    set_windows(&mut plan, fields, window(fields, Some(128))?, |number| number.is_multiple_of(2))?;
    let count = match fields.get("num_experts") {
        Some(_) => fields.size("num_experts", None, 1, 1 << 12)?,
        None => fields.size("num_local_experts", Some(128), 1, 1 << 12)?,
    };
    let chosen = fields.size("num_experts_per_tok", Some(4), 1, count)?;
    let (slope, most) = (fields.number("swiglu_alpha", 1.702)?, fields.number("swiglu_limit", 7.0)?);
    if most <= 0.0 {
        return Err(fields.refused("swiglu_limit", "accepted is a number above 0"));
    }
    for block in &mut plan.blocks {
        block.has_sinks = true;
        block.feed.gate = Gate::Pairs { slope, most };
        block.feed.biased = true;
        block.feed.experts = Some(ExpertsPlan { count, chosen, normed: true });
    }
    Ok(Architecture { plan, names: NAMES })
}
