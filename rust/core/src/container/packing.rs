//! [`Packing`]: how a packed tensor is described in the file, and which parts of which dtype and shape that demands.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects, clippy::cast_possible_truncation)]

use safetensors::Dtype;
use serde::{Deserialize, Serialize};

use super::header::Shape;
use super::limits::{MAX_DIMENSION, MAX_PACKING_BYTES, MAX_RANK};
use super::{refuse_tensor, shown};
use crate::codec::{DType, Layout, ScaleRule, Sizes};
use crate::error::{Error, Result, TensorFault};
use crate::format::{Element, Format, Granularity, Minifloat, ScaleType};
use crate::sparse;

/// Suffixes of the parts of a packed tensor, in the order of [`crate::Packed`]'s fields; the last one of sparse codes alone.
const SUFFIXES: [&str; 5] = [".codes", ".scales", ".zeros", ".levels", BITMAP];
/// Suffix of the bitmap of sparse codes.
pub(super) const BITMAP: &str = ".bitmap";

/// What a packed tensor is: its format, the rule that chose its scales, and its logical shape, dtype and axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packing {
    /// The number format.
    pub format: Format,
    /// The rule that chose the block scales; it never changes how codes are read.
    pub scale: ScaleRule,
    /// Logical shape.
    pub shape: Vec<usize>,
    /// Logical dtype.
    pub dtype: DType,
    /// The axis that rows, blocks and groups run along; 0 for a tensor without dimensions.
    pub axis: usize,
    /// How many codes are not 0, where codes are sparse: the others are left out.
    pub nonzero: Option<u64>,
}

/// One part that a packing demands.
pub(super) struct Demand {
    pub(super) suffix: &'static str,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
}

/// The JSON text of a packing. Formats, rules and dtypes are read as text first, for messages that name what is
/// accepted.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    format: String,
    scale: String,
    #[serde(deserialize_with = "shape")]
    shape: Vec<u64>,
    dtype: String,
    axis: usize,
    #[serde(default, deserialize_with = "count", skip_serializing_if = "Option::is_none")]
    nonzero: Option<u64>,
}

fn count<'de, D: serde::Deserializer<'de>>(deserializer: D) -> std::result::Result<Option<u64>, D::Error> {
    u64::deserialize(deserializer).map(Some)
}

fn shape<'de, D: serde::Deserializer<'de>>(deserializer: D) -> std::result::Result<Vec<u64>, D::Error> {
    Shape::deserialize(deserializer).map(|shape| shape.0)
}

impl Packing {
    /// Reads the JSON text that describes the packed tensor `name`.
    pub(super) fn parse(name: &str, json: &str) -> Result<Self> {
        // The derived reader takes an array for an object, in the order of the fields.
        if json.len() > MAX_PACKING_BYTES || !json.starts_with('{') {
            let fault = TensorFault::DescriptionText { text: shown(json), limit: MAX_PACKING_BYTES };
            return Err(refuse_tensor(name, fault));
        }
        let wrong = |fault: TensorFault| refuse_tensor(name, fault);
        let refused = |error: Error| wrong(Box::new(error).into());
        let text: Text = serde_json::from_str(json).map_err(|error| wrong(TensorFault::Description(error)))?;
        let dims = text.shape.iter().map(|&dim| usize::try_from(dim).ok().filter(|_| dim <= MAX_DIMENSION));
        let shape = dims.collect::<Option<Vec<_>>>();
        Ok(Self {
            format: Format::parse(&text.format).map_err(refused)?,
            scale: text.scale.parse().map_err(refused)?,
            shape: shape.ok_or_else(|| {
                wrong(TensorFault::DescriptionShape { shape: text.shape.clone(), limit: MAX_DIMENSION })
            })?,
            dtype: text.dtype.parse().map_err(refused)?,
            axis: text.axis,
            nonzero: text.nonzero,
        })
    }

