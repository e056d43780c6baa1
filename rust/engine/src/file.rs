//! Reads small files of a model folder, of bounded size, and finds the one that holds the weights.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result, refuse};

/// Reads a file of at most `most` bytes.
///
/// # Errors
/// [`octavo_core::Error::Io`] where it cannot be read, [`octavo_core::Error::Container`] for one that is longer or no
/// regular file.
pub(crate) fn read(path: &Path, most: u64) -> Result<Vec<u8>> {
    let place = path.display();
    let io = |source: io::Error| Error::Core(octavo_core::Error::Io { context: place.to_string(), source });
    // Asked before opening: opening a named pipe would wait for a writer.
    let about = std::fs::metadata(path).map_err(io)?;
    if about.is_dir() {
        return Err(io(io::ErrorKind::IsADirectory.into()));
    }
    if !about.is_file() {
        return Err(refuse(format!("{place}: is not a regular file")));
    }
    let mut bytes = Vec::new();
    File::open(path).and_then(|file| file.take(most.saturating_add(1)).read_to_end(&mut bytes)).map_err(io)?;
    if bytes.len() as u64 > most {
        return Err(refuse(format!("{place}: more than {most} bytes")));
    }
    Ok(bytes)
}

/// Names of the file that holds the weights of a model: packed ones, and plain ones or those of Octavo 0.1.
const WEIGHTS: [&str; 2] = ["model.octavo.safetensors", "model.safetensors"];

/// The file in a folder that holds the weights of the model.
///
/// # Errors
/// [`octavo_core::Error::Container`] where there are two; [`octavo_core::Error::Io`] where there is none.
pub(crate) fn weights(folder: &Path) -> Result<PathBuf> {
    let mut found = WEIGHTS.iter().map(|name| folder.join(name)).filter(|path| path.exists());
    match (found.next(), found.next()) {
        (Some(path), None) => Ok(path),
        (Some(_), Some(_)) => {
            let names = WEIGHTS.join(" and ");
            Err(refuse(format!("{}: holds {names}; keep the one that is meant", folder.display())))
        }
        (None, _) => {
            let context = format!("{}: no {}", folder.display(), WEIGHTS.join(", no "));
            Err(Error::Core(octavo_core::Error::Io { context, source: io::ErrorKind::NotFound.into() }))
        }
    }
}

/// A text from a file as messages show it: escaped, and cut where it is long.
pub(crate) fn shown(text: &str) -> String {
    const MOST: usize = 80;
    let mut out: String = text.chars().take(MOST).flat_map(char::escape_debug).collect();
    if text.chars().nth(MOST).is_some() {
        out.push_str("...");
    }
    out
}
