//! [`Reader`]: a checked container in a file, in a mapping of a file, or in memory.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects, clippy::cast_possible_truncation)]

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Mutex;

use memmap2::{MmapMut, MmapOptions};

use super::header::{self, LENGTH_BYTES};
use super::index::{Index, Part};
use super::{refuse_tensor, shown};
use crate::error::{ContainerError, Error, Result, ShapeError, TensorFault};
use crate::{files, pool};

/// Bytes of a file that one thread reads at a time.
const PIECE_BYTES: usize = 4 << 20;

/// Where the bytes are.
enum Source {
    File(File),
    Map(MmapMut),
    Memory(Box<dyn AsRef<[u8]> + Send + Sync>),
}

/// A container whose header has been checked; tensors are read when asked for.
pub struct Reader {
    index: Index,
    source: Source,
    /// The path in front of messages; empty in memory.
    place: String,
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader").field("place", &self.place).field("index", &self.index).finish_non_exhaustive()
    }
}

impl Reader {
    /// Opens a file and checks its header. With `mmap` the bytes are mapped instead of read.
    ///
    /// A mapping is private: writing to it changes neither the file nor other mappings. But pages that nobody here has
    /// written to are the file's: where another process writes to the file in place, they change under their readers,
    /// and where it shortens the file, touching the lost pages ends this process (SIGBUS). Files that Octavo replaces are
    /// safe, since a new file takes the name and the old bytes live on.
    ///
    /// # Errors
    /// [`Error::Io`] where the file cannot be opened, [`Error::Container`] where it is not a valid container.
    pub fn open(path: &Path, mmap: bool) -> Result<Self> {
        let place = path.display().to_string();
        let io = |source: io::Error| Error::Io { context: place.clone(), source };
        // Asked before opening: opening a named pipe would wait for a writer.
        let about = std::fs::metadata(path).map_err(io)?;
        if about.is_dir() {
            return Err(io(io::ErrorKind::IsADirectory.into()));
        }
        if !about.is_file() {
            return Err(ContainerError::NotAFile { place }.into());
        }
        let file = File::open(path).map_err(io)?;
        let bytes = file.metadata().map_err(io)?.len();
        let source = if mmap && bytes > 0 {
            // SAFETY: nobody else writes through a private mapping, but its bytes are not ours alone: other processes can
            // change them in the file, which no system call prevents and the documentation above says. We trust none of
            // them: the header is copied before it is checked, parts are found by that copy and the mapping's length,
            // and their bytes are copied out or handed to Python; what changes meanwhile is values, never an address.
            Source::Map(unsafe { MmapOptions::new().no_reserve_swap().map_copy(&file) }.map_err(io)?)
        } else {
            Source::File(file)
        };
        Self::new(source, bytes, place)
    }

    /// Checks a container that lies in memory.
    ///
    /// # Errors
    /// [`Error::Container`] where it is not a valid container.
    pub fn from_memory(bytes: impl AsRef<[u8]> + Send + Sync + 'static) -> Result<Self> {
        let length = bytes.as_ref().len() as u64;
        Self::new(Source::Memory(Box::new(bytes)), length, String::new())
    }

    fn new(source: Source, bytes: u64, place: String) -> Result<Self> {
        let index = read_index(&source, bytes).map_err(|error| at_place(&place, error))?;
        Ok(Self { index, source, place })
    }

    /// What the container holds.
    pub const fn index(&self) -> &Index {
        &self.index
    }

    /// Reads all bytes stored under a name (see [`Index::part`]) into `out`.
    ///
    /// # Errors
    /// [`Error::Container`] for an unknown name or a file that has become shorter, [`Error::Shape`] where `out` has
    /// another length, [`Error::Io`] where reading fails.
    pub fn read_into(&self, stored: &str, out: &mut [u8]) -> Result<()> {
        let part = self.part(stored)?;
        if out.len() != part.bytes {
            let (name, got) = (shown(stored), out.len());
            return Err(ShapeError::ReadLength { name, got, stored: part.bytes }.into());
        }
        self.read_range(stored, 0, out)
    }

