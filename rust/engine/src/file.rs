//! Reads small files of a model folder, of bounded size, and finds those that hold the weights.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use octavo_core::error::ContainerError;
use serde::Deserialize;

use crate::error::{Error, Result, refuse};

/// Name of the configuration in a model folder.
pub const CONFIG: &str = "config.json";

/// Reads a file of at most `most` bytes.
///
/// # Errors
/// [`octavo_core::Error::Io`] where it cannot be read, [`octavo_core::Error::Container`] for one that is longer or no
/// regular file.
pub fn read(path: &Path, most: u64) -> Result<Vec<u8>> {
    let place = path.display();
    let io = |source: io::Error| Error::Core(octavo_core::Error::Io { context: place.to_string(), source });
    // Asked before opening: opening a named pipe would wait for a writer.
    let about = std::fs::metadata(path).map_err(io)?;
    if about.is_dir() {
        return Err(io(io::ErrorKind::IsADirectory.into()));
    }
    if !about.is_file() {
        return Err(Error::Core(ContainerError::NotAFile { place: place.to_string() }.into()));
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

/// Says which file of a sharded checkpoint holds which tensor.
const INDEX: &str = "model.safetensors.index.json";
/// Most bytes of the index.
const MOST_INDEX_BYTES: u64 = 64 << 20;

/// The files in a folder that hold the weights of the model: one, or the shards that its index names.
///
/// # Errors
/// [`octavo_core::Error::Container`] where there are two models, and for an index that names no files of this folder;
/// [`octavo_core::Error::Io`] where there is none.
pub(crate) fn weights(folder: &Path) -> Result<Vec<PathBuf>> {
    let found: Vec<&str> = WEIGHTS.into_iter().chain([INDEX]).filter(|name| folder.join(name).exists()).collect();
    match found.as_slice() {
        [INDEX] => shards(folder),
        [name] => Ok(vec![folder.join(name)]),
        [] => {
            let context = format!("{}: no {}", folder.display(), WEIGHTS.join(", no "));
            Err(Error::Core(octavo_core::Error::Io { context, source: io::ErrorKind::NotFound.into() }))
        }
        names => {
            let names = names.join(" and ");
            Err(refuse(format!("{}: holds {names}; keep the one that is meant", folder.display())))
        }
    }
}

fn shards(folder: &Path) -> Result<Vec<PathBuf>> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let path = folder.join(INDEX);
    let index: Index = serde_json::from_slice(&read(&path, MOST_INDEX_BYTES)?)
        .map_err(|error| refuse(format!("{}: not an index of shards: {error}", path.display())))?;
    let names: BTreeSet<&str> = index.weight_map.values().map(String::as_str).collect();
    if names.is_empty() {
        return Err(refuse(format!("{}: weight_map is empty", path.display())));
    }
    let inside = |name: &str| Path::new(name).file_name().is_some_and(|file| file == name) && !name.contains('\0');
    match names.iter().find(|name| !name.ends_with(".safetensors") || !inside(name)) {
        Some(name) => Err(refuse(format!(
            "{}: weight_map: '{}' is not the name of a safetensors file in this folder",
            path.display(),
            shown(name)
        ))),
        None => Ok(names.iter().map(|name| folder.join(name)).collect()),
    }
}

/// A text from a file as messages show it: escaped, and cut where it is long.
pub fn shown(text: &str) -> String {
    const MOST: usize = 80;
    let mut out: String = text.chars().take(MOST).flat_map(char::escape_debug).collect();
    if text.chars().nth(MOST).is_some() {
        out.push_str("...");
    }
    out
}
