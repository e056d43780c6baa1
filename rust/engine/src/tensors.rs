//! Tensors of a container, checked before and after they are read.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects, clippy::cast_possible_truncation)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, OnceLock};

use octavo_core::container::{Dtype, Entry, Packing, Part, Reader};
use octavo_core::error::{ContainerError, Refusal, TensorFault};
use octavo_core::format::Granularity;
use octavo_core::huge_pages::{Buffer, Region};
use octavo_core::linear::Matrix;
use octavo_core::{DType, Error as CoreError, Format, Layout, Packed, ValuesMut, codec, sparse};
#[cfg(feature = "candle")]
use octavo_core::{Options, PackedMut, ScaleRule, Sizes, Values};

use crate::error::{Error, ModelFault, Result, in_file, refuse};
use crate::file::{self, shown};

/// What demands tensors of a sequence-to-sequence model.
const CONFIGURATION: &str = "the configuration";

/// The containers of a model folder: one, or the shards of a checkpoint. Refusals begin with the path and the tensor's
/// name.
pub struct Tensors {
    shards: Vec<Shard>,
    /// Where packed matrices are held.
    region: OnceLock<Arc<Region>>,
}

struct Shard {
    reader: Reader,
    place: String,
}

impl Shard {
    fn open(path: &Path) -> Result<Self> {
        let reader = Reader::open(path, false)?;
        reader.verify()?;
        Ok(Self { reader, place: path.display().to_string() })
    }

    fn entries(&self) -> &BTreeMap<String, Entry> {
        self.reader.index().entries()
    }

    fn refuse(&self, name: &str, refusal: impl Into<Refusal>) -> Error {
        in_file(&self.place, of_tensor(name, refusal))
    }
}

/// A refusal that names the tensor.
fn of_tensor(name: &str, refusal: impl Into<Refusal>) -> Error {
    let fault = ContainerError::Tensor { name: shown(name), fault: Box::new(TensorFault::Other(refusal.into())) };
    Error::Core(fault.into())
}

/// Codes of a packed tensor, with the bytes of their scales.
pub struct Codes {
    /// Codes, as many bits each as the format says, in the order of memory.
    pub codes: Vec<u8>,
    /// Scales, little-endian.
    pub scales: Vec<u8>,
}

/// A packed tensor as it lies in the file, or several of them that are one below the other.
#[derive(Debug, PartialEq)]
pub struct StoredTensor {
    packing: Packing,
    codes: Buffer,
    scales: Buffer,
    zeros: Buffer,
    levels: Buffer,
}

impl StoredTensor {
    /// The codes of a matrix, row by row.
    ///
    /// # Errors
    /// [`CoreError::NonFinite`] for values that are not finite, [`CoreError::Shape`] where the format does not take the shape.
    #[cfg(feature = "candle")]
    pub(crate) fn encode(values: &[f32], shape: [usize; 2], format: Format) -> Result<Self> {
        let layout = Layout::new(&shape, 1, format)?;
        let sizes = Sizes::new(format, &layout)?;
        let [mut codes, mut scales] = [own(sizes.codes)?, own(sizes.scales)?];
        let [mut zeros, mut levels] = [own(sizes.zeros)?, own(sizes.levels)?];
        let out = PackedMut { codes: &mut codes, scales: &mut scales, zeros: &mut zeros, levels: &mut levels };
        codec::encode(Values::F32(values), layout, format, &Options::default(), out)?;
        let scale = ScaleRule::Floor;
        let packing = Packing { format, scale, shape: shape.to_vec(), dtype: DType::F32, axis: 1, nonzero: None };
        Ok(Self { packing, codes, scales, zeros, levels })
    }

    /// Format of the codes.
    pub const fn format(&self) -> Format {
        self.packing.format
    }

    /// Bytes of codes, scales, zeros and levels.
    pub fn nbytes(&self) -> usize {
        self.codes
            .len()
            .saturating_add(self.scales.len())
            .saturating_add(self.zeros.len())
            .saturating_add(self.levels.len())
    }

