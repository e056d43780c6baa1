//! The three operations of every format: [`encode`], [`decode`] and the fused [`quantize`], and its gradient.
//!
//! `quantize(x) == decode(encode(x))` for every format, shape, dtype, SIMD level and number of threads.
//!
//! `grid` (elements), `scale` (scales) and `reference` (groups) are the definition, in plain scalar code that calls nothing
//! fast. `lanes` gives the same bits with the instructions of a SIMD level. `segment_driver` cuts a call into pieces for both.

mod adamw;
mod describe;
pub(crate) mod dynamic_map;
mod grad;
pub(crate) mod grid;
pub(crate) mod group_scales;
pub(crate) mod kquants;
pub(crate) mod lanes;
mod marks;
pub(crate) mod reference;
pub(crate) mod rows;
pub(crate) mod scale;
pub(crate) mod scale_search;
mod segment_driver;
mod segments;
mod transpose;
mod views;

/// A format lowered to arithmetic: what kernels that run elsewhere are made from.
pub mod lowered {
    pub use super::grid::{FloatGrid, Grid, Integers};
    pub use super::scale_search::{Chooser, ExponentRule};
}

pub use crate::dtype::DType;
pub use adamw::{Moment, MomentForm, Step, adamw};
pub use describe::ElementValue;
pub use grad::{Gradients, quantize_backward, saturates};
pub use marks::{marks_len, pass_marked, quantize_marking};
pub use scale_search::ScaleRule;
pub use views::{Layout, Sizes, Values, ValuesMut};

use std::sync::atomic::AtomicBool;

use crate::error::{Error, FormatError, Result, ShapeError};
use crate::float_state::FloatState;
use crate::format::Format;
use crate::simd::Level;
use segment_driver::Seen;
pub(crate) use transpose::{set_len, zeroed};
pub(crate) use views::{Dst, Src};

/// What `encode` does with NaN and infinity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Nonfinite {
    /// Refuse with [`Error::NonFinite`] naming the first position.
    #[default]
    Error,
    /// Infinity becomes the largest value, NaN becomes 0.
    Saturate,
    /// Infinity becomes the largest value; NaN is stored, where the format can.
    Nan,
}

impl std::str::FromStr for Nonfinite {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        match text {
            "error" => Ok(Self::Error),
            "saturate" => Ok(Self::Saturate),
            "nan" => Ok(Self::Nan),
            _ => Err(FormatError::UnknownNonfinite { name: text.to_owned() }.into()),
        }
    }
}

/// The parts of an encoded tensor, to read. Lengths are those of [`Sizes`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Packed<'a> {
    /// Codes, dense per row.
    pub codes: &'a [u8],
    /// Scales in their storage type, little-endian.
    pub scales: &'a [u8],
    /// Packed zero points (`uintW`), else empty.
    pub zeros: &'a [u8],
    /// Second-level scale (`nvfp4`), else empty.
    pub levels: &'a [u8],
}

/// The parts of an encoded tensor, to write.
#[derive(Debug)]
pub struct PackedMut<'a> {
    /// Codes, dense per row.
    pub codes: &'a mut [u8],
    /// Scales in their storage type, little-endian.
    pub scales: &'a mut [u8],
    /// Packed zero points (`uintW`), else empty.
    pub zeros: &'a mut [u8],
    /// Second-level scale (`nvfp4`), else empty.
    pub levels: &'a mut [u8],
}

/// How to encode.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options<'a> {
    /// Rule of the block scale.
    pub rule: ScaleRule,
    /// Policy for NaN and infinity; `quantize` always saturates infinities and keeps NaN.
    pub nonfinite: Nonfinite,
    /// Scales to use instead of choosing them; `codes` is not looked at.
    pub given: Option<Packed<'a>>,
}

/// Refuses a buffer whose length is not that of the shape and the format.
pub(crate) fn check_len(format: Format, what: &'static str, got: usize, expected: usize) -> Result<()> {
    if got == expected { Ok(()) } else { Err(ShapeError::Length { format, what, got, expected }.into()) }
}

