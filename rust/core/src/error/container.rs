//! Files that are no valid containers.

use safetensors::Dtype;

use super::Error;
use crate::format::Format;

/// A file that is not a valid container, or one this version refuses.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ContainerError {
    /// A refusal of the content of a file.
    #[error("{place}: {fault}")]
    At {
        /// Path of the file.
        place: String,
        /// The refusal.
        fault: Box<ContainerError>,
    },
    /// A refusal of one tensor.
    #[error("{name}: {fault}")]
    Tensor {
        /// Its name, escaped and cut.
        name: String,
        /// The refusal.
        fault: Box<TensorFault>,
    },
    /// A path that is no file.
    #[error("{place}: is not a regular file")]
    NotAFile {
        /// The path.
        place: String,
    },
    /// Fewer bytes than the length of a header.
    #[error("{bytes} bytes; a safetensors file has at least {least}")]
    TooShort {
        /// Bytes of the file.
        bytes: u64,
        /// Bytes of the smallest file.
        least: u64,
    },
    /// A header beyond the limit.
    #[error("header of {bytes} bytes; accepted are up to {limit}")]
    HeaderLimit {
        /// Bytes of the header.
        bytes: u64,
        /// The largest number accepted.
        limit: u64,
    },
    /// A header that passes the end of the file.
    #[error("header of {bytes} bytes in a file with {room} bytes after its length: truncated")]
    HeaderTruncated {
        /// Bytes of the header.
        bytes: u64,
        /// Bytes that the file has for it.
        room: u64,
    },
    /// A header that is no text.
    #[error("header is not UTF-8: {0}")]
    HeaderUtf8(#[source] std::str::Utf8Error),
    /// A header that is no object.
    #[error("header does not begin with '{{'")]
    HeaderStart,
    /// A header that is no JSON, or not that of a container.
    #[error("header: {0}")]
    Header(#[source] serde_json::Error),
    /// Data that is longer or shorter than the tensors of the header.
    #[error("tensors take {tensors} bytes, the file has {data} bytes of data{}", if .tensors > .data { ": truncated" } else { "" })]
    DataBytes {
        /// Bytes of all tensors.
        tensors: u64,
        /// Bytes behind the header.
        data: u64,
    },
    /// The file became shorter.
    #[error("the file has become shorter while it was read")]
    Shortened,
    /// A file of another version of the layout.
    #[error("{key} is '{found}'; this version of octavo reads {accepted}{}", if *.newer { "; a newer octavo reads this file" } else { "" })]
    Version {
        /// The key of the metadata.
        key: &'static str,
        /// The version found, escaped and cut.
        found: String,
        /// The versions that are read, in words.
        accepted: &'static str,
        /// The version found is a later one.
        newer: bool,
    },
    /// A key of Octavo in a file without its version.
    #[error("metadata key '{key}' without {version_key}")]
    NoVersion {
        /// The key, escaped and cut.
        key: String,
        /// The key that is missing.
        version_key: &'static str,
    },
    /// A key of Octavo that this version does not know.
    #[error("unknown metadata key '{key}'")]
    UnknownKey {
        /// The key, escaped and cut.
        key: String,
    },
    /// A user's key that Octavo keeps for itself.
    #[error("metadata key '{key}': keys that begin with '{prefix}' are reserved")]
    ReservedKey {
        /// The key, escaped and cut.
        key: String,
        /// The beginning that is reserved.
        prefix: &'static str,
    },
    /// Digests that are no JSON object of texts.
    #[error("metadata key 'digests': {0}")]
    Digests(String),
    /// No dtype of safetensors has this name; the text lists those that there are.
    #[error("{0}")]
    UnknownDtype(String),
    /// A refusal of a crate on top: a text, or an error of its own, which [`ContainerError::refusal`] finds.
    #[error(transparent)]
    Other(Refusal),
}

/// A text, or an error of a crate on top.
pub type Refusal = Box<dyn std::error::Error + Send + Sync>;

impl ContainerError {
    /// The refusal of a crate on top, where this is one of that type, in whatever file or tensor.
    pub fn refusal<E: std::error::Error + 'static>(&self) -> Option<&E> {
        match self {
            Self::At { fault, .. } => fault.refusal(),
            Self::Tensor { fault, .. } => match &**fault {
                TensorFault::Other(error) => error.downcast_ref(),
                _ => None,
            },
            Self::Other(error) => error.downcast_ref(),
            _ => None,
        }
    }
}