    fn packed(&self) -> Packed<'_> {
        let Self { codes, scales, zeros, levels, .. } = self;
        Packed { codes, scales, zeros, levels }
    }

    /// The matrix for products and gathers.
    pub fn matrix(&self, rows: usize, columns: usize) -> Matrix<'_> {
        Matrix { format: self.packing.format, packed: self.packed(), rows, columns }
    }

    /// What `octavo.decode` gives, widened to f32: a tensor of 16-bit floats is rounded to them first.
    ///
    /// # Errors
    /// [`CoreError::Shape`] for parts that do not fit the shape, [`CoreError::OutOfMemory`] where memory is short.
    pub fn decode(&self) -> Result<Vec<f32>> {
        let Packing { format, ref shape, dtype, axis, .. } = self.packing;
        let axis = isize::try_from(axis).unwrap_or(isize::MAX);
        let layout = Layout::new(shape, axis, format)?;
        let count = shape.iter().try_fold(1usize, |all, &dim| all.checked_mul(dim));
        let count = count.ok_or_else(|| refuse(ModelFault::Overflow { shape: shape.clone() }))?;
        let mut values = reserved(count)?;
        if dtype == DType::F32 {
            values.resize(count, 0.0);
            codec::decode(self.packed(), layout, format, ValuesMut::F32(&mut values))?;
            return Ok(values);
        }
        let mut bits = reserved(count)?;
        bits.resize(count, 0u16);
        let out = if dtype == DType::F16 { ValuesMut::F16(&mut bits) } else { ValuesMut::BF16(&mut bits) };
        codec::decode(self.packed(), layout, format, out)?;
        values.extend(bits.iter().map(|&bits| widen(bits, dtype)));
        Ok(values)
    }
}

impl Tensors {
    /// Opens a file and checks its header.
    ///
    /// # Errors
    /// [`CoreError::Io`] where the file cannot be read, [`CoreError::Container`] naming file and tensor for what is no container.
    pub fn open(path: &Path) -> Result<Self> {
        Ok(Self { shards: vec![Shard::open(path)?], region: OnceLock::new() })
    }

    /// Opens the files that hold the weights of a model folder and checks their headers.
    ///
    /// # Errors
    /// As [`Tensors::open`], for a tensor that is in two of them, and for a folder without weights.
    pub fn of_folder(folder: &Path) -> Result<Self> {
        let files = file::weights(folder)?;
        let shards: Vec<Shard> = files.iter().map(|path| Shard::open(path)).collect::<Result<_>>()?;
        let mut seen = BTreeSet::new();
        for shard in &shards {
            if let Some(name) = shard.entries().keys().find(|name| !seen.insert(name.as_str())) {
                return Err(shard.refuse(name, ModelFault::Twice));
            }
        }
        Ok(Self { shards, region: OnceLock::new() })
    }

    /// A refusal that names the file and the tensor.
    pub fn refuse(&self, name: &str, refusal: impl Into<Refusal>) -> Error {
        match self.shard(name).or(self.shards.first()) {
            Some(shard) => shard.refuse(name, refusal),
            None => of_tensor(name, refusal),
        }
    }

    fn shard(&self, name: &str) -> Option<&Shard> {
        self.shards.iter().find(|shard| shard.entries().contains_key(name))
    }

    fn find(&self, name: &str) -> Option<&Entry> {
        self.shards.iter().find_map(|shard| shard.entries().get(name))
    }

    /// Checks that the names are those of `demanded`, each with its shape, and nothing else.
    ///
    /// # Errors
    /// [`CoreError::Io`] where the file cannot be read, [`CoreError::Container`] naming file and tensor for the first name that does not fit.
    pub fn check_names(&self, demanded: &BTreeMap<String, Vec<usize>>) -> Result<()> {
        for (name, shape) in demanded {
            let entry = self
                .find(name)
                .ok_or_else(|| self.refuse(name, ModelFault::Missing { by: CONFIGURATION, demanded: shape.clone() }))?;
            let given = match entry {
                Entry::Plain { shape, .. } => shape,
                Entry::Packed(packing) => &packing.shape,
            };
            if given != shape {
                let (found, demanded) = (given.clone(), shape.clone());
                return Err(self.refuse(name, ModelFault::Shape { found, by: CONFIGURATION, demanded }));
            }
        }
        match self.names().find(|name| !demanded.contains_key(*name)) {
            Some(name) => Err(self.refuse(name, ModelFault::LeftOver)),
            None => Ok(()),
        }
    }

