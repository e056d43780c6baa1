//! Compiled kernels, kept in a folder between processes.
//!
//! An entry is code that will run. So a folder that other users can write to is refused, and every entry carries the hash
//! of its content.

mod entry;
mod folder;

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use sha2::{Digest, Sha256};

use crate::arch::Target;
use crate::nvrtc::{Image, options};
use crate::settings::Keep;
use crate::{Program, Result};

/// Bytes that the folder may hold; the entries used longest ago go first.
pub const CAP: u64 = 512 << 20;
const SUFFIX: &str = "kernel";

/// Key of a compiled program: the hash of its source, options, target and compiler.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key([u8; 32]);

impl Key {
    /// The key of a program compiled for a target by a version of NVRTC and this version of Octavo.
    pub fn new(program: &Program, target: Target, version: (u32, u32)) -> Self {
        let mut hash = Sha256::new();
        let compiler = format!("NVRTC {}.{}, octavo {}", version.0, version.1, env!("CARGO_PKG_VERSION"));
        for part in std::iter::once(compiler).chain(options(target)).chain([program.source()]) {
            hash.update((part.len() as u64).to_le_bytes()); // so that no two lists of parts read alike
            hash.update(part);
        }
        Self(hash.finalize().into())
    }

    /// In hexadecimal digits.
    pub fn hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// A folder of compiled kernels, or none.
#[derive(Debug)]
pub struct Cache {
    folder: Option<PathBuf>,
    /// Why nothing is kept, where nothing is.
    pub why_not: Option<String>,
    cap: u64,
}

impl Cache {
    /// Opens the folder that `keep` names and makes it where it is not there.
    ///
    /// A folder named by the user that others can write to is an error; the default folder is then not used. Where the
    /// folder cannot be written, kernels are kept in memory only.
    pub fn open(keep: &Keep) -> Result<Self> {
        let off = |why: String| Ok(Self { folder: None, why_not: Some(why), cap: CAP });
        match keep {
            Keep::Off(why) => off((*why).to_owned()),
            Keep::Folder(folder) => match folder::prepare(folder) {
                Ok(()) => Ok(Self { folder: Some(folder.clone()), why_not: None, cap: CAP }),
                Err(folder::Refusal::Unsafe(why)) => Err(crate::Error::Setting(format!(
                    "OCTAVO_CACHE_DIR: {why}; kernels kept there could be replaced by anybody. chmod 700 a folder of your \
                     own, or set OCTAVO_CACHE_DIR=off"
                ))),
                Err(folder::Refusal::Unusable(why)) => off(why),
            },
            Keep::Default(folder) => match folder::prepare(folder) {
                Ok(()) => Ok(Self { folder: Some(folder.clone()), why_not: None, cap: CAP }),
                Err(folder::Refusal::Unsafe(why) | folder::Refusal::Unusable(why)) => off(why),
            },
        }
    }

    /// The same folder with room for `cap` bytes.
    #[must_use]
    pub fn with_cap(self, cap: u64) -> Self {
        Self { cap, ..self }
    }

    /// The folder, where there is one.
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// What is kept under a key. An entry that is not whole counts as none.
    pub fn get(&self, key: &Key) -> Option<Image> {
        let path = self.path(key)?;
        let image = entry::read(&fs::read(&path).ok()?)?;
        let _ = fs::File::open(&path).and_then(|file| file.set_modified(SystemTime::now())); // it was used just now
        Some(image)
    }

    /// Keeps an image. On a disk error it is not kept, and the next process compiles again.
    pub fn put(&self, key: &Key, image: &Image) {
        let (Some(folder), Some(path)) = (&self.folder, self.path(key)) else { return };
        let written = tempfile::Builder::new().prefix(".new").tempfile_in(folder).and_then(|mut file| {
            file.write_all(&entry::write(image))?;
            file.persist(&path).map_err(|error| error.error)
        });
        if written.is_ok() {
            self.shrink();
        }
    }

    /// Number and bytes of the entries.
    pub fn size(&self) -> (usize, u64) {
        let entries = self.entries();
        (entries.len(), entries.iter().map(|entry| entry.1).sum())
    }

    fn path(&self, key: &Key) -> Option<PathBuf> {
        Some(self.folder.as_ref()?.join(format!("{}.{SUFFIX}", key.hex())))
    }

    /// Time of last use, bytes and path of every entry.
    fn entries(&self) -> Vec<(SystemTime, u64, PathBuf)> {
        let Some(listed) = self.folder.as_ref().and_then(|folder| fs::read_dir(folder).ok()) else { return Vec::new() };
        let paths = listed.filter_map(|entry| Some(entry.ok()?.path()));
        let ours = paths.filter(|path| path.extension().is_some_and(|extension| extension == SUFFIX));
        ours.filter_map(|path| {
            let facts = fs::symlink_metadata(&path).ok()?;
            Some((facts.modified().ok()?, facts.len(), path))
        })
        .collect()
    }

    fn shrink(&self) {
        let mut entries = self.entries();
        let mut bytes: u64 = entries.iter().map(|entry| entry.1).sum();
        if bytes <= self.cap {
            return;
        }
        entries.sort_unstable();
        for (_, size, path) in entries {
            if bytes <= self.cap {
                break;
            }
            if fs::remove_file(path).is_ok() {
                bytes = bytes.saturating_sub(size);
            }
        }
    }
}
