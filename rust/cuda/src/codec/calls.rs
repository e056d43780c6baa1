//! Launches of each codec operation. All lengths are checked before a launch is made. A tensor without elements needs no
//! launch; the caller fills its parts, if any, with zeros.

use octavo_core::error::FormatError;
use octavo_core::format::Granularity;
use octavo_core::{DType, Error, Format, Layout, Nonfinite, ScaleRule, Sizes};

use super::programs::{self, decode_unit, is_fused};
use super::scales::{Scales, call, policy_code, rule_code};
use super::scratch::Scratch;
use super::shape::{Shape, THREADS, UNIT, check_last};
use super::{Buffer, Parts};
use crate::{Argument, Call, Result, blocks};

/// Units that a thread of `decode` has in flight; IN_FLIGHT in the kernel.
const IN_FLIGHT: u64 = 4;
/// Outputs of more bytes leave the L2 cache before they are read: half of the 50 MB of the largest L2.
const EVICT_ABOVE: usize = 25 << 20;

/// How to encode or quantize.
#[derive(Clone, Copy, Debug, Default)]
pub struct Encoding {
    /// Rule of the block scale.
    pub rule: ScaleRule,
    /// Policy for NaN and infinity; quantizing always saturates infinities and keeps NaN.
    pub nonfinite: Nonfinite,
    /// The parts hold the scales to use.
    pub given: bool,
    /// A 64-bit word that becomes the position of the first value that [`Nonfinite::Error`] refuses, if that is smaller
    /// than what it holds; an address, 0 for none.
    pub first: u64,
}

pub(super) fn flag(value: bool) -> Argument {
    Argument::I32(value.into())
}

pub(super) fn addresses(values: &[u64]) -> Vec<Argument> {
    values.iter().map(|&value| Argument::Address(value)).collect()
}

/// Decodes the parts into `out`, whose values are of `dtype`.
///
/// # Errors
/// `octavo_core::Error::Shape` where a buffer has the wrong length or alignment, or the axis is not the last.
pub fn decode(format: Format, dtype: DType, layout: &Layout, parts: &Parts, out: Buffer) -> Result<Vec<Call>> {
    check_last(format, layout)?;
    let sizes = Sizes::new(format, layout)?;
    parts.check(format, &sizes, true)?;
    out.check(format, "out", layout.len() * dtype.bytes(), dtype.bytes())?;
    if layout.is_empty() {
        return Ok(Vec::new());
    }
    let shape = Shape::new(format, layout, &sizes, true);
    let unit = decode_unit(format, dtype);
    // A load of a unit; words where its width is odd.
    let bytes = unit * format.width() as usize / 8;
    let load = if bytes.is_power_of_two() { bytes.min(16) } else { 4 };
    let wide = parts.codes.is_aligned(load, shape.rows, shape.row_bytes)
        && out.is_aligned(16, shape.rows, shape.k * dtype.bytes());
    let parts = [parts.codes, parts.scales, parts.zeros, parts.levels, out].map(|part| part.address);
    let mut arguments = addresses(&parts);
    let evict = flag(out.bytes > EVICT_ABOVE);
    let entry = if shape.rows == 1 && wide {
        let [_, rest @ ..] = shape.arguments();
        arguments.extend(rest);
        arguments.push(evict);
        "decode"
    } else {
        arguments.extend(shape.arguments());
        arguments.extend([flag(wide), evict]);
        "decode_rows"
    };
    let grid = blocks(shape.units(unit), u64::from(THREADS) * IN_FLIGHT)?;
    Ok(vec![call(&programs::decode(format, dtype), entry, grid, THREADS, arguments)])
}

/// Encodes `x`, whose values are of `dtype`, into the parts. `scratch` is as [`super::scratch_bytes`] says.
///
/// # Errors
/// As for [`decode`]; `octavo_core::Error::Format` where an option does not fit the format.
pub fn encode(
    format: Format,
    dtype: DType,
    layout: &Layout,
    x: Buffer,
    parts: &Parts,
    scratch: Buffer,
    how: &Encoding,
) -> Result<Vec<Call>> {
    let sizes = Sizes::new(format, layout)?;
    parts.codes.check(format, "codes", sizes.codes, 1)?;
    transform(format, dtype, layout, x, parts.codes, parts, scratch, how, false)
}

