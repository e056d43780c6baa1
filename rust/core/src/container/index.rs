//! [`Index`]: everything a container says about its tensors, checked.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects, clippy::cast_possible_truncation)]

use std::collections::BTreeMap;

use safetensors::Dtype;

use super::header::{self, Header, LENGTH_BYTES, METADATA, Stored};
use super::packing::Packing;
use super::{SPARSE_VERSION, VERSION, refuse_tensor, shown};
use crate::error::{ContainerError, Result, TensorFault};

const RESERVED: &str = "octavo.";
const VERSION_KEY: &str = "octavo.version";
const TENSOR_KEY: &str = "octavo.tensor.";

/// What a name stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A tensor of one of safetensors' dtypes, stored under its own name.
    Plain {
        /// Stored dtype.
        dtype: Dtype,
        /// Shape.
        shape: Vec<usize>,
    },
    /// An encoded tensor, stored as `NAME.codes` and, where its format has them, `NAME.scales`, `NAME.zeros`,
    /// `NAME.levels`.
    Packed(Packing),
}

/// A run of bytes of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Stored dtype.
    pub dtype: Dtype,
    /// Stored shape.
    pub shape: Vec<usize>,
    /// Position of the first byte in the file.
    pub offset: u64,
    /// Number of bytes.
    pub bytes: usize,
}

/// The checked table of contents of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Index {
    entries: BTreeMap<String, Entry>,
    parts: BTreeMap<String, Part>,
    metadata: BTreeMap<String, String>,
    octavo: bool,
    file_bytes: u64,
}

impl Index {
    /// Checks the text of a header that is followed by `data_bytes` bytes.
    ///
    /// # Errors
    /// [`crate::Error::Container`] naming the tensor, what was found and what is accepted.
    pub fn parse(text: &[u8], data_bytes: u64) -> Result<Self> {
        let Header { metadata, tensors } = header::parse(text, data_bytes)?;
        let start = LENGTH_BYTES.saturating_add(text.len() as u64);
        let parts = tensors.into_iter().map(|tensor| part(tensor, start)).collect::<Result<BTreeMap<_, _>>>()?;
        let version = check_version(&metadata)?;
        let (mut entries, mut user) = (BTreeMap::new(), BTreeMap::new());
        for (key, value) in metadata {
            if let Some(name) = key.strip_prefix(TENSOR_KEY) {
                let packing = Packing::parse(name, &value)?;
                if packing.nonzero.is_some() && version == Some(VERSION) {
                    return Err(refuse_tensor(name, TensorFault::SparseVersion { version: VERSION }));
                }
                check_parts(name, &packing, &parts)?;
                entries.insert(name.to_owned(), Entry::Packed(packing));
            } else if !key.starts_with(RESERVED) {
                user.insert(key, value);
            } else if key != VERSION_KEY {
                return Err(ContainerError::UnknownKey { key: shown(&key) }.into());
            }
        }
        for (stored, part) in &parts {
            // A plain tensor called NAME.scales is fine unless NAME is packed; its parts were checked above.
            if let Some((name, suffix)) = stored.rfind('.').map(|at| stored.split_at(at))
                && matches!(entries.get(name), Some(Entry::Packed(packing)) if packing.suffixes().contains(&suffix))
            {
                continue;
            }
            if entries.contains_key(stored) {
                return Err(refuse_tensor(stored, TensorFault::PackedAndPlain));
            }
            entries.insert(stored.clone(), Entry::Plain { dtype: part.dtype, shape: part.shape.clone() });
        }
        let octavo = version.is_some();
        Ok(Self { entries, parts, metadata: user, octavo, file_bytes: start.saturating_add(data_bytes) })
    }

    /// Lays out a file that holds `entries`: its index, and the bytes before its data.
    ///
    /// Parts are ordered by decreasing size of their elements, so that each is aligned, then by name. The result goes
    /// through [`Index::parse`], so whatever a reader refuses is refused here.
    ///
    /// # Errors
    /// As [`Index::parse`]; also for names that clash and metadata keys that begin with `octavo.`.
    pub fn plan(entries: &[(String, Entry)], metadata: &BTreeMap<String, String>) -> Result<(Self, Vec<u8>)> {
        let (tensors, metadata) = layout(entries, metadata)?;
        let data_bytes = tensors.last().map_or(0, |tensor| tensor.end);
        let first = header::print(&Header { metadata, tensors })?;
        let text = first.get(8..).unwrap_or_default();
        let index = Self::parse(text, data_bytes)?;
        Ok((index, first))
    }

    /// Names and what they stand for, in the order of names.
    pub const fn entries(&self) -> &BTreeMap<String, Entry> {
        &self.entries
    }
    /// The bytes stored under a name of the file: a plain tensor's own, or a packed tensor's with suffix.
    pub fn part(&self, stored: &str) -> Option<&Part> {
        self.parts.get(stored)
    }
    /// Every name of the file with its bytes, in the order of names.
    pub const fn parts(&self) -> &BTreeMap<String, Part> {
        &self.parts
    }
    /// The parts of an entry, as stored names and bytes; a plain tensor has one, under its own name.
    pub fn parts_of<'a>(&'a self, name: &'a str) -> impl Iterator<Item = (String, &'a Part)> {
        let suffixes: &[&str] = match self.entries.get(name) {
            Some(Entry::Packed(packing)) => packing.suffixes(),
            Some(Entry::Plain { .. }) => &[""],
            None => &[],
        };
        suffixes.iter().map(move |suffix| format!("{name}{suffix}")).filter_map(|stored| {
            let part = self.parts.get(&stored)?;
            Some((stored, part))
        })
    }
    /// The user's metadata, without the keys of Octavo.
    pub const fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }
    /// True for files written by Octavo, false for other safetensors files.
    pub const fn is_octavo(&self) -> bool {
        self.octavo
    }
    /// Bytes of the whole file.
    pub const fn file_bytes(&self) -> u64 {
        self.file_bytes
    }
}

