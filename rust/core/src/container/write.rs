//! [`Writer`]: a container that appears complete under its name, or not at all.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use super::header::zeroed;
use super::index::{Entry, Index};
use super::packing::BITMAP;
use super::{refuse_tensor, shown};
use crate::codec::Packed;
use crate::error::{Error, Result, ShapeError, TensorFault};
use crate::files;

/// Where the bytes go.
enum Sink {
    /// A temporary file beside the path, which takes its name in the end.
    File {
        temporary: NamedTempFile,
        path: PathBuf,
        overwrite: bool,
    },
    Memory(Vec<u8>),
}

/// Writes a container. The entries are announced first; then each is put, in any order and one at a time, so that no
/// more than one tensor needs to be in memory. Dropped before [`Writer::finish`], it leaves nothing behind.
pub struct Writer {
    index: Index,
    sink: Sink,
    waiting: BTreeSet<String>,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").field("waiting", &self.waiting).finish_non_exhaustive()
    }
}

impl Writer {
    /// Starts a file at `path` that will hold `entries`. The bytes go to a temporary file in the same directory.
    ///
    /// # Errors
    /// [`Error::Container`] for names that clash or exceed the limits, before anything is written. [`Error::Io`] where
    /// the directory cannot be written, or the file exists and `overwrite` is false.
    pub fn create(
        path: &Path,
        entries: &[(String, Entry)],
        metadata: &BTreeMap<String, String>,
        overwrite: bool,
    ) -> Result<Self> {
        let io = |source: io::Error| Error::Io { context: path.display().to_string(), source };
        let (index, first) = Index::plan(entries, metadata)?;
        let name = path.file_name().ok_or_else(|| io(io::ErrorKind::IsADirectory.into()))?.to_string_lossy();
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let old = match std::fs::metadata(path) {
            Ok(old) if old.is_dir() => return Err(io(io::ErrorKind::IsADirectory.into())),
            // Renaming would put a file in the place of a pipe or a device.
            Ok(old) if !old.is_file() => {
                let source = io::Error::new(io::ErrorKind::InvalidInput, "not a regular file");
                return Err(io(source));
            }
            Ok(_) if !overwrite => return Err(io(io::ErrorKind::AlreadyExists.into())),
            Ok(old) => Some(old.permissions()),
            Err(_) => None,
        };
        // A file that is replaced keeps its mode.
        let prefix = format!(".{}.", name.chars().take(32).collect::<String>());
        let mut builder = tempfile::Builder::new();
        let temporary = files::temporary(builder.prefix(&prefix).suffix(".tmp"), directory).map_err(io)?;
        if let Some(mode) = old {
            temporary.as_file().set_permissions(mode).map_err(io)?;
        }
        temporary.as_file().set_len(index.file_bytes()).map_err(io)?;
        files::write_all_at(temporary.as_file(), &first, 0).map_err(io)?;
        Ok(Self::new(index, Sink::File { temporary, path: path.to_owned(), overwrite }))
    }

    /// Starts a container in memory.
    ///
    /// # Errors
    /// [`Error::Container`] as [`Writer::create`], [`Error::OutOfMemory`] where the bytes cannot be reserved.
    pub fn in_memory(entries: &[(String, Entry)], metadata: &BTreeMap<String, String>) -> Result<Self> {
        let (index, first) = Index::plan(entries, metadata)?;
        let mut bytes = zeroed(index.file_bytes())?;
        bytes[..first.len()].copy_from_slice(&first);
        Ok(Self::new(index, Sink::Memory(bytes)))
    }

    fn new(index: Index, sink: Sink) -> Self {
        let waiting = index.entries().keys().cloned().collect();
        Self { index, sink, waiting }
    }

    /// What the container will hold.
    pub const fn index(&self) -> &Index {
        &self.index
    }

    /// Writes the bytes of the plain tensor `name`, row-major and little-endian.
    ///
    /// # Errors
    /// [`Error::Container`] for a name that was not announced as plain or was put before, [`Error::Shape`] for another
    /// number of bytes, [`Error::Io`] where writing fails.
    pub fn put_plain(&mut self, name: &str, data: &[u8]) -> Result<()> {
        match self.index.entries().get(name) {
            Some(Entry::Plain { .. }) => self.put(name, &[("", data)]),
            _ => Err(refuse_tensor(name, TensorFault::NotAnnounced { kind: "plain" })),
        }
    }

