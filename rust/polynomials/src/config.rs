//! [`Config`]: the shape of a model, from `config.json`.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects, clippy::cast_possible_truncation)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use octavo_engine::model_folder::{CONFIG, read, shown, whole};
use octavo_engine::{ModelFault, Result, in_file, refuse};
use serde::Deserialize;

/// Most bytes of the file.
const MOST_BYTES: u64 = 64 * 1024;
/// Version of the model folder, the value of the field `octavo`.
const VERSION: u64 = 2;
/// The version of Octavo 0.1, whose folders have fixed names of files.
const FORMER: u64 = 1;
/// Its variants, by name, and their files.
const FORMER_VARIANTS: [(&str, &str); 1] = [("integer", "integer.safetensors")];
/// What the folder holds, the value of the field `kind`.
const KIND: &str = "seq2seq";

/// Which model it is; `octavo.lab.polynomials.seq2seq` defines them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// LSTM encoder-decoder with additive attention.
    Lstm,
    /// Bidirectional LSTM encoder; decoder of LSTM cell, self-attention, cross-attention and feed-forward.
    Hybrid,
    /// Transformer encoder-decoder.
    Transformer,
}

impl Architecture {
    /// The name in files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lstm => "lstm",
            Self::Hybrid => "hybrid",
            Self::Transformer => "transformer",
        }
    }
}

/// The fields of Python's `Seq2SeqConfig`, which explains them. Values are those that [`Config::parse`] lets through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Which model it is.
    pub architecture: Architecture,
    /// Ids, the special ones included: 4 to 256.
    pub vocabulary: usize,
    /// Width of the token vectors of `lstm` and `hybrid`.
    pub embedding: usize,
    /// Units of the encoder of `lstm` and `hybrid`, each way.
    pub encoder: usize,
    /// Width of the decoder; in `transformer` of everything.
    pub hidden: usize,
    /// Heads of every attention; divides `hidden`.
    pub heads: usize,
    /// Blocks of `hybrid`'s decoder; layers of `transformer`'s encoder and of its decoder.
    pub layers: usize,
    /// Inner width of the feed-forward networks.
    pub feedforward: usize,
    /// Most tokens of a source.
    pub max_source: usize,
    /// Most tokens of a target, the end token included.
    pub max_target: usize,
    /// Files in the folder that hold further variants of the model, by the variant's name.
    pub variants: BTreeMap<String, String>,
}

/// The content of the file; a field that is missing, unknown or given twice is refused.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    octavo: u64,
    kind: String,
    architecture: String,
    vocabulary: u64,
    embedding: u64,
    encoder: u64,
    hidden: u64,
    heads: u64,
    layers: u64,
    feedforward: u64,
    max_source: u64,
    max_target: u64,
    variants: Option<BTreeMap<String, String>>,
}

impl Config {
    /// Reads `config.json` of a folder.
    ///
    /// # Errors
    /// [`octavo_core::Error::Io`] where it cannot be read; [`octavo_core::Error::Container`] naming it and the field.
    pub fn load(folder: &Path) -> Result<Self> {
        let path = folder.join(CONFIG);
        let bytes = read(&path, MOST_BYTES)?;
        Self::parse(&bytes).map_err(|error| in_file(path.display(), error))
    }