fn part(tensor: Stored, start: u64) -> Result<(String, Part)> {
    let Stored { name, dtype, shape, begin, end } = tensor;
    let bytes = usize::try_from(end.saturating_sub(begin))
        .map_err(|error| refuse_tensor(&name, TensorFault::Address(error)))?;
    Ok((name, Part { dtype, shape, offset: start.saturating_add(begin), bytes }))
}

/// The version of an Octavo file, which must be one that is read; `None` for a file without the keys of Octavo.
fn check_version(metadata: &BTreeMap<String, String>) -> Result<Option<&'static str>> {
    match metadata.get(VERSION_KEY) {
        Some(version) if version == VERSION => Ok(Some(VERSION)),
        Some(version) if version == SPARSE_VERSION => Ok(Some(SPARSE_VERSION)),
        Some(version) => {
            let ours = SPARSE_VERSION.parse::<u32>();
            let newer = version.parse::<u32>().is_ok_and(|number| ours.is_ok_and(|ours| number > ours));
            let found = shown(version);
            Err(ContainerError::Version { key: VERSION_KEY, found, accepted: "'1' and '2'", newer }.into())
        }
        None => match metadata.keys().find(|key| key.starts_with(RESERVED)) {
            Some(key) => Err(ContainerError::NoVersion { key: shown(key), version_key: VERSION_KEY }.into()),
            None => Ok(None),
        },
    }
}

/// Checks that exactly the parts that a packing demands are there, with the dtype and shape it demands.
fn check_parts(name: &str, packing: &Packing, parts: &BTreeMap<String, Part>) -> Result<()> {
    let demands = packing.demands(name)?;
    for demand in &demands {
        let suffix = demand.suffix.trim_start_matches('.');
        let Some(part) = parts.get(&format!("{name}{}", demand.suffix)) else {
            return Err(refuse_tensor(name, TensorFault::PartMissing { format: packing.format, part: suffix }));
        };
        if part.dtype != demand.dtype || part.shape != demand.shape {
            let fault = TensorFault::Part {
                format: packing.format,
                shape: packing.shape.clone(),
                axis: packing.axis,
                part: suffix,
                expected: (demand.dtype, demand.shape.clone()),
                found: (part.dtype, part.shape.clone()),
            };
            return Err(refuse_tensor(name, fault));
        }
    }
    for suffix in packing.suffixes().iter().filter(|suffix| demands.iter().all(|demand| demand.suffix != **suffix)) {
        if parts.contains_key(&format!("{name}{suffix}")) {
            let kind = suffix.trim_start_matches('.');
            return Err(refuse_tensor(name, TensorFault::PartUnexpected { format: packing.format, part: kind }));
        }
    }
    Ok(())
}

/// Tensors with their offsets, and the whole metadata, of a file to be written.
fn layout(
    entries: &[(String, Entry)],
    metadata: &BTreeMap<String, String>,
) -> Result<(Vec<Stored>, BTreeMap<String, String>)> {
    if let Some(key) = metadata.keys().find(|key| key.starts_with(RESERVED)) {
        return Err(ContainerError::ReservedKey { key: shown(key), prefix: RESERVED }.into());
    }
    let mut all = metadata.clone();
    // Files without sparse codes are those of the first version, byte for byte.
    let sparse = |entry: &Entry| matches!(entry, Entry::Packed(packing) if packing.nonzero.is_some());
    let version = if entries.iter().any(|(_, entry)| sparse(entry)) { SPARSE_VERSION } else { VERSION };
    all.insert(VERSION_KEY.to_owned(), version.to_owned());
    let mut tensors: BTreeMap<String, Stored> = BTreeMap::new();
    for (name, entry) in entries {
        let parts = match entry {
            Entry::Plain { dtype, shape } => vec![(name.clone(), *dtype, shape.clone())],
            Entry::Packed(packing) => {
                if all.insert(format!("{TENSOR_KEY}{name}"), packing.print(name)?).is_some() {
                    return Err(refuse_tensor(name, TensorFault::Twice));
                }
                let demands = packing.demands(name)?.into_iter();
                demands.map(|part| (format!("{name}{}", part.suffix), part.dtype, part.shape)).collect()
            }
        };
        for (stored, dtype, shape) in parts {
            if stored == METADATA {
                return Err(refuse_tensor(name, TensorFault::ReservedName));
            }
            let Some(bytes) = header::byte_length(dtype, &shape) else {
                return Err(refuse_tensor(name, TensorFault::Bytes { shape, dtype }));
            };
            let tensor = Stored { name: stored.clone(), dtype, shape, begin: 0, end: bytes };
            if tensors.insert(stored.clone(), tensor).is_some() {
                return Err(refuse_tensor(name, TensorFault::Clash { stored: shown(&stored) }));
            }
        }
    }
    let mut tensors: Vec<Stored> = tensors.into_values().collect();
    tensors.sort_by_key(|tensor| std::cmp::Reverse(tensor.dtype.bitsize().max(8)));
    let mut at = 0u64;
    for tensor in &mut tensors {
        let bytes = tensor.end;
        tensor.begin = at;
        at = at.checked_add(bytes).ok_or_else(|| refuse_tensor(&tensor.name, TensorFault::FileTooLong))?;
        tensor.end = at;
    }
    Ok((tensors, all))
}
