//! Reads the configuration of a folder, ours or that of transformers, into an [`Architecture`].

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects, clippy::cast_possible_truncation)]

use std::path::Path;

use serde_json::Value;

use super::architectures::{self, Architecture};
use super::compacted::{self, SIZES};
use super::fields::Fields;
use crate::error::{Result, in_file, refuse};
use crate::file::{self, CONFIG, shown};

/// Most bytes of the file.
const MOST_BYTES: u64 = 1 << 20;

/// Reads `config.json` of a folder.
pub(super) fn load(folder: &Path) -> Result<Architecture> {
    let path = folder.join(CONFIG);
    let bytes = file::read(&path, MOST_BYTES)?;
    parse(&bytes).map_err(|error| in_file(path.display(), error))
}

fn parse(text: &[u8]) -> Result<Architecture> {
    let content: Value = serde_json::from_slice(text).map_err(|error| refuse(error.to_string()))?;
    let Value::Object(content) = content else { return Err(refuse("not a JSON object")) };
    let fields = Fields { of: &content, name: "" };
    let named = match (fields.text("kind")?, fields.text("model_type")?) {
        (Some("gpt"), None) => Ok(architectures::OWN),
        (None, Some(name)) => architectures::of_transformers(name).ok_or(Some(name)),
        (kind, model) => Err(kind.or(model)),
    };
    let read = named.map_err(|name| {
        let found = name.map_or_else(|| "of no kind".to_owned(), |name| format!("of '{}'", shown(name)));
        let all = architectures::names().collect::<Vec<_>>().join(", ");
        refuse(format!("{found}; the native decoder runs gpt of Octavo and, of transformers, {all}"))
    })?;
    let mut architecture = read(&fields)?;
    if let Some(sizes) = fields.get(SIZES) {
        compacted::cut(&mut architecture.plan, &architecture.names, sizes)?;
    }
    Ok(architecture)
}