    /// The values of a tensor, plain f32, f16 or bf16 or packed in any format, which must be finite.
    ///
    /// # Errors
    /// [`CoreError::Io`] where the file cannot be read, [`CoreError::Container`] naming file and tensor for another dtype, and for values that are not finite.
    pub fn floats(&self, name: &str) -> Result<Vec<f32>> {
        let values = match self.entry(name)? {
            Entry::Plain { dtype, shape } => {
                let dtype = match dtype {
                    Dtype::F32 => DType::F32,
                    Dtype::F16 => DType::F16,
                    Dtype::BF16 => DType::BF16,
                    &found => {
                        let accepted = "are F32, F16, BF16 and packed formats";
                        return Err(self.refuse(name, ModelFault::Dtype { found, accepted }));
                    }
                };
                self.plain(name, shape, dtype)?
            }
            Entry::Packed(packing) => self.parts(&[name], packing, own)?.decode().map_err(|error| match error {
                Error::Core(CoreError::OutOfMemory(bytes)) => Error::Core(CoreError::OutOfMemory(bytes)),
                other => self.refuse(name, other),
            })?,
        };
        match values.iter().enumerate().find(|(_, value)| !value.is_finite()) {
            Some((position, &value)) => Err(self.refuse(name, ModelFault::NotFinite { value, position })),
            None => Ok(values),
        }
    }

    /// The whole numbers of a plain I32 tensor.
    ///
    /// # Errors
    /// [`CoreError::Io`] where the file cannot be read, [`CoreError::Container`] naming file and tensor for another dtype.
    pub fn integers(&self, name: &str) -> Result<Vec<i32>> {
        match self.entry(name)? {
            Entry::Plain { dtype: Dtype::I32, .. } => {}
            &Entry::Plain { dtype: found, .. } => {
                return Err(self.refuse(name, ModelFault::Dtype { found, accepted: "is I32" }));
            }
            Entry::Packed(packing) => return Err(self.refuse(name, ModelFault::Packed { found: packing.format })),
        }
        let bytes = self.bytes(name)?;
        let (words, _) = bytes.as_chunks();
        Ok(words.iter().map(|&word| i32::from_le_bytes(word)).collect())
    }

    /// The bytes of codes and scales of a tensor packed as `format` along its last axis.
    ///
    /// # Errors
    /// [`CoreError::Io`] where the file cannot be read, [`CoreError::Container`] naming file and tensor for a plain tensor, another format or another axis.
    pub fn codes(&self, name: &str, format: &str) -> Result<Codes> {
        match self.entry(name)? {
            Entry::Packed(packing)
                if packing.format.to_string() == format && packing.axis.checked_add(1) == Some(packing.shape.len()) =>
            {
                let scales = self.bytes(&format!("{name}.scales"))?;
                Ok(Codes { codes: self.dense_codes(name, packing)?, scales })
            }
            &Entry::Packed(Packing { format: found, axis, .. }) => {
                Err(self.refuse(name, ModelFault::Packing { found, axis, demanded: format.to_owned() }))
            }
            &Entry::Plain { dtype: found, .. } => {
                Err(self.refuse(name, ModelFault::Plain { found, demanded: format.to_owned() }))
            }
        }
    }

    /// The text that the file has under a key.
    pub(crate) fn metadata(&self, key: &str) -> Option<&str> {
        self.shards.iter().find_map(|shard| shard.reader.index().metadata().get(key)).map(String::as_str)
    }

