//! A folder with the smallest model there is: one of everything, in float32 and in int8.

#![allow(dead_code, reason = "each target uses a part")]

use std::path::{Path, PathBuf};
use std::{env, fs, process};

/// Its files.
pub const FILES: [(&str, &[u8]); 4] = [
    ("config.json", include_bytes!("model/config.json")),
    ("tokenizer.json", include_bytes!("model/tokenizer.json")),
    ("model.safetensors", include_bytes!("model/model.safetensors")),
    ("integer.safetensors", include_bytes!("model/integer.safetensors")),
];

pub struct Folder(PathBuf);

impl Folder {
    /// A folder of this process, below that for temporary files.
    pub fn new(name: &str) -> Self {
        let folder = Self(env::temp_dir().join(format!("octavo-fuzz-{name}-{}", process::id())));
        fs::create_dir_all(&folder.0).expect("a folder can be made");
        FILES.iter().for_each(|(name, bytes)| folder.put(name, bytes));
        folder
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn put(&self, name: &str, bytes: &[u8]) {
        fs::write(self.0.join(name), bytes).expect("a file can be written");
    }
}
