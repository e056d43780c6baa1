//! Reads the configuration of a folder, ours or that of transformers, into an [`Architecture`].

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects, clippy::cast_possible_truncation)]

use std::path::Path;

use serde_json::Value;

use super::architectures::{self, Architecture};
use super::compacted::{self, SIZES};
use super::fields::Fields;
use crate::error::{Result, in_file, refuse};
use crate::file::{self, CONFIG, shown};

const TEXT: &str = "text_config";
const TIED: &str = "tie_word_embeddings";

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
    let wrapped = fields.text("model_type")?.and_then(architectures::text_of);
    let mut architecture = match wrapped {
        Some(model_type) => text_part(&fields, model_type)?,
        None => whole(&fields)?,
    };
    if let Some(sizes) = fields.get(SIZES) {
        compacted::cut(&mut architecture.plan, &architecture.names, sizes)?;
    }
    Ok(architecture)
}

fn whole(fields: &Fields<'_>) -> Result<Architecture> {
    let named = match (fields.text("kind")?, fields.text("model_type")?) {
        (Some("gpt"), None) => Ok(architectures::OWN),
        (None, Some(name)) => architectures::of_transformers(name).ok_or(Some(name)),
        (kind, model) => Err(kind.or(model)),
    };
    let read = named.map_err(|name| {
        let found = name.map_or_else(|| "of no kind".to_owned(), |name| format!("of '{}'", shown(name)));
        let all = architectures::names().collect::<Vec<_>>().join(", ");
        let fix = "octavo.load_model runs others in PyTorch";
        refuse(format!("{found}; the native decoder runs gpt of Octavo and, of transformers, {all}; {fix}"))
    })?;
    read(fields)
}

/// The network for texts of a model that sees pictures, too.
fn text_part(fields: &Fields<'_>, model_type: &str) -> Result<Architecture> {
    let part = fields.object(TEXT)?;
    let found = part.text("model_type")?.unwrap_or(model_type);
    let read = architectures::of_transformers(found).filter(|_| found == model_type);
    let read =
        read.ok_or_else(|| part.refused("model_type", &format!("the native decoder runs {model_type} inside of it")))?;
    // The whole model says whether its head is tied.
    let tied = Value::Bool(fields.flag(TIED, true)?);
    let mut content = part.of.clone();
    content.insert(TIED.to_owned(), tied);
    let Architecture { plan, names } = read(&Fields { of: &content, name: TEXT })?;
    Ok(Architecture { plan, names: names.beside_pictures() })
}
