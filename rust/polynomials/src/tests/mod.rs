//! Folders of small models: what is read, what is refused, and that answers do not depend on threads.

#[path = "../../../engine/src/tests/files.rs"]
mod files;
mod integer;
mod seq2seq;

use octavo_core::text::characters::CharTokenizer;

use crate::{Config, schema};
use files::{Tensors, floats, value, write};

/// The smallest hybrid model.
const CONFIG: &str = r#"{"octavo":1,"kind":"seq2seq","architecture":"hybrid","vocabulary":9,"embedding":3,"encoder":2,
    "hidden":4,"heads":2,"layers":1,"feedforward":5,"max_source":8,"max_target":8}"#;

fn config() -> Config {
    Config::parse(CONFIG.as_bytes()).unwrap()
}

fn model() -> Tensors {
    schema::tensors(&config()).into_iter().map(|(name, shape)| (name, floats(&shape, value))).collect()
}

/// A folder with configuration, tokenizer and the given files of tensors.
fn folder(files: &[(&str, &Tensors)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), CONFIG).unwrap();
    CharTokenizer::from_characters("abcxyz").unwrap().save(&folder.path().join("tokenizer.json")).unwrap();
    for (name, tensors) in files {
        write(&folder.path().join(name), tensors);
    }
    folder
}
