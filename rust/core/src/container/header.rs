//! The safetensors header: 8 bytes of length, then JSON. Parsed strictly, printed deterministically.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects, clippy::cast_possible_truncation)]

use std::collections::BTreeMap;
use std::fmt;

use safetensors::Dtype;
use safetensors::tensor::TensorInfo;
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize, Serializer, ser::SerializeMap};

use super::limits::{MAX_DIMENSION, MAX_HEADER_BYTES, MAX_NAME_BYTES, MAX_RANK, MAX_TENSORS};
use super::{refuse_tensor, shown};
use crate::error::{ContainerError, Error, Result, TensorFault};

/// Bytes of the length before the header.
pub(super) const LENGTH_BYTES: u64 = 8;
/// The key of the header that is no tensor.
pub(super) const METADATA: &str = "__metadata__";

/// One stored tensor: dtype, shape, and its bytes as offsets into the data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stored {
    pub(super) name: String,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
    pub(super) begin: u64,
    pub(super) end: u64,
}

/// A checked header: the metadata, and the tensors in the order of their bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) metadata: BTreeMap<String, String>,
    pub(super) tensors: Vec<Stored>,
}

/// Length of the header, from the first bytes of a file of `file_bytes` bytes.
pub(super) fn header_length(first: [u8; 8], file_bytes: u64) -> Result<u64> {
    let length = u64::from_le_bytes(first);
    if length > MAX_HEADER_BYTES {
        return Err(ContainerError::HeaderLimit { bytes: length, limit: MAX_HEADER_BYTES }.into());
    }
    let room = file_bytes.saturating_sub(LENGTH_BYTES);
    if length > room {
        return Err(ContainerError::HeaderTruncated { bytes: length, room }.into());
    }
    Ok(length)
}

/// Parses and checks a header whose tensors must fill `data_bytes` bytes.
pub(super) fn parse(text: &[u8], data_bytes: u64) -> Result<Header> {
    let text = std::str::from_utf8(text).map_err(ContainerError::HeaderUtf8)?;
    if !text.starts_with('{') {
        return Err(ContainerError::HeaderStart.into());
    }
    let mut current = String::new();
    let mut json = serde_json::Deserializer::from_str(text);
    let raw = RawHeader { current: &mut current }.deserialize(&mut json).and_then(|raw| json.end().map(|()| raw));
    let (metadata, infos) = raw.map_err(|error| match current.as_str() {
        "" => ContainerError::Header(error).into(),
        name => refuse_tensor(name, TensorFault::Header(error)),
    })?;
    let mut tensors = infos.into_iter().map(|(name, info)| check(name, &info)).collect::<Result<Vec<_>>>()?;
    tensors.sort_by(|a, b| (a.begin, a.end, &a.name).cmp(&(b.begin, b.end, &b.name)));
    check_cover(&tensors, data_bytes)?;
    Ok(Header { metadata, tensors })
}

/// Prints a header, padded with spaces so that the data starts at a multiple of 8 bytes; the length comes first.
pub(super) fn print(header: &Header) -> Result<Vec<u8>> {
    let mut json = serde_json::to_vec(header).map_err(ContainerError::Header)?;
    json.resize(json.len().next_multiple_of(8), b' ');
    let length = json.len() as u64;
    let mut out = length.to_le_bytes().to_vec();
    out.append(&mut json);
    Ok(out)
}

/// Bytes of `shape` elements of `dtype`, `None` where the number overflows or a byte is left incomplete.
pub(super) fn byte_length(dtype: Dtype, shape: &[usize]) -> Option<u64> {
    let count = shape.iter().try_fold(1u64, |all, &dim| all.checked_mul(u64::try_from(dim).ok()?))?;
    let bits = count.checked_mul(u64::try_from(dtype.bitsize()).ok()?)?;
    bits.is_multiple_of(8).then(|| bits.checked_div(8)).flatten()
}

/// Checks shape, bytes and the offsets' difference of one tensor.
fn check(name: String, info: &Info) -> Result<Stored> {
    if let Some(dim) = info.shape.iter().find(|&&dim| dim > MAX_DIMENSION) {
        return Err(refuse_tensor(&name, TensorFault::Dimension { elements: *dim, limit: MAX_DIMENSION }));
    }
    let shape = info
        .shape
        .iter()
        .map(|&dim| usize::try_from(dim))
        .collect::<std::result::Result<Vec<_>, _>>()
        .map_err(|_| refuse_tensor(&name, TensorFault::Shape { shape: info.shape.clone() }))?;
    let Some(bytes) = byte_length(info.dtype, &shape) else {
        return Err(refuse_tensor(&name, TensorFault::Bytes { shape, dtype: info.dtype }));
    };
    let (begin, end) = info.data_offsets;
    if end.checked_sub(begin) != Some(bytes) {
        let fault = TensorFault::Offsets { shape, dtype: info.dtype, bytes, begin, end };
        return Err(refuse_tensor(&name, fault));
    }
    Ok(Stored { name, dtype: info.dtype, shape, begin, end })
}

