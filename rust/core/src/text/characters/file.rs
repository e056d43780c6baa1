//! `tokenizer.json`: `{"type":"char","version":1,"special":{"pad":0,"start":1,"end":2},"characters":"..."}`.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{CharTokenizer, END, MOST_CHARACTERS, PAD, START};
use crate::error::{DataError, Error, Result};
use crate::files;

/// Most bytes of a file. 253 characters, each escaped as two surrogates, take 3,036.
const MOST_BYTES: usize = 64 * 1024;

/// The content of a file; a field that is missing, unknown or given twice is refused.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    r#type: String,
    version: u64,
    special: Special,
    characters: String,
}

#[derive(Serialize, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct Special {
    pad: u64,
    start: u64,
    end: u64,
}

const SPECIAL: Special = Special { pad: PAD as u64, start: START as u64, end: END as u64 };

impl CharTokenizer {
    /// The text of a file, one line.
    ///
    /// # Errors
    /// [`Error::Data`] if serialization fails, which no vocabulary brings about.
    pub fn to_json(&self) -> Result<String> {
        let characters = self.characters.iter().collect();
        let content = Content { r#type: "char".to_owned(), version: 1, special: SPECIAL, characters };
        serde_json::to_string(&content).map(|text| text + "\n").map_err(|error| DataError::Json(error).into())
    }

    /// Reads the text of a file.
    ///
    /// # Errors
    /// [`Error::Data`] for everything that [`CharTokenizer::to_json`] would not write, white space aside.
    pub fn from_json(text: &[u8]) -> Result<Self> {
        if text.len() > MOST_BYTES {
            return Err(DataError::FileBytes { bytes: text.len(), limit: MOST_BYTES }.into());
        }
        let content: Content = serde_json::from_slice(text).map_err(DataError::Json)?;
        if content.r#type != "char" || content.version != 1 {
            let (kind, version) = (content.r#type, content.version);
            let kind: String = kind.chars().take(32).collect();
            return Err(DataError::Kind { kind, version }.into());
        }
        if content.special != SPECIAL {
            let Special { pad, start, end } = content.special;
            let (found, accepted) = ([pad, start, end], [PAD, START, END].map(u64::from));
            return Err(DataError::SpecialTokens { found, accepted }.into());
        }
        let mut before = None;
        for (at, character) in content.characters.chars().enumerate() {
            if before.is_some_and(|before| before >= character) {
                let fault = if before == Some(character) { "stands twice" } else { "is out of order" };
                return Err(DataError::CharacterOrder { character, position: at, fault }.into());
            }
            if at == MOST_CHARACTERS {
                return Err(DataError::CharacterLimit { limit: MOST_CHARACTERS }.into());
            }
            before = Some(character);
        }
        Self::from_characters(&content.characters)
    }

    /// Writes a file, which appears under `path` complete or not at all; a file that is there is replaced.
    ///
    /// # Errors
    /// [`Error::Io`] where the directory cannot be written or `path` is no regular file.
    pub fn save(&self, path: &Path) -> Result<()> {
        let text = self.to_json()?;
        write(path, text.as_bytes()).map_err(|source| Error::Io { context: path.display().to_string(), source })
    }

    /// Reads a file.
    ///
    /// # Errors
    /// [`Error::Io`] where it cannot be read, [`Error::Data`] naming it as [`CharTokenizer::from_json`].
    pub fn load(path: &Path) -> Result<Self> {
        let mut text = Vec::new();
        File::open(path)
            .and_then(|file| file.take(MOST_BYTES as u64 + 1).read_to_end(&mut text))
            .map_err(|source| Error::Io { context: path.display().to_string(), source })?;
        Self::from_json(&text).map_err(|error| match error {
            Error::Data(fault) => DataError::At { place: path.display().to_string(), fault: Box::new(fault) }.into(),
            other => other,
        })
    }
}

/// Writes a temporary file beside `path` and gives it the name in the end.
fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let old = match std::fs::metadata(path) {
        // Renaming would put a file in the place of a pipe or a device.
        Ok(old) if !old.is_file() => return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")),
        Ok(old) => Some(old.permissions()),
        Err(_) => None,
    };
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // A file that is replaced keeps its mode.
    let mut temporary = files::temporary(tempfile::Builder::new().suffix(".tmp"), directory)?;
    if let Some(mode) = old {
        temporary.as_file().set_permissions(mode)?;
    }
    temporary.write_all(bytes)?;
    temporary.as_file().sync_all()?;
    temporary.persist(path).map(drop).map_err(|error| error.error)
}
