//! The errors of this crate.

use std::fmt::Display;

use octavo_core::Format;
use octavo_core::container::Dtype;
use octavo_core::error::{ContainerError, Refusal};

/// What can go wrong while a model is loaded or run. Messages are lower case and carry the numbers.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file, setting or line that is refused, or the operating system's refusal.
    #[error(transparent)]
    Core(#[from] octavo_core::Error),
    /// A defect of this crate: something failed that the checks before it rule out.
    #[error("{0}")]
    Internal(String),
}

/// `Result` with this crate's [`enum@Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// A refusal of the content of a model folder.
pub fn refuse(refusal: impl Into<Refusal>) -> Error {
    Error::Core(octavo_core::Error::container(refusal))
}

/// An error about a file, with its path in front.
pub fn in_file(place: impl Display, error: Error) -> Error {
    let fault = match error {
        Error::Core(octavo_core::Error::Container(fault)) => fault,
        other => ContainerError::Other(other.into()),
    };
    let fault = ContainerError::At { place: place.to_string(), fault: Box::new(fault) };
    Error::Core(fault.into())
}

impl Error {
    /// The fault that a model folder is refused for, where it is one of type `E`: a [`ModelFault`], or one of a crate above.
    pub fn fault<E: std::error::Error + 'static>(&self) -> Option<&E> {
        match self {
            Self::Core(octavo_core::Error::Container(fault)) => fault.refusal(),
            _ => None,
        }
    }
}

/// What a tensor or a field of a model folder has that the model does not take. [`Error::fault`] finds it in an error.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ModelFault {
    /// A tensor that the configuration demands.
    #[error("is missing; {by} demands it with shape {demanded:?}")]
    Missing {
        /// What demands it.
        by: &'static str,
        /// The shape that it must have.
        demanded: Vec<usize>,
    },
    /// A tensor of another shape.
    #[error("shape {found:?}; {by} demands {demanded:?}")]
    Shape {
        /// The shape in the file.
        found: Vec<usize>,
        /// What demands another.
        by: &'static str,
        /// The shape that it must have.
        demanded: Vec<usize>,
    },
    /// A tensor that the model does not have.
    #[error("is left over; the architecture has no such tensor")]
    LeftOver,
    /// A tensor of a layer that the configuration does not count.
    #[error("is left over; {field} of config.json is {layers}")]
    LayerLeftOver {
        /// The field that counts layers.
        field: &'static str,
        /// How many there are.
        layers: usize,
    },
    /// A tensor that two shards have.
    #[error("is in another shard, too")]
    Twice,
    /// A plain tensor of another dtype.
    #[error("dtype {found}; accepted {accepted}")]
    Dtype {
        /// The dtype in the file.
        found: Dtype,
        /// Those accepted, after `is` or `are`.
        accepted: &'static str,
    },
    /// A packed tensor in place of plain whole numbers.
    #[error("packed as '{found}'; accepted is plain I32")]
    Packed {
        /// The format in the file.
        found: Format,
    },
    /// A tensor packed in another format or along another axis.
    #[error("packed as '{found}' along axis {axis}; accepted is '{demanded}' along the last axis")]
    Packing {
        /// The format in the file.
        found: Format,
        /// The axis in the file.
        axis: usize,
        /// The text of the format that it must have.
        demanded: String,
    },
    /// A plain tensor in place of a packed one.
    #[error("plain {found}; accepted is packed as '{demanded}' along the last axis")]
    Plain {
        /// The dtype in the file.
        found: Dtype,
        /// The text of the format that it must have.
        demanded: String,
    },
    /// A packed tensor that is no matrix packed along its rows.
    #[error("shape {shape:?} packed along axis {axis}; accepted are matrices along axis 1")]
    NoMatrix {
        /// The shape in the file.
        shape: Vec<usize>,
        /// The axis in the file.
        axis: usize,
    },
    /// A value that is no number, or infinite.
    #[error("value {value} at flat position {position}; accepted are finite values")]
    NotFinite {
        /// The value.
        value: f32,
        /// Its position in the flattened tensor.
        position: usize,
    },
    /// Another number of values than the shape demands.
    #[error("{found} values; its shape demands {demanded}")]
    Count {
        /// Values in the file.
        found: usize,
        /// Values of the shape.
        demanded: usize,
    },
    /// A shape whose elements cannot be counted.
    #[error("shape {shape:?} overflows")]
    Overflow {
        /// The shape.
        shape: Vec<usize>,
    },
    /// A version of the configuration that is not read.
    #[error("octavo is {found}; accepted are {} and {}", .accepted[0], .accepted[1])]
    Version {
        /// The version in the file.
        found: u64,
        /// Those accepted.
        accepted: [u64; 2],
    },
    /// A field of the configuration outside its limits.
    #[error("{field} is {value}; accepted is a whole number from {least} to {largest}")]
    Number {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
        /// The smallest accepted.
        least: usize,
        /// The largest accepted.
        largest: usize,
    },
    /// A field of the configuration that must divide another.
    #[error("{field} is {value}; it must divide {other}, {whole}")]
    Divisor {
        /// The field.
        field: &'static str,
        /// Its value.
        value: usize,
        /// The field that it must divide.
        other: &'static str,
        /// The value of that field.
        whole: usize,
    },
    /// A field of the configuration with a name that is not known.
    #[error("{field} is '{found}'; {accepted}")]
    Name {
        /// The field.
        field: &'static str,
        /// Its value, escaped and cut.
        found: String,
        /// Names that are, in words.
        accepted: &'static str,
    },
}
