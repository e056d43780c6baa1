//! Sizes of a configuration: [`whole`] checks one, [`Sizes`] are those of a model of which heads and neurons were taken out.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::error::{ModelFault, Result, refuse};

/// The sizes of a compacted model, as `octavo.prune.compact_model` notes them.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Sizes {
    /// Shapes of parameters.
    #[serde(default)]
    pub(crate) weights: BTreeMap<String, Vec<u64>>,
    /// Attributes of modules.
    #[serde(default)]
    pub(crate) numbers: BTreeMap<String, BTreeMap<String, u64>>,
}

/// A size between two bounds.
///
/// # Errors
/// [`octavo_core::Error::Container`] with the field, its value and what is accepted.
pub fn whole(field: &'static str, value: u64, least: usize, largest: usize) -> Result<usize> {
    usize::try_from(value)
        .ok()
        .filter(|value| (least..=largest).contains(value))
        .ok_or_else(|| refuse(ModelFault::Number { field, value, least, largest }))
}