    /// Writes the parts of the packed tensor `name`.
    ///
    /// # Errors
    /// As [`Writer::put_plain`].
    pub fn put_packed(&mut self, name: &str, packed: Packed<'_>) -> Result<()> {
        self.put_sparse(name, packed, &[])
    }

    /// Writes the parts of the packed tensor `name` whose codes are sparse, with the bytes of its bitmap, which is empty for
    /// dense codes.
    ///
    /// # Errors
    /// As [`Writer::put_plain`].
    pub fn put_sparse(&mut self, name: &str, packed: Packed<'_>, bitmap: &[u8]) -> Result<()> {
        let mut parts = vec![
            (".codes", packed.codes),
            (".scales", packed.scales),
            (".zeros", packed.zeros),
            (".levels", packed.levels),
        ];
        let entry = self.index.entries().get(name);
        let is_sparse = matches!(entry, Some(Entry::Packed(packing)) if packing.nonzero.is_some());
        if is_sparse || !bitmap.is_empty() {
            parts.push((BITMAP, bitmap));
        }
        match self.index.entries().get(name) {
            Some(Entry::Packed(_)) => self.put(name, &parts),
            _ => Err(refuse_tensor(name, TensorFault::NotAnnounced { kind: "packed" })),
        }
    }

    fn put(&mut self, name: &str, parts: &[(&str, &[u8])]) -> Result<()> {
        let stored = |suffix: &str| format!("{name}{suffix}");
        for (suffix, data) in parts {
            let wanted = self.index.part(&stored(suffix)).map_or(0, |part| part.bytes);
            if data.len() != wanted {
                let name = shown(&stored(suffix));
                return Err(ShapeError::WriteLength { name, got: data.len(), expected: wanted }.into());
            }
        }
        if !self.waiting.remove(name) {
            return Err(refuse_tensor(name, TensorFault::Twice));
        }
        for (suffix, data) in parts {
            if let Some(part) = self.index.part(&stored(suffix)) {
                self.sink.write_at(part.offset, data)?;
            }
        }
        Ok(())
    }

    /// Completes the container: a file is synchronized with the disk and renamed to its path; a container in memory is
    /// returned.
    ///
    /// # Errors
    /// [`Error::Container`] where an announced entry was never put, [`Error::Io`] where synchronizing or renaming
    /// fails, or the path has come into being and `overwrite` is false.
    pub fn finish(self) -> Result<Option<Vec<u8>>> {
        if let Some(name) = self.waiting.first() {
            return Err(refuse_tensor(name, TensorFault::NeverGiven));
        }
        let (temporary, path, overwrite) = match self.sink {
            Sink::Memory(bytes) => return Ok(Some(bytes)),
            Sink::File { temporary, path, overwrite } => (temporary, path, overwrite),
        };
        let io = |source: io::Error| Error::Io { context: path.display().to_string(), source };
        temporary.as_file().sync_all().map_err(io)?;
        let directory = temporary.path().parent().map(Path::to_owned);
        let kept = if overwrite { temporary.persist(&path) } else { temporary.persist_noclobber(&path) };
        kept.map_err(|error| io(error.error))?;
        // The name itself is on disk only with its directory. The bytes are safe by now, and some file systems refuse
        // to synchronize a directory, so a failure here is no failure of the file.
        if let Some(directory) = directory.and_then(|path| File::open(path).ok()) {
            let _ = directory.sync_all();
        }
        Ok(None)
    }
}

impl Sink {
    fn write_at(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        match self {
            Self::File { temporary, path, .. } => files::write_all_at(temporary.as_file(), data, offset)
                .map_err(|source| Error::Io { context: path.display().to_string(), source }),
            Self::Memory(bytes) => {
                let start = offset as usize;
                bytes[start..start + data.len()].copy_from_slice(data);
                Ok(())
            }
        }
    }
}
