//! The architectures that are run, a file each: how a configuration becomes a [`Plan`], and the [`Names`] of its layers.
//!
//! Defaults are those of the configuration's class in transformers: files lack fields that have their default.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects, clippy::cast_possible_truncation)]

mod falcon;
mod gemma;
mod gpt2;
mod gpt_neox;
mod gpt_oss;
mod granite;
mod llama;
mod mixtral;
mod olmo2;
mod opt;
mod own;
mod phi3;
mod qwen;
mod qwen3_moe;
mod smollm3;
mod stablelm;
mod usual;

use super::fields::Fields;
use super::names::Names;
use super::plan::Plan;
use crate::error::Result;

/// What a configuration says.
pub(super) struct Architecture {
    pub(super) plan: Plan,
    pub(super) names: Names,
}

/// Reads a configuration.
pub(super) type Read = fn(&Fields<'_>) -> Result<Architecture>;

/// Networks of `octavo.lab.language.gpt`.
pub(super) const OWN: Read = own::read;

/// Those of transformers, by `model_type`.
const OF_TRANSFORMERS: &[(&str, Read)] = &[
    ("falcon", falcon::read),
    ("gemma2", gemma::read_2),
    ("gemma3_text", gemma::read_3),
    ("gpt2", gpt2::read),
    ("gpt_neox", gpt_neox::read),
    ("gpt_oss", gpt_oss::read),
    ("granite", granite::read),
    ("llama", llama::read),
    ("mistral", llama::read_mistral),
    ("mixtral", mixtral::read),
    ("olmo2", olmo2::read),
    ("opt", opt::read),
    ("phi3", phi3::read),
    ("qwen2", qwen::read_2),
    ("qwen3", qwen::read_3),
    ("qwen3_moe", qwen3_moe::read),
    ("smollm3", smollm3::read),
    ("stablelm", stablelm::read),
];

/// The `model_type` of the network for texts of models that see pictures, too, by that of the whole.
const WITH_PICTURES: &[(&str, &str)] = &[("gemma3", "gemma3_text"), ("mistral3", "mistral")];

/// The `model_type` of the network for texts, in a model that sees pictures, too; none of other models.
pub(super) fn text_of(model_type: &str) -> Option<&'static str> {
    WITH_PICTURES.iter().find(|(name, _)| *name == model_type).map(|&(_, text)| text)
}

/// What reads a configuration with a `model_type` of transformers; none where that is not run.
pub(super) fn of_transformers(model_type: &str) -> Option<Read> {
    OF_TRANSFORMERS.iter().find(|(name, _)| *name == model_type).map(|&(_, read)| read)
}

/// The values of `model_type` that are run.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    OF_TRANSFORMERS.iter().map(|&(name, _)| name).chain(WITH_PICTURES.iter().map(|&(name, _)| name))
}
