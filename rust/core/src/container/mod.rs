//! The container: safetensors files that hold packed and plain tensors. FORMATS.md section 5 and its part "Container".
//!
//! [`Reader`] checks a whole header before it hands out a byte, [`Writer`] makes files that appear complete or not at
//! all. Both work on an [`Index`], so one set of rules decides what may be written and what may be read.
//!
//! The order of validation: length of the file, length of the header, UTF-8, JSON (no key twice, none unknown), names,
//! shapes, bytes and offsets of every tensor, then the keys `octavo.*`, then the parts of every packed tensor. The
//! limits are the constants of [`limits`].

mod digest;
mod header;
mod index;
pub mod limits;
mod packing;
mod read;
#[cfg(test)]
mod tests;
mod write;

pub use digest::{DIGESTS, digest};
pub use index::{Entry, Index, Part};
pub use packing::Packing;
pub use read::Reader;
pub use safetensors::Dtype;
pub use write::Writer;

use serde::Deserialize;
use serde::de::IntoDeserializer;
use serde::de::value::StrDeserializer;

use crate::error::{ContainerError, Error, Result, TensorFault};

/// Version of the layout, the value of the key `octavo.version`. Readers refuse files of another version than these two.
pub const VERSION: &str = "1";
/// Version of files with sparse codes, which readers of [`VERSION`] alone refuse.
pub const SPARSE_VERSION: &str = "2";

/// The dtype of a safetensors name such as `F8_E4M3`.
///
/// # Errors
/// [`Error::Container`] listing the names that are known.
pub fn parse_dtype(name: &str) -> Result<Dtype> {
    let text: StrDeserializer<'_, serde::de::value::Error> = name.into_deserializer();
    Dtype::deserialize(text).map_err(|error| ContainerError::UnknownDtype(error.to_string()).into())
}

/// A text from a file as messages show it: escaped, and cut where it is long.
fn shown(text: &str) -> String {
    let mut out: String = text.chars().take(limits::MAX_SHOWN).flat_map(char::escape_debug).collect();
    if text.chars().nth(limits::MAX_SHOWN).is_some() {
        out.push_str("...");
    }
    out
}

/// A refusal of one tensor.
fn refuse_tensor(name: &str, fault: TensorFault) -> Error {
    ContainerError::Tensor { name: shown(name), fault: Box::new(fault) }.into()
}