/// Refuses formats that nothing is encoded in.
pub(crate) fn check_encodes(format: Format) -> Result<()> {
    if format.is_carried() { Err(FormatError::Carried { format }.into()) } else { Ok(()) }
}

/// Refuses options that the format, or the shape, does not have.
pub(crate) fn check_options(format: Format, sizes: &Sizes, options: &Options<'_>) -> Result<()> {
    check_encodes(format)?;
    if options.rule != ScaleRule::Floor && !format.is_block() {
        return Err(FormatError::NoBlockScale { format }.into());
    }
    if options.nonfinite == Nonfinite::Nan && !format.has_nan() {
        return Err(FormatError::NoNan { format }.into());
    }
    if let Some(given) = options.given {
        if sizes.scales == 0 && format.scale_type().is_none() {
            return Err(FormatError::NoScales { format }.into());
        }
        check_len(format, "scales (bytes)", given.scales.len(), sizes.scales)?;
        check_len(format, "zeros (bytes)", given.zeros.len(), sizes.zeros)?;
        check_len(format, "levels (bytes)", given.levels.len(), sizes.levels)?;
        group_scales::check_given(format, &given)?;
    }
    Ok(())
}

/// Encodes `x` into codes and scales.
///
/// # Errors
/// [`Error::Shape`] where a buffer has the wrong length, [`Error::Format`] where an option does not fit the format,
/// [`Error::NonFinite`] under the policy [`Nonfinite::Error`]. After an error the outputs hold no meaning.
pub fn encode(x: Values<'_>, layout: Layout, format: Format, options: &Options<'_>, out: PackedMut<'_>) -> Result<()> {
    let _state = FloatState::standard();
    let sizes = Sizes::new(format, &layout)?;
    check_len(format, "x (elements)", x.len(), layout.len())?;
    check_len(format, "codes (bytes)", out.codes.len(), sizes.codes)?;
    check_len(format, "scales (bytes)", out.scales.len(), sizes.scales)?;
    check_len(format, "zeros (bytes)", out.zeros.len(), sizes.zeros)?;
    check_len(format, "levels (bytes)", out.levels.len(), sizes.levels)?;
    check_options(format, &sizes, options)?;
    if layout.is_empty() {
        for part in [out.codes, out.scales, out.zeros, out.levels] {
            part.fill(0);
        }
        return Ok(());
    }
    let moved = transpose::forward(x.src(), &layout)?;
    let src = moved.as_ref().map_or_else(|| x.src(), |buffer| Src::new(buffer.as_ptr(), x.src().dtype));
    match segment_driver::encode(src, layout, format, options, out, Level::current()) {
        // The first one in the caller's order, which is another than that of the rows along an inner axis.
        Err(Error::NonFinite { format, position, value }) if moved.is_some() => {
            // SAFETY: every position lies inside x, whose length was checked against the layout.
            let all = (0..layout.len()).map(|i| (i, unsafe { x.src().get(i) }));
            let (position, value) = { all }.find(|(_, v)| !v.is_finite()).unwrap_or((position, value));
            Err(Error::NonFinite { format, position, value })
        }
        result => result,
    }
}

/// Rounds every element of `x` to the nearest value that `format` can hold.
///
/// NaN stays NaN, infinities saturate. `out` has the dtype of `x`.
///
/// # Errors
/// As for [`encode`], but never [`Error::NonFinite`].
pub fn quantize(
    x: Values<'_>,
    layout: Layout,
    format: Format,
    options: &Options<'_>,
    out: ValuesMut<'_>,
) -> Result<()> {
    quantize_into(x, layout, format, options, out, Seen::Nothing)
}