/// Checks that the tensors, in order, cover the data without a gap or an overlap.
fn check_cover(tensors: &[Stored], data_bytes: u64) -> Result<()> {
    let (mut at, mut before) = (0, "the header");
    for tensor in tensors {
        if tensor.begin != at {
            let fault = TensorFault::NotAdjacent { begin: tensor.begin, end: tensor.end, before: shown(before), at };
            return Err(refuse_tensor(&tensor.name, fault));
        }
        (at, before) = (tensor.end, tensor.name.as_str());
    }
    if at != data_bytes {
        return Err(ContainerError::DataBytes { tensors: at, data: data_bytes }.into());
    }
    Ok(())
}

/// dtype, shape and offsets as the header spells them.
#[derive(Debug)]
struct Info {
    dtype: Dtype,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

/// What a header holds before it is checked.
type Raw = (BTreeMap<String, String>, BTreeMap<String, Info>);

/// Reads the top level; `current` is the key whose value is being read, for messages.
struct RawHeader<'c> {
    current: &'c mut String,
}

impl<'de> DeserializeSeed<'de> for RawHeader<'_> {
    type Value = Raw;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> std::result::Result<Raw, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for RawHeader<'_> {
    type Value = Raw;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Raw, A::Error> {
        let (mut metadata, mut tensors) = (None, BTreeMap::new());
        while let Some(key) = map.next_key::<String>()? {
            self.current.clone_from(&key);
            if key.len() > MAX_NAME_BYTES {
                return Err(A::Error::custom(format!(
                    "name of {} bytes; accepted are up to {MAX_NAME_BYTES}",
                    key.len()
                )));
            }
            if metadata.is_some() && key == METADATA || tensors.contains_key(&key) {
                return Err(A::Error::custom("appears twice"));
            }
            if key == METADATA {
                metadata = Some(map.next_value::<Strings>()?.0);
            } else if tensors.len() >= MAX_TENSORS {
                return Err(A::Error::custom(format!("more than {MAX_TENSORS} tensors")));
            } else {
                let info = map.next_value::<Info>()?;
                tensors.insert(key, info);
            }
            self.current.clear();
        }
        Ok((metadata.unwrap_or_default(), tensors))
    }
}

/// A map from string to string with no key twice.
struct Strings(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for Strings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = Strings;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of strings")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Strings, A::Error> {
                let mut all = BTreeMap::new();
                while let Some((key, value)) = map.next_entry::<String, String>()? {
                    if all.contains_key(&key) {
                        return Err(A::Error::custom(format!("key '{}' appears twice", shown(&key))));
                    }
                    all.insert(key, value);
                }
                Ok(Strings(all))
            }
        }
        deserializer.deserialize_map(Read)
    }
}

// By hand, since the derived form takes arrays for objects and reads shapes of any rank.
impl<'de> Deserialize<'de> for Info {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = Info;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with dtype, shape and data_offsets")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Info, A::Error> {
                let (mut dtype, mut shape, mut data_offsets) = (None, None, None);
                while let Some(key) = map.next_key::<String>()? {
                    let twice = match key.as_str() {
                        "dtype" => dtype.replace(map.next_value::<Dtype>()?).is_some(),
                        "shape" => shape.replace(map.next_value::<Shape>()?.0).is_some(),
                        "data_offsets" => data_offsets.replace(map.next_value::<(u64, u64)>()?).is_some(),
                        _ => return Err(A::Error::custom(format!("unknown key '{}'", shown(&key)))),
                    };
                    if twice {
                        return Err(A::Error::custom(format!("key '{key}' appears twice")));
                    }
                }
                match (dtype, shape, data_offsets) {
                    (Some(dtype), Some(shape), Some(data_offsets)) => Ok(Info { dtype, shape, data_offsets }),
                    (None, _, _) => Err(A::Error::missing_field("dtype")),
                    (_, None, _) => Err(A::Error::missing_field("shape")),
                    _ => Err(A::Error::missing_field("data_offsets")),
                }
            }
        }
        deserializer.deserialize_map(Read)
    }
}

/// A shape of at most [`MAX_RANK`] dimensions.
pub(super) struct Shape(pub(super) Vec<u64>);

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = Shape;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array of dimensions")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> std::result::Result<Shape, A::Error> {
                let mut dims = Vec::new();
                while dims.len() < MAX_RANK {
                    match seq.next_element()? {
                        Some(dim) => dims.push(dim),
                        None => return Ok(Shape(dims)),
                    }
                }
                match seq.next_element::<IgnoredAny>()? {
                    Some(_) => Err(A::Error::custom(format!("more than {MAX_RANK} dimensions"))),
                    None => Ok(Shape(dims)),
                }
            }
        }
        deserializer.deserialize_seq(Read)
    }
}

impl Serialize for Header {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let offset = |at: u64| usize::try_from(at).map_err(serde::ser::Error::custom);
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry(METADATA, &self.metadata)?;
        for tensor in &self.tensors {
            let data_offsets = (offset(tensor.begin)?, offset(tensor.end)?);
            let info = TensorInfo { dtype: tensor.dtype, shape: tensor.shape.clone(), data_offsets };
            map.serialize_entry(&tensor.name, &info)?;
        }
        map.end()
    }
}

/// Reserves memory for `bytes` bytes and fills it with zeros.
pub(super) fn zeroed(bytes: u64) -> Result<Vec<u8>> {
    let count = usize::try_from(bytes).map_err(|_| Error::OutOfMemory(usize::MAX))?;
    let mut out = Vec::new();
    out.try_reserve_exact(count).map_err(|_| Error::OutOfMemory(count))?;
    out.resize(count, 0);
    Ok(out)
}
