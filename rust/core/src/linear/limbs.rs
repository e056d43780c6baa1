//! How many bfloat16 numbers a number of a format is the sum of.

use crate::codec::DType;
use crate::codec::grid::{Grid, Integers};
use crate::format::{Format, Granularity, ScaleType};

/// Limbs of a float32.
pub(super) const MAX_LIMBS: usize = 3;

/// The dtype that has as many limbs as the numbers of a format.
pub(super) fn narrowest_dtype(format: Format) -> DType {
    let row = matches!(format.granularity(), Granularity::Channel | Granularity::Tensor);
    match decoded_limbs(format) {
        _ if row && format.scale_type() != Some(ScaleType::I8) || format.has_levels() => DType::F32,
        1 => DType::BF16,
        2 => DType::F16,
        _ => DType::F32,
    }
}

/// Limbs that decoded numbers of a format have, a factor of the row left out.
pub(super) fn decoded_limbs(format: Format) -> usize {
    let width = format.width() as usize;
    let number = match Grid::of(format) {
        Grid::Integer { layout: Integers::Offset, .. } => width,
        Grid::Integer { lo: 0, .. } => width,
        Grid::Integer { .. } => width - 1,
        // A step and an offset of 11 bits or more each, at any distance.
        Grid::Affine { .. } if format.has_offsets() => 24,
        Grid::Affine { .. } => width,
        Grid::Float(float) => float.mantissa as usize + 1,
        Grid::Levels(1) => 1,
        Grid::Book(_) | Grid::Levels(_) => 24,
    };
    let scale = match (format.granularity(), format.scale_type()) {
        (Granularity::Block(_), Some(ScaleType::F16)) => 11,
        (Granularity::Block(_), Some(ScaleType::E4M3)) => 4,
        (Granularity::Block(_), Some(ScaleType::F32)) => 24,
        _ => 0,
    };
    (number + scale).div_ceil(8).min(MAX_LIMBS)
}