    /// Reads `out.len()` bytes of what is stored under a name, from byte `start` on.
    ///
    /// # Errors
    /// As [`Reader::read_into`]; [`Error::Shape`] where the range passes the end.
    pub fn read_range(&self, stored: &str, start: usize, out: &mut [u8]) -> Result<()> {
        let part = self.part(stored)?;
        if start.checked_add(out.len()).is_none_or(|end| end > part.bytes) {
            let (name, bytes) = (shown(stored), out.len());
            return Err(ShapeError::ReadRange { name, bytes, start, stored: part.bytes }.into());
        }
        let offset = part.offset.saturating_add(start as u64);
        self.source.read_exact_at(offset, out).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => refuse_tensor(stored, TensorFault::Shortened),
            _ => Error::Io { context: self.place.clone(), source: error },
        })
    }

    /// The whole container, header included, where it is mapped or in memory. The bytes of a mapping change where another
    /// process writes to the file in place.
    pub fn bytes(&self) -> Option<&[u8]> {
        self.source.bytes()
    }

    /// True where the file is mapped: its bytes are private to this process and may be written.
    pub const fn is_mapped(&self) -> bool {
        matches!(self.source, Source::Map(_))
    }

    /// The error with the path in front, where there is one.
    pub(super) fn at_place(&self, error: Error) -> Error {
        at_place(&self.place, error)
    }

    fn part(&self, stored: &str) -> Result<&Part> {
        self.index.part(stored).ok_or_else(|| refuse_tensor(stored, TensorFault::Missing))
    }
}

fn at_place(place: &str, error: Error) -> Error {
    match error {
        Error::Container(fault) if !place.is_empty() => {
            ContainerError::At { place: place.to_owned(), fault: Box::new(fault) }.into()
        }
        Error::Io { context, source } if context.is_empty() => Error::Io { context: place.to_owned(), source },
        other => other,
    }
}

impl Source {
    fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::File(_) => None,
            Self::Map(map) => Some(map),
            Self::Memory(bytes) => Some((**bytes).as_ref()),
        }
    }
    fn read_exact_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        if let Self::File(file) = self {
            return read_file(file, offset, out);
        }
        let start = usize::try_from(offset).ok();
        let range = start.and_then(|start| Some(start..start.checked_add(out.len())?));
        match self.bytes().zip(range).and_then(|(bytes, range)| bytes.get(range)) {
            Some(bytes) => out.copy_from_slice(bytes),
            None => return Err(io::ErrorKind::UnexpectedEof.into()),
        }
        Ok(())
    }
}

/// Reads a run of a file, large ones on several threads: what costs time is that the memory is touched for the first
/// time.
fn read_file(file: &File, offset: u64, out: &mut [u8]) -> io::Result<()> {
    if out.len() <= PIECE_BYTES {
        return files::read_exact_at(file, out, offset);
    }
    let bytes = out.len();
    let pieces: Vec<_> = out.chunks_mut(PIECE_BYTES).map(Mutex::new).collect();
    let read = |i: usize| match pieces.get(i).map(Mutex::lock) {
        Some(Ok(mut piece)) => {
            files::read_exact_at(file, &mut piece, offset.saturating_add(PIECE_BYTES.saturating_mul(i) as u64))
        }
        _ => Err(io::ErrorKind::Other.into()),
    };
    pool::map(pieces.len(), bytes, read).map_err(io::Error::other)?.into_iter().collect()
}

/// Reads and checks the header of a source of `bytes` bytes.
fn read_index(source: &Source, bytes: u64) -> Result<Index> {
    if bytes < LENGTH_BYTES {
        return Err(ContainerError::TooShort { bytes, least: LENGTH_BYTES }.into());
    }
    let io = |error: io::Error| match error.kind() {
        io::ErrorKind::UnexpectedEof => ContainerError::Shortened.into(),
        _ => Error::Io { context: String::new(), source: error },
    };
    let mut first = [0; 8];
    source.read_exact_at(0, &mut first).map_err(io)?;
    let length = header::header_length(first, bytes)?;
    let mut text = header::zeroed(length)?;
    source.read_exact_at(LENGTH_BYTES, &mut text).map_err(io)?;
    Index::parse(&text, bytes.saturating_sub(LENGTH_BYTES).saturating_sub(length))
}
