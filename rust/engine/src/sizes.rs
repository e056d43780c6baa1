//! [`Sizes`]: what a configuration says of a model of which heads and neurons were taken out.

use std::collections::BTreeMap;

use serde::Deserialize;

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