    /// The names of all tensors, in the order of each file.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.shards.iter().flat_map(|shard| shard.entries().keys().map(String::as_str))
    }

    /// The shape of a tensor; None where the file has none of this name.
    pub(crate) fn shape(&self, name: &str) -> Option<&[usize]> {
        Some(match self.find(name)? {
            Entry::Plain { shape, .. } => shape,
            Entry::Packed(packing) => &packing.shape,
        })
    }

    /// Whether a tensor is plain I32.
    pub(crate) fn is_integer(&self, name: &str) -> bool {
        matches!(self.find(name), Some(Entry::Plain { dtype: Dtype::I32, .. }))
    }

    /// A packed matrix, its parts as they are; None for a plain tensor.
    pub fn held(&self, name: &str) -> Result<Option<StoredTensor>> {
        let Entry::Packed(packing) = self.entry(name)? else { return Ok(None) };
        if packing.shape.len() != 2 || packing.axis != 1 {
            let (shape, axis) = (packing.shape.clone(), packing.axis);
            return Err(self.refuse(name, ModelFault::NoMatrix { shape, axis }));
        }
        self.parts(&[name], packing, |bytes| self.buffer(bytes)).map(Some)
    }

    /// Packed matrices of as many columns as one, their rows one after the other. None where they are not packed alike, and
    /// where some of their parts belong to all rows of one of them.
    pub(crate) fn held_together(&self, names: &[&str]) -> Result<Option<StoredTensor>> {
        let mut all: Option<Packing> = None;
        for name in names {
            let Entry::Packed(packing) = self.entry(name)? else { return Ok(None) };
            let of_all = packing.format.granularity() == Granularity::Tensor || packing.format.has_levels();
            let &[rows, columns] = packing.shape.as_slice() else { return Ok(None) };
            if of_all || packing.axis != 1 || packing.nonzero.is_some() {
                return Ok(None);
            }
            let Some(joined) = &mut all else {
                all = Some(packing.clone());
                continue;
            };
            let [more, other] = joined.shape.as_mut_slice() else { return Ok(None) };
            if *other != columns || joined.format != packing.format || joined.dtype != packing.dtype {
                return Ok(None);
            }
            *more = more.saturating_add(rows);
        }
        all.map(|packing| self.parts(names, &packing, |bytes| self.buffer(bytes))).transpose()
    }

    /// Whether a tensor is a matrix that is packed along its rows.
    pub fn is_packed_matrix(&self, name: &str) -> bool {
        matches!(self.find(name), Some(Entry::Packed(packing)) if packing.shape.len() == 2 && packing.axis == 1)
    }

    /// The parts of a packed tensor, or of several whose rows follow each other, in buffers that `take` gives.
    fn parts(&self, names: &[&str], packing: &Packing, take: impl Fn(usize) -> Result<Buffer>) -> Result<StoredTensor> {
        let part = |suffix: &str| {
            let bytes = |name: &&str| self.part(&format!("{name}{suffix}")).map_or(0, |(_, part)| part.bytes);
            let mut buffer = take(names.iter().map(bytes).fold(0, usize::saturating_add))?;
            let mut rest = &mut *buffer;
            for name in names {
                let (piece, behind) = rest.split_at_mut(bytes(name).min(rest.len()));
                self.read(&format!("{name}{suffix}"), piece)?;
                rest = behind;
            }
            Ok::<Buffer, Error>(buffer)
        };
        let codes = match (names, packing.nonzero) {
            (&[name], Some(_)) => {
                let dense = self.dense_codes(name, packing)?;
                let mut buffer = take(dense.len())?;
                buffer.copy_from_slice(&dense);
                buffer
            }
            _ => part(".codes")?,
        };
        let (scales, zeros, levels) = (part(".scales")?, part(".zeros")?, part(".levels")?);
        Ok(StoredTensor { packing: packing.clone(), codes, scales, zeros, levels })
    }

    /// A buffer beside the others that are held. The first call makes room for all packed tensors.
    fn buffer(&self, bytes: usize) -> Result<Buffer> {
        let region = match self.region.get() {
            Some(region) => region,
            None => {
                let made = Region::new(self.packed_bytes())?;
                self.region.get_or_init(|| made)
            }
        };
        region.take(bytes).map_or_else(|| own(bytes), Ok)
    }

    /// Bytes of a region that holds all packed tensors once.
    fn packed_bytes(&self) -> usize {
        let packed = self.shards.iter().flat_map(Shard::entries).filter_map(|(name, entry)| match entry {
            Entry::Packed(_) => Some(name),
            Entry::Plain { .. } => None,
        });
        let parts = packed.flat_map(|name| ["codes", "scales", "zeros", "levels"].map(|part| format!("{name}.{part}")));
        let bytes = parts.filter_map(|stored| self.part(&stored)).map(|(_, part)| Region::needed(part.bytes));
        bytes.fold(0, usize::saturating_add)
    }

    /// The codes of a packed tensor, row by row: sparse ones with those that are 0.
    fn dense_codes(&self, name: &str, packing: &Packing) -> Result<Vec<u8>> {
        let codes = self.bytes(&format!("{name}.codes"))?;
        let Some(nonzero) = packing.nonzero else { return Ok(codes) };
        let bytes = self.bytes(&format!("{name}.bitmap"))?;
        let mut bitmap = reserved(bytes.len() / 8)?;
        bitmap.extend(bytes.as_chunks().0.iter().map(|&word| u64::from_le_bytes(word)));
        let expanded = sparse::expanded(&codes, &bitmap, nonzero, packing.format.width(), packing.matrix()?);
        expanded.map_err(|error| self.refuse(name, error))
    }

    /// All bytes of a plain tensor of whatever dtype; empty where there is none of this name.
    pub(crate) fn raw(&self, name: &str) -> Result<Vec<u8>> {
        self.bytes(name)
    }

    fn entry(&self, name: &str) -> Result<&Entry> {
        self.find(name).ok_or_else(|| self.refuse(name, "is missing"))
    }

    /// All bytes stored under a name; empty where there are none of this name.
    fn bytes(&self, stored: &str) -> Result<Vec<u8>> {
        let Some((_, part)) = self.part(stored) else { return Ok(Vec::new()) };
        let mut bytes = reserved(part.bytes)?;
        bytes.resize(part.bytes, 0);
        self.read(stored, &mut bytes)?;
        Ok(bytes)
    }

    /// Where the bytes of a name are.
    fn part(&self, stored: &str) -> Option<(&Shard, &Part)> {
        self.shards.iter().find_map(|shard| Some((shard, shard.reader.index().part(stored)?)))
    }

    /// Reads all bytes stored under a name, if there are any, to as many.
    fn read(&self, stored: &str, to: &mut [u8]) -> Result<()> {
        let Some((Shard { reader, place }, _)) = self.part(stored) else { return Ok(()) };
        reader.read_into(stored, to).map_err(|error| match error {
            CoreError::Container(_) => in_file(place, Error::Core(error)),
            other => Error::Core(other),
        })
    }

    fn plain(&self, name: &str, shape: &[usize], dtype: DType) -> Result<Vec<f32>> {
        let bytes = self.bytes(name)?;
        let count = self.count(name, shape)?;
        let mut values = reserved(count)?;
        match dtype {
            DType::F32 => values.extend(bytes.as_chunks().0.iter().map(|&word| f32::from_le_bytes(word))),
            DType::F16 | DType::BF16 => {
                let words = bytes.as_chunks().0.iter().map(|&word| u16::from_le_bytes(word));
                values.extend(words.map(|bits| widen(bits, dtype)));
            }
        }
        if values.len() != count {
            return Err(self.refuse(name, ModelFault::Count { found: values.len(), demanded: count }));
        }
        Ok(values)
    }

    fn count(&self, name: &str, shape: &[usize]) -> Result<usize> {
        let count = shape.iter().try_fold(1usize, |all, &dim| all.checked_mul(dim));
        count.ok_or_else(|| self.refuse(name, ModelFault::Overflow { shape: shape.to_vec() }))
    }
}

fn widen(bits: u16, dtype: DType) -> f32 {
    if dtype == DType::F16 { half::f16::from_bits(bits).to_f32() } else { half::bf16::from_bits(bits).to_f32() }
}

/// A buffer by itself.
fn own(bytes: usize) -> Result<Buffer> {
    Ok(Region::new(Region::needed(bytes))?.take(bytes).ok_or(CoreError::OutOfMemory(bytes))?)
}

/// An empty vector with room for `count` elements.
fn reserved<T>(count: usize) -> Result<Vec<T>> {
    let mut values = Vec::new();
    let bytes = count.saturating_mul(size_of::<T>());
    values.try_reserve_exact(count).map_err(|_| Error::Core(CoreError::OutOfMemory(bytes)))?;
    Ok(values)
}