/// [`quantize`], which also tells whether a value was NaN: the gradient of others may pass as it is, where [`saturates`]
/// says that none lies outside the range.
///
/// # Errors
/// As for [`quantize`].
pub fn quantize_seeing_nan(
    x: Values<'_>,
    layout: Layout,
    format: Format,
    options: &Options<'_>,
    out: ValuesMut<'_>,
) -> Result<bool> {
    let nan = AtomicBool::new(false);
    quantize_into(x, layout, format, options, out, Seen::Nan(&nan))?;
    Ok(nan.into_inner())
}

fn quantize_into(
    x: Values<'_>,
    layout: Layout,
    format: Format,
    options: &Options<'_>,
    out: ValuesMut<'_>,
    seen: Seen<'_>,
) -> Result<()> {
    let mut out = out;
    check_len(format, "out (elements)", out.len(), layout.len())?;
    let dst = out.dst();
    if dst.dtype != x.src().dtype {
        return Err(ShapeError::Dtypes { out: dst.dtype, x: x.src().dtype }.into());
    }
    check_len(format, "x (elements)", x.len(), layout.len())?;
    quantize_raw(x.src(), dst, layout, format, options, seen)
}

/// [`quantize`], writing over its input.
///
/// # Errors
/// As for [`quantize`].
pub fn quantize_in_place(x: ValuesMut<'_>, layout: Layout, format: Format, options: &Options<'_>) -> Result<()> {
    let mut x = x;
    check_len(format, "x (elements)", x.len(), layout.len())?;
    let dst = x.dst();
    let src = Src::new(dst.raw().cast_const(), dst.dtype);
    quantize_raw(src, dst, layout, format, options, Seen::Nothing)
}

fn quantize_raw(
    src: Src,
    dst: Dst,
    layout: Layout,
    format: Format,
    options: &Options<'_>,
    seen: Seen<'_>,
) -> Result<()> {
    let _state = FloatState::standard();
    let sizes = Sizes::new(format, &layout)?;
    let options = Options { nonfinite: Nonfinite::Saturate, ..*options };
    check_options(format, &sizes, &options)?;
    if layout.is_empty() {
        return Ok(());
    }
    match transpose::forward(src, &layout)? {
        None => segment_driver::quantize(src, dst, layout, format, &options, Level::current(), seen),
        Some(mut buffer) => {
            // One pointer for both: taking a second one would end the right to use the first.
            let at = buffer.as_mut_ptr();
            let (inner_src, inner_dst) = (Src::new(at, src.dtype), Dst::new(at, dst.dtype));
            segment_driver::quantize(inner_src, inner_dst, layout, format, &options, Level::current(), seen)?;
            transpose::backward(inner_src, dst, &layout)
        }
    }
}

/// Decodes codes and scales into `out`, rounding once to its dtype.
///
/// # Errors
/// [`Error::Shape`] where a buffer has the wrong length.
pub fn decode(packed: Packed<'_>, layout: Layout, format: Format, out: ValuesMut<'_>) -> Result<()> {
    let _state = FloatState::standard();
    let mut out = out;
    let sizes = Sizes::new(format, &layout)?;
    check_len(format, "codes (bytes)", packed.codes.len(), sizes.codes)?;
    check_len(format, "scales (bytes)", packed.scales.len(), sizes.scales)?;
    check_len(format, "zeros (bytes)", packed.zeros.len(), sizes.zeros)?;
    check_len(format, "levels (bytes)", packed.levels.len(), sizes.levels)?;
    check_len(format, "out (elements)", out.len(), layout.len())?;
    if layout.is_empty() {
        return Ok(());
    }
    let dst = out.dst();
    if layout.inner == 1 {
        return segment_driver::decode(packed, layout, format, dst, Level::current());
    }
    let mut buffer = transpose::buffer(layout.len() * dst.dtype.bytes())?;
    let moved = Dst::new(buffer.as_mut_ptr(), dst.dtype);
    segment_driver::decode(packed, layout, format, moved, Level::current())?;
    transpose::backward(Src::new(buffer.as_ptr(), dst.dtype), dst, &layout)
}