    /// Reads the text of the file, with the limits of Python's `Seq2SeqConfig`.
    ///
    /// # Errors
    /// [`octavo_core::Error::Container`] with the field, its value and what is accepted.
    pub fn parse(text: &[u8]) -> Result<Self> {
        // The derived reader takes an array for an object, in the order of the fields.
        if text.trim_ascii_start().first() != Some(&b'{') {
            return Err(refuse("not a JSON object"));
        }
        let content: Content = serde_json::from_slice(text).map_err(|error| refuse(error.to_string()))?;
        if ![FORMER, VERSION].contains(&content.octavo) {
            return Err(refuse(ModelFault::Version { found: content.octavo, accepted: [FORMER, VERSION] }));
        }
        if content.kind != KIND {
            let (found, accepted) = (shown(&content.kind), "accepted is 'seq2seq'");
            return Err(refuse(ModelFault::Name { field: "kind", found, accepted }));
        }
        let architecture = match content.architecture.as_str() {
            "lstm" => Architecture::Lstm,
            "hybrid" => Architecture::Hybrid,
            "transformer" => Architecture::Transformer,
            other => {
                let (found, accepted) = (shown(other), "accepted are lstm, hybrid, transformer");
                return Err(refuse(ModelFault::Name { field: "architecture", found, accepted }));
            }
        };
        let config = Self {
            architecture,
            vocabulary: whole("vocabulary", content.vocabulary, 4, 256)?,
            embedding: whole("embedding", content.embedding, 1, 4096)?,
            encoder: whole("encoder", content.encoder, 1, 4096)?,
            hidden: whole("hidden", content.hidden, 1, 4096)?,
            heads: whole("heads", content.heads, 1, 64)?,
            layers: whole("layers", content.layers, 1, 64)?,
            feedforward: whole("feedforward", content.feedforward, 1, 16384)?,
            max_source: whole("max_source", content.max_source, 1, 4096)?,
            max_target: whole("max_target", content.max_target, 1, 4096)?,
            variants: variants(content.octavo, content.variants)?,
        };
        if !config.hidden.is_multiple_of(config.heads) {
            let (value, whole) = (config.heads, config.hidden);
            return Err(refuse(ModelFault::Divisor { field: "heads", value, other: "hidden", whole }));
        }
        Ok(config)
    }
}

impl Config {
    /// The file in `folder` that holds a variant of the model.
    ///
    /// # Errors
    /// [`octavo_core::Error::Container`] where the configuration names none.
    pub fn variant(&self, folder: &Path, name: &str) -> Result<PathBuf> {
        self.variants.get(name).map(|file| folder.join(file)).ok_or_else(|| {
            let known: Vec<_> = self.variants.keys().map(|name| format!("'{name}'")).collect();
            let among = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            let place = folder.join(CONFIG);
            refuse(format!("{}: names no variant '{name}' of the model; it has {among}", place.display()))
        })
    }
}

/// The files of variants: names in the folder, other than those of the model itself.
fn variants(version: u64, given: Option<BTreeMap<String, String>>) -> Result<BTreeMap<String, String>> {
    if version == FORMER {
        return match given {
            Some(_) => Err(refuse(format!("unknown field `variants` of version {FORMER}"))),
            None => Ok(FORMER_VARIANTS.map(|(name, file)| (name.to_owned(), file.to_owned())).into()),
        };
    }
    let given = given.unwrap_or_default();
    for (name, file) in &given {
        let is_name = Path::new(file).file_name().is_some_and(|last| last == file.as_str()) && !file.contains('\0');
        if !is_name || !file.ends_with(".safetensors") || file.starts_with("model.") {
            let (name, file) = (shown(name), shown(file));
            let accepted = "accepted is the name of another safetensors file in this folder";
            return Err(refuse(format!("variants: '{name}' is '{file}'; {accepted}")));
        }
    }
    Ok(given)
}