    /// The scale rule as files and options spell it.
    pub const fn scale_name(&self) -> &'static str {
        match self.scale {
            ScaleRule::Floor => "floor",
            ScaleRule::Ceil => "ceil",
            ScaleRule::Mse => "mse",
        }
    }

    /// Suffixes of the parts that a packing may have: other tensors of its name are plain.
    pub(super) fn suffixes(&self) -> &'static [&'static str] {
        let [dense @ .., _] = &SUFFIXES;
        if self.nonzero.is_some() { &SUFFIXES } else { dense }
    }

    /// The rows and columns that sparse codes are of.
    ///
    /// # Errors
    /// [`crate::Error::Shape`] where the format does not take the shape.
    pub fn matrix(&self) -> Result<sparse::Shape> {
        let layout = Layout::new(&self.shape, isize::try_from(self.axis).unwrap_or(isize::MAX), self.format)?;
        Ok(sparse::Shape { rows: layout.rows(), columns: layout.k })
    }

    /// The JSON text that describes this packing.
    pub(super) fn print(&self, name: &str) -> Result<String> {
        let text = Text {
            format: self.format.to_string(),
            scale: self.scale_name().to_owned(),
            shape: self.shape.iter().map(|&dim| dim as u64).collect(),
            dtype: self.dtype.name().to_owned(),
            axis: self.axis,
            nonzero: self.nonzero,
        };
        serde_json::to_string(&text).map_err(|error| refuse_tensor(name, TensorFault::Header(error)))
    }

    /// The parts that this packing demands, codes first. Shapes are those of `PackedTensor`'s parts, except that codes
    /// under a dtype of their own have the logical shape, the axis moved last.
    pub(super) fn demands(&self, name: &str) -> Result<Vec<Demand>> {
        let wrong = |error: Error| refuse_tensor(name, Box::new(error).into());
        if self.shape.len() > MAX_RANK {
            return Err(refuse_tensor(name, TensorFault::Rank { limit: MAX_RANK }));
        }
        let axis = isize::try_from(self.axis).unwrap_or(isize::MAX);
        let layout = Layout::new(&self.shape, axis, self.format).map_err(wrong)?;
        let sizes = Sizes::new(self.format, &layout).map_err(wrong)?;
        let mut lead = self.shape.clone();
        if self.axis < lead.len() {
            lead.remove(self.axis);
        }
        let with = |lead: &[usize], last: &[usize]| [lead, last].concat();
        let codes = match native(self.format) {
            Some(dtype) if fills_bytes(layout.k, self.format) && self.shape.is_empty() => (dtype, Vec::new()),
            Some(dtype) if fills_bytes(layout.k, self.format) => (dtype, with(&lead, &[layout.k])),
            _ => (Dtype::U8, with(&lead, &[sizes.row_bytes])),
        };
        let mut parts = vec![Demand { suffix: ".codes", dtype: codes.0, shape: codes.1 }];
        if let Some(nonzero) = self.nonzero {
            parts = self.sparse_demands(name, nonzero, layout.len())?;
        }
        let per_row = match self.format.granularity() {
            Granularity::Tensor => {
                lead.clear();
                1
            }
            _ => self.format.groups_per_row(layout.k),
        };
        // A tensor without groups has scales of shape [0], whatever its rows.
        let part = |last: &[usize]| if sizes.groups == 0 { vec![0] } else { with(&lead, last) };
        if let Some(kind) = self.format.scale_type() {
            let last = [per_row, self.format.scales_per_group()];
            let last = if self.format.scales_per_group() > 1 { part(&last) } else { part(&[per_row]) };
            parts.push(Demand { suffix: ".scales", dtype: scale_dtype(self.format, kind), shape: last });
        }
        if self.format.has_zeros() {
            parts.push(Demand { suffix: ".zeros", dtype: Dtype::U8, shape: part(&[sizes.zeros_row]) });
        }
        if self.format.has_levels() {
            parts.push(Demand { suffix: ".levels", dtype: Dtype::F32, shape: vec![1] });
        }
        Ok(parts)
    }
}

impl Packing {
    /// The parts that sparse codes take, in place of the dense ones.
    fn sparse_demands(&self, name: &str, nonzero: u64, elements: usize) -> Result<Vec<Demand>> {
        let wrong = |error: Error| refuse_tensor(name, Box::new(error).into());
        if !sparse::takes(self.format) {
            return Err(refuse_tensor(name, TensorFault::SparseFormat { format: self.format }));
        }
        if nonzero > elements as u64 {
            return Err(refuse_tensor(name, TensorFault::SparseCount { nonzero, elements }));
        }
        let matrix = self.matrix().map_err(wrong)?;
        let bytes = sparse::code_bytes(nonzero, self.format.width()).map_err(wrong)?;
        matrix.words().map_err(wrong)?;
        Ok(vec![
            Demand { suffix: ".codes", dtype: Dtype::U8, shape: vec![bytes] },
            Demand { suffix: BITMAP, dtype: Dtype::U64, shape: vec![matrix.panels(), matrix.quads()] },
        ])
    }
}

/// True where rows of `k` codes end on a byte, so that the rows together are one stream of codes.
const fn fills_bytes(k: usize, format: Format) -> bool {
    match k.checked_mul(format.width() as usize) {
        Some(bits) => bits.is_multiple_of(8),
        None => false,
    }
}

/// The dtype of safetensors that means the same codes, where there is one. Unsigned bytes are U8 in any case.
fn native(format: Format) -> Option<Dtype> {
    match format.element() {
        Element::Native(float) => match (float.exponent, float.mantissa) {
            (8, 23) => Some(Dtype::F32),
            (5, 10) => Some(Dtype::F16),
            (8, 7) => Some(Dtype::BF16),
            _ => None,
        },
        Element::Minifloat(float) | Element::MxFloat(float) => minifloat(float),
        Element::NvFp4 => Some(Dtype::F4),
        Element::Int { width: 8, signed: true }
        | Element::Fixed { width: 8, signed: true, .. }
        | Element::MxInt { width: 8 } => Some(Dtype::I8),
        _ => None,
    }
}

/// The OCP element types; another bias or other special codes make another element.
fn minifloat(float: Minifloat) -> Option<Dtype> {
    if float != Minifloat::standard(float.exponent, float.mantissa) {
        return None;
    }
    match (float.exponent, float.mantissa) {
        (4, 3) => Some(Dtype::F8_E4M3),
        (5, 2) => Some(Dtype::F8_E5M2),
        (3, 2) => Some(Dtype::F6_E3M2),
        (2, 3) => Some(Dtype::F6_E2M3),
        (2, 1) => Some(Dtype::F4),
        _ => None,
    }
}

const fn scale_dtype(format: Format, kind: ScaleType) -> Dtype {
    match (kind, format.element()) {
        (ScaleType::F32, _) => Dtype::F32,
        (ScaleType::F16, _) => Dtype::F16,
        (ScaleType::I8, _) => Dtype::I8,
        (ScaleType::E4M3, _) => Dtype::F8_E4M3,
        (ScaleType::E8M0, Element::MxInt { .. } | Element::MxFloat(_)) => Dtype::F8_E8M0,
        // The shared exponents of bfp, bm and blog are no E8M0 scales: they are exponents of the largest binade.
        (ScaleType::E8M0 | ScaleType::Nested, _) => Dtype::U8,
    }
}