/// What is wrong with one tensor of a container.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TensorFault {
    /// Its part of the header is no JSON, or not that of a tensor.
    #[error("{0}")]
    Header(#[source] serde_json::Error),
    /// A dimension beyond the limit.
    #[error("a dimension of {elements} elements; accepted are up to {limit}")]
    Dimension {
        /// Elements along the dimension.
        elements: u64,
        /// The largest number accepted.
        limit: u64,
    },
    /// A dimension that this machine cannot count.
    #[error("shape {shape:?} overflows")]
    Shape {
        /// The shape.
        shape: Vec<u64>,
    },
    /// A size that overflows or ends inside a byte.
    #[error("shape {shape:?} of {dtype} overflows or does not fill whole bytes")]
    Bytes {
        /// The shape.
        shape: Vec<usize>,
        /// The dtype.
        dtype: Dtype,
    },
    /// Offsets that are not as far apart as the tensor is long.
    #[error("shape {shape:?} of {dtype} is {bytes} bytes, data_offsets are [{begin}, {end}]")]
    Offsets {
        /// The shape.
        shape: Vec<usize>,
        /// The dtype.
        dtype: Dtype,
        /// Bytes of the tensor.
        bytes: u64,
        /// First offset.
        begin: u64,
        /// Last offset.
        end: u64,
    },
    /// Offsets that overlap with the tensor before, or leave a gap behind it.
    #[error("data_offsets [{begin}, {end}] {} {before}, which ends at {at}", if .begin < .at { "overlaps" } else { "leaves a gap after" })]
    NotAdjacent {
        /// First offset.
        begin: u64,
        /// Last offset.
        end: u64,
        /// The tensor before, escaped and cut.
        before: String,
        /// Its end.
        at: u64,
    },
    /// One name for a packed and a plain tensor.
    #[error("is stored both packed and plain")]
    PackedAndPlain,
    /// A tensor that the packed one demands is missing.
    #[error("'{format}' has {part}, the file has none")]
    PartMissing {
        /// The format.
        format: Format,
        /// `codes`, `scales`, `zeros` or `levels`.
        part: &'static str,
    },
    /// A tensor that the packed one does not have.
    #[error("'{format}' has no {part}, the file has {part}")]
    PartUnexpected {
        /// The format.
        format: Format,
        /// `codes`, `scales`, `zeros` or `levels`.
        part: &'static str,
    },
    /// A part of another dtype or shape than the packed tensor demands.
    #[error(
        "'{format}' of shape {shape:?} along axis {axis} has {part} {} {:?}, the file has {} {:?}",
        .expected.0, .expected.1, .found.0, .found.1
    )]
    Part {
        /// The format.
        format: Format,
        /// Logical shape of the packed tensor.
        shape: Vec<usize>,
        /// Its axis.
        axis: usize,
        /// `codes`, `scales`, `zeros` or `levels`.
        part: &'static str,
        /// Dtype and shape demanded.
        expected: (Dtype, Vec<usize>),
        /// Dtype and shape found.
        found: (Dtype, Vec<usize>),
    },
    /// A description that is no object, or too long.
    #[error("description '{text}' is not an object of up to {limit} bytes")]
    DescriptionText {
        /// The text found, escaped and cut.
        text: String,
        /// The largest number of bytes.
        limit: usize,
    },
    /// A description that is no JSON, or lacks a field.
    #[error("description: {0}")]
    Description(#[source] serde_json::Error),
    /// A dimension of a description beyond the limit.
    #[error("shape {shape:?}; accepted are up to {limit}")]
    DescriptionShape {
        /// The shape found.
        shape: Vec<u64>,
        /// The largest number of elements along a dimension.
        limit: u64,
    },
    /// More dimensions than are accepted.
    #[error("more than {limit} dimensions")]
    Rank {
        /// The largest number.
        limit: usize,
    },
    /// Sparse codes in a file whose version has none.
    #[error("has 'nonzero', sparse codes, in a file of version {version}, which has none")]
    SparseVersion {
        /// Version of the file.
        version: &'static str,
    },
    /// Sparse codes of a format that has no code to leave out.
    #[error("sparse codes of '{format}'; accepted are formats of up to 8 bits whose code 0 is +0, without zero points")]
    SparseFormat {
        /// The format.
        format: Format,
    },
    /// More codes than elements.
    #[error("{nonzero} codes that are not 0 in {elements} elements")]
    SparseCount {
        /// Codes.
        nonzero: u64,
        /// Elements.
        elements: usize,
    },
    /// Format, rule, dtype or shape of a description are refused.
    #[error(transparent)]
    Packing(#[from] Box<Error>),
    /// The file has no such tensor.
    #[error("no tensor of this name in the file")]
    Missing,
    /// The file became shorter.
    #[error("the file has become shorter while it was read")]
    Shortened,
    /// More bytes than this machine can address.
    #[error("{0}")]
    Address(#[source] std::num::TryFromIntError),
    /// Other bytes than those that were written under the name.
    #[error(
        "its bytes have the digest {found}, the file states {stated}: they are damaged, or those of another tensor; copy or write the file again"
    )]
    Digest {
        /// Digest of the bytes.
        found: String,
        /// Digest in the metadata, escaped and cut.
        stated: String,
    },
    /// A tensor without a digest in a file that states digests.
    #[error("has no digest, which the file states of its tensors; write the file again")]
    NoDigest,
    /// The tensor is there already.
    #[error("is given twice")]
    Twice,
    /// The name belongs to the header.
    #[error("is a name that safetensors reserves")]
    ReservedName,
    /// Two tensors would be stored under one name.
    #[error("clashes with another tensor, both are stored as '{stored}'")]
    Clash {
        /// The name in the file, escaped and cut.
        stored: String,
    },
    /// The file would be longer than any file.
    #[error("the file would exceed 2^64 bytes")]
    FileTooLong,
    /// The tensor was not announced to the writer.
    #[error("was not announced as a {kind} tensor")]
    NotAnnounced {
        /// `plain` or `packed`.
        kind: &'static str,
    },
    /// The tensor was announced to the writer and did not come.
    #[error("was announced and never given")]
    NeverGiven,
    /// A refusal of a crate on top: a text, or an error of its own, which [`ContainerError::refusal`] finds.
    #[error(transparent)]
    Other(Refusal),
}