impl std::fmt::Display for Config {
    /// The architecture and the sizes that kernels care about.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { embedding, encoder, hidden, heads, layers, feedforward, .. } = self;
        let architecture = self.architecture.name();
        write!(f, "{architecture} of embedding {embedding}, encoder {encoder}, hidden {hidden}, ")?;
        write!(f, "heads {heads}, layers {layers}, feedforward {feedforward}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"{"octavo": 1, "kind": "seq2seq", "architecture": "hybrid", "vocabulary": 31, "embedding": 64,
        "encoder": 64, "hidden": 128, "heads": 4, "layers": 2, "feedforward": 512, "max_source": 32, "max_target": 32}"#;

    #[test]
    fn a_configuration_is_read() {
        let config = Config::parse(GOOD.as_bytes()).unwrap();
        assert_eq!((config.architecture, config.vocabulary, config.hidden), (Architecture::Hybrid, 31, 128));
    }

    #[test]
    fn variants_are_files_that_the_configuration_names() {
        let folder = Path::new("folder");
        let former = Config::parse(GOOD.as_bytes()).unwrap();
        assert_eq!(former.variant(folder, "integer").unwrap(), folder.join("integer.safetensors"));
        let text = GOOD.replacen("\"octavo\": 1", "\"octavo\": 2, \"variants\": {\"integer\": \"i.safetensors\"}", 1);
        let config = Config::parse(text.as_bytes()).unwrap();
        assert_eq!(config.variant(folder, "integer").unwrap(), folder.join("i.safetensors"));
        let bare = Config::parse(GOOD.replacen("\"octavo\": 1", "\"octavo\": 2", 1).as_bytes()).unwrap();
        let told = bare.variant(folder, "integer").unwrap_err().to_string();
        assert!(told.contains("names no variant 'integer'") && told.contains("it has none"), "{told}");
    }

    #[test]
    fn every_other_configuration_is_refused_with_the_field() {
        for (from, to, reason) in [
            ("\"octavo\": 1", "\"octavo\": 3", "octavo is 3; accepted are 1 and 2"),
            ("\"octavo\": 1", "\"octavo\": 1, \"variants\": {}", "unknown field `variants` of version 1"),
            ("\"octavo\": 1", "\"octavo\": 2, \"variants\": []", "invalid type: sequence"),
            ("\"octavo\": 1", "\"octavo\": 2, \"variants\": {\"a\": 1}", "invalid type: integer"),
            (
                "\"octavo\": 1",
                "\"octavo\": 2, \"variants\": {\"a\": \"../b.safetensors\"}",
                "'a' is '../b.safetensors'",
            ),
            ("\"octavo\": 1", "\"octavo\": 2, \"variants\": {\"a\": \"b.bin\"}", "accepted is the name of another"),
            ("\"octavo\": 1", "\"octavo\": 2, \"variants\": {\"a\": \"model.safetensors\"}", "of another"),
            ("\"octavo\": 1, ", "", "missing field `octavo`"),
            ("seq2seq", "gpt\\u001b", "kind is 'gpt\\u{1b}'; accepted is 'seq2seq'"),
            ("hybrid", "Hybrid", "architecture is 'Hybrid'; accepted are lstm, hybrid, transformer"),
            ("\"vocabulary\": 31", "\"vocabulary\": 3", "vocabulary is 3; accepted is a whole number from 4 to 256"),
            ("\"vocabulary\": 31", "\"vocabulary\": 257", "from 4 to 256"),
            ("\"hidden\": 128", "\"hidden\": 128.0", "invalid type: floating point"),
            ("\"hidden\": 128", "\"hidden\": -1", "invalid value"),
            ("\"hidden\": 128", "\"hidden\": true", "invalid type: boolean"),
            ("\"hidden\": 128", "\"hidden\": 18446744073709551615", "hidden is 18446744073709551615"),
            ("\"hidden\": 128", "\"hidden\": 4097", "hidden is 4097"),
            ("\"heads\": 4", "\"heads\": 3", "heads is 3; it must divide hidden, 128"),
            ("\"heads\": 4", "\"heads\": 0", "heads is 0"),
            ("\"layers\": 2", "\"layers\": 2, \"layers\": 2", "duplicate field `layers`"),
            ("\"layers\": 2", "\"layers\": 2, \"dropout\": 0", "unknown field `dropout`"),
            ("32}", "32}}", "trailing characters"),
            ("32}", "32", "EOF"),
        ] {
            let error = Config::parse(GOOD.replacen(from, to, 1).as_bytes()).unwrap_err().to_string();
            assert!(error.contains(reason), "{from} -> {to}: {error}");
        }
        for text in ["", "[]", "[1]", "null", "\u{feff}{}"] {
            assert!(Config::parse(text.as_bytes()).is_err(), "{text}");
        }
        assert!(Config::parse(&[b'{', 0xff]).is_err());
        assert!(Config::parse("{\"octavo\":".repeat(10_000).as_bytes()).is_err());
    }
}
