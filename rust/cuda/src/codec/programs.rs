//! The programs of a format: one for each of decode, encode, quantize, choosing scales, and gradients.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use octavo_core::codec::lowered::Chooser;
use octavo_core::format::{Element, Granularity};
use octavo_core::{DType, Format};

use super::macros;
use super::shape::UNIT;
use crate::Program;

macro_rules! part {
    ($name:literal) => {
        ($name, include_str!(concat!("../../kernels/", $name)))
    };
}

type Texts = &'static [(&'static str, &'static str)];

const DECODE: Texts = &[
    part!("base.cu"),
    part!("codec/number.cu"),
    part!("codec/scale.cu"),
    part!("codec/units.cu"),
    part!("codec/decode.cu"),
];
const ENCODE: Texts = &[
    part!("base.cu"),
    part!("codec/number.cu"),
    part!("codec/nearest.cu"),
    part!("codec/scale.cu"),
    part!("codec/units.cu"),
    part!("codec/rules.cu"),
    part!("codec/encode.cu"),
];
const SCALES: Texts = &[
    part!("base.cu"),
    part!("codec/number.cu"),
    part!("codec/nearest.cu"),
    part!("codec/scale.cu"),
    part!("codec/units.cu"),
    part!("codec/rules.cu"),
    part!("codec/groups.cu"),
    part!("codec/choose.cu"),
];
const GRADIENT: Texts = &[
    part!("base.cu"),
    part!("codec/number.cu"),
    part!("codec/scale.cu"),
    part!("codec/units.cu"),
    part!("codec/gradient.cu"),
];

/// Elements that a thread of `decode` takes: 16 bytes of output, where that is whole bytes of codes.
pub(super) const fn decode_unit(format: Format, dtype: DType) -> usize {
    if matches!(dtype, DType::F32) && format.width().is_multiple_of(8) { 4 } else { UNIT }
}

/// Whether blocks of the format fit the fused kernel, which chooses scale and codes of a block in one pass.
pub(super) fn is_fused(format: Format) -> bool {
    let Granularity::Block(block) = format.granularity() else { return false };
    let unit = UNIT as u32;
    let chosen = matches!(Chooser::of(format), Chooser::Symmetric { .. } | Chooser::Exponent { .. } | Chooser::NvFp4);
    chosen && block.is_power_of_two() && (unit..=32 * unit).contains(&block)
}

/// Programs made by earlier calls, so that a call formats no strings.
type Made = RwLock<HashMap<(&'static str, Format, DType), Arc<Program>>>;
static MADE: LazyLock<Made> = LazyLock::new(Made::default);

/// Whether given scales of the format have a gradient.
pub(super) const fn learns(format: Format) -> bool {
    matches!(format.element(), Element::Int { signed: true, .. } | Element::Fixed { fraction: None, .. })
}

fn program(
    what: &'static str,
    format: Format,
    dtype: DType,
    files: Texts,
    entries: &'static [&'static str],
    more: &[(&'static str, usize)],
) -> Arc<Program> {
    let key = (what, format, dtype);
    if let Some(made) = MADE.read().unwrap_or_else(PoisonError::into_inner).get(&key) {
        return made.clone();
    }
    let text: String =
        format.to_string().chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '_' }).collect();
    let mut defines = macros::of(format, dtype);
    defines.extend(more.iter().map(|(name, value)| (*name, value.to_string())));
    let made = Arc::new(Program { name: format!("{what}-{text}-{}", dtype.name()), files, defines, entries });
    MADE.write().unwrap_or_else(PoisonError::into_inner).insert(key, made.clone());
    made
}

pub(super) fn decode(format: Format, dtype: DType) -> Arc<Program> {
    program("decode", format, dtype, DECODE, &["decode", "decode_rows"], &[("UNIT_SIZE", decode_unit(format, dtype))])
}

pub(super) fn encode(format: Format, dtype: DType, quantize: bool) -> Arc<Program> {
    let fused = is_fused(format);
    let entries: &[_] = if fused { &["encode", "encode_blocks"] } else { &["encode"] };
    let more = [("UNIT_SIZE", UNIT), ("QUANTIZE", quantize.into()), ("FUSED", fused.into())];
    program(if quantize { "quantize" } else { "encode" }, format, dtype, ENCODE, entries, &more)
}

/// None for formats without scales.
pub(super) fn scales(format: Format, dtype: DType) -> Option<Arc<Program>> {
    let zeros = format.has_zeros();
    let entries: &[_] = match (Chooser::of(format), format.granularity()) {
        (Chooser::Unit(_) | Chooser::Carried, _) => return None,
        (Chooser::NvFp4, _) => &["choose_groups", "largest", "choose_largest"],
        (_, Granularity::Block(_)) if zeros => &["choose_groups", "pack_zeros"],
        (_, Granularity::Block(_)) => &["choose_groups"],
        (Chooser::Binary { .. } | Chooser::Ternary, _) => &["sums", "choose_sums"],
        (Chooser::Fraction { .. }, _) => &["largest", "choose_largest", "sums", "choose_sums"],
        _ if zeros => &["largest", "choose_largest", "pack_zeros"],
        _ => &["largest", "choose_largest"],
    };
    Some(program("scales", format, dtype, SCALES, entries, &[("UNIT_SIZE", UNIT)]))
}

pub(super) fn gradient(format: Format, dtype: DType) -> Arc<Program> {
    let learns = learns(format);
    let entries: &[_] = if learns { &["gradient", "scale_sums", "scale_join"] } else { &["gradient"] };
    program("gradient", format, dtype, GRADIENT, entries, &[("UNIT_SIZE", UNIT), ("LEARNS", learns.into())])
}

/// Every program of a format.
pub fn programs(format: Format) -> Vec<Program> {
    let dtypes = [DType::F32, DType::F16, DType::BF16];
    if format.is_carried() {
        return dtypes.into_iter().map(|dtype| Arc::unwrap_or_clone(decode(format, dtype))).collect();
    }
    let all = dtypes.into_iter().flat_map(|dtype| {
        let made =
            [decode(format, dtype), encode(format, dtype, false), encode(format, dtype, true), gradient(format, dtype)];
        made.into_iter().chain(scales(format, dtype))
    });
    all.map(Arc::unwrap_or_clone).collect()
}