/// Writes the values that `format` can hold nearest to those of `x` to `out`, which may be `x`. `given` are the scales to
/// use where `how` says so; else they are not looked at.
///
/// # Errors
/// As for [`encode`].
#[expect(clippy::too_many_arguments, reason = "one flat call, as for the others")]
pub fn quantize(
    format: Format,
    dtype: DType,
    layout: &Layout,
    x: Buffer,
    out: Buffer,
    given: &Parts,
    scratch: Buffer,
    how: &Encoding,
) -> Result<Vec<Call>> {
    let how = Encoding { nonfinite: Nonfinite::Saturate, first: 0, ..*how };
    out.check(format, "out", layout.len() * dtype.bytes(), dtype.bytes())?;
    let sizes = Sizes::new(format, layout)?;
    let own = Scratch::of(format, layout, &sizes, scratch)?.parts;
    transform(format, dtype, layout, x, out, if how.given { given } else { &own }, scratch, &how, true)
}

pub(super) fn check_options(format: Format, how: &Encoding) -> Result<()> {
    if format.is_carried() {
        return Err(octavo_core::Error::from(FormatError::Carried { format }).into());
    }
    let text = if how.rule != ScaleRule::Floor && !format.is_block() {
        format!(
            "'{format}' has no block scale, so scale='ceil' and 'mse' do not apply; they are for mx*, bfp, bm, blog and nvfp4"
        )
    } else if how.nonfinite == Nonfinite::Nan && !format.has_nan() {
        format!("'{format}' cannot store NaN; nonfinite=\"saturate\" maps it to 0")
    } else if how.given && format.scale_type().is_none() {
        format!("'{format}' has no scales, but scales were given")
    } else {
        return Ok(());
    };
    Err(Error::format(text).into())
}

#[expect(clippy::too_many_arguments, reason = "what encode and quantize share")]
fn transform(
    format: Format,
    dtype: DType,
    layout: &Layout,
    x: Buffer,
    out: Buffer,
    parts: &Parts,
    scratch: Buffer,
    how: &Encoding,
    quantize: bool,
) -> Result<Vec<Call>> {
    check_last(format, layout)?;
    check_options(format, how)?;
    let sizes = Sizes::new(format, layout)?;
    parts.check(format, &sizes, false)?;
    x.check(format, "x", layout.len() * dtype.bytes(), dtype.bytes())?;
    let scratch = Scratch::of(format, layout, &sizes, scratch)?;
    if layout.is_empty() {
        return Ok(Vec::new());
    }
    let shape = Shape::new(format, layout, &sizes, !quantize);
    let program = programs::encode(format, dtype, quantize);
    let (rule, policy) = (how.rule, how.nonfinite);
    let scales = Scales { format, dtype, layout, sizes: &sizes, x, parts, scratch: &scratch, rule, policy };
    let (row_values, total) = (shape.k * dtype.bytes(), layout.len());
    let read_wide = x.is_aligned(16, shape.rows, row_values);
    let aligned = x.is_aligned(16, 1, 0) && out.is_aligned(16, 1, 0);
    let whole = shape.rows == 1
        && matches!(format.granularity(), Granularity::Block(block) if layout.k.is_multiple_of(block as usize));
    if is_fused(format) && whole && aligned && !how.given && rule != ScaleRule::Mse {
        let mut calls = scales.level()?;
        let mut arguments = addresses(&[x.address, parts.scales.address, parts.levels.address, out.address, how.first]);
        arguments.extend([
            Argument::I64(total as i64),
            Argument::I32(rule_code(rule)),
            Argument::I32(policy_code(policy)),
            flag(out.bytes > EVICT_ABOVE),
        ]);
        calls.push(call(&program, "encode_blocks", blocks(shape.units(UNIT), THREADS.into())?, THREADS, arguments));
        return Ok(calls);
    }
    let mark = how.given && policy == Nonfinite::Nan && format.is_block();
    let mut calls = if !how.given || mark { scales.all(how.given)? } else { Vec::new() };
    let write_wide = if quantize {
        out.is_aligned(16, shape.rows, row_values)
    } else {
        let bytes = UNIT * format.width() as usize / 8;
        out.is_aligned(
            if bytes.is_multiple_of(16) {
                16
            } else if bytes == 8 || bytes == 4 {
                bytes
            } else {
                1
            },
            shape.rows,
            shape.row_bytes,
        )
    };
    let mut arguments = addresses(&[
        x.address,
        parts.scales.address,
        parts.zeros.address,
        parts.levels.address,
        out.address,
        how.first,
    ]);
    arguments.extend(shape.arguments());
    arguments.extend([flag(read_wide && write_wide), Argument::I32(policy_code(policy))]);
    calls.push(call(&program, "encode", blocks(shape.units(UNIT), THREADS.into())?, THREADS, arguments));
    Ok(calls)
}
