//! `y = x W^T + bias` in integers: inputs are quantised, codes multiplied exactly, sums scaled once.

use super::output::{Outputs, widened};
use super::{Matrix, check_sizes};
use crate::codec::{self, Layout, Options, Packed, PackedMut, Sizes, Values, ValuesMut, zeroed};
use crate::error::{Error, Result};
use crate::format::{Element, Format, Granularity};
use crate::level::Level;
use crate::pack::unpack;
use crate::pool;

/// Rows of weights in one unit of work.
const PANEL: usize = 16;
/// Products that int32 can sum: `2^16 * 128 * 128 < 2^31`, also where an instruction takes one side 128 too large.
const EXACT: usize = 1 << 16;

/// What is added to a product.
#[derive(Clone, Copy, Debug)]
pub enum Bias<'a> {
    /// Nothing.
    None,
    /// Numbers, added to the scaled sums in float32.
    Float(Values<'a>),
    /// Integers in units of the product of both scales, added to the sums before they are scaled.
    Integer(&'a [i32]),
}

impl Bias<'_> {
    const fn len(&self) -> Option<usize> {
        match self {
            Self::None => None,
            Self::Float(bias) => Some(bias.len()),
            Self::Integer(bias) => Some(bias.len()),
        }
    }
}

/// Refuses formats that [`multiply_integer`] does not take.
pub(super) fn check_formats(weight: Format, input: Format) -> Result<()> {
    for (what, format) in [("weight", weight), ("input", input)] {
        let small = matches!(format.element(), Element::Int { width: 2..=8, signed: true });
        if !small || matches!(format.granularity(), Granularity::Block(_)) {
            return Err(Error::Format(format!(
                "integer products take int2 to int8 with :tensor or :channel scales; the {what} format is '{format}'"
            )));
        }
    }
    Ok(())
}

/// Multiplies `m` rows of inputs, quantised to `input`, with the transposed weights.
///
/// `x` holds `[m, columns]` and `out` `[m, rows]` values. `scales` are given input scales (float32), one or `m` of them
/// as `input` says; without them they are chosen from the inputs. With the exact sum `s` of code products and
/// `t = s_x * s_w`: `y = s * t + bias`, or `y = (s + bias) * t` for integer biases; each operation rounds to float32,
/// and the result to the dtype of `out`.
///
/// # Errors
/// [`Error::Format`] for formats other than `int2` to `int8` with `:tensor` or `:channel` scales, [`Error::Shape`] where
/// a length does not fit, [`Error::NonFinite`] for an input that is NaN or infinite.
pub fn multiply_integer(
    x: Values<'_>,
    m: usize,
    input: Format,
    scales: Option<&[f32]>,
    w: &Matrix<'_>,
    bias: Bias<'_>,
    mut out: ValuesMut<'_>,
) -> Result<()> {
    let level = Level::current();
    let (n, k) = (w.rows, w.columns);
    check_formats(w.format, input)?;
    check_sizes(m, w, x.len(), out.len())?;
    let sizes = Sizes::new(w.format, &Layout::new(&[n, k], -1, w.format)?)?;
    if w.packed.codes.len() != sizes.codes || w.packed.scales.len() != sizes.scales {
        return Err(Error::Shape(format!(
            "'{}' of shape ({n}, {k}) takes {} bytes of codes and {} of scales; got {} and {}",
            w.format,
            sizes.codes,
            sizes.scales,
            w.packed.codes.len(),
            w.packed.scales.len()
        )));
    }
    if let Some(len) = bias.len().filter(|&len| len != n) {
        return Err(Error::Shape(format!("bias holds {len} values, the weight has {n} rows")));
    }
    if m == 0 {
        return Ok(());
    }
    let x = Codes::quantise(x, m, k, input, scales, level)?;
    let floats = if let Bias::Float(bias) = bias { widened(bias, level)? } else { Vec::new() };
    let integers = if let Bias::Integer(bias) = bias { bias } else { &[] };
    let out = Outputs::new(&mut out, n, level);
    pool::for_each(n.div_ceil(PANEL), m.saturating_mul(n).saturating_mul(k), |panel| {
        let first = panel * PANEL;
        let count = PANEL.min(n - first);
        let mut codes = vec![0i8; count * k];
        let mut weight_scales = [0.0; PANEL];
        for r in 0..count {
            let packed = &w.packed.codes[(first + r) * sizes.row_bytes..][..sizes.row_bytes];
            signed_codes(packed, w.format.width(), &mut codes[r * k..][..k], level);
            weight_scales[r] = scale_at(w.packed.scales, first + r);
        }
        for row in 0..m {
            let mut values = [0.0; PANEL];
            for r in 0..count {
                let sum = sum_of_products(x.row(row), &codes[r * k..][..k]);
                let scale = x.scale(row) * weight_scales[r];
                values[r] = match bias {
                    Bias::None => sum as f32 * scale,
                    Bias::Float(_) => sum as f32 * scale + floats[first + r],
                    Bias::Integer(_) => (sum + i64::from(integers[first + r])) as f32 * scale,
                };
            }
            // SAFETY: every panel writes its own columns.
            unsafe { out.write(row, first, &values[..count]) };
        }
    })
}

/// Quantised inputs.
struct Codes {
    codes: Vec<i8>,
    scales: Vec<u8>,
    k: usize,
}

impl Codes {
    fn quantise(
        x: Values<'_>,
        m: usize,
        k: usize,
        format: Format,
        scales: Option<&[f32]>,
        level: Level,
    ) -> Result<Self> {
        let layout = Layout::new(&[m, k], -1, format)?;
        let sizes = Sizes::new(format, &layout)?;
        let mut packed = zeroed::<u8>(sizes.codes)?;
        let mut stored = zeroed::<u8>(sizes.scales)?;
        let given: Option<Vec<u8>> = scales.map(|scales| scales.iter().flat_map(|scale| scale.to_le_bytes()).collect());
        let given = given.as_ref().map(|scales| Packed { scales, ..Packed::default() });
        let parts = PackedMut { codes: &mut packed, scales: &mut stored, zeros: &mut [], levels: &mut [] };
        codec::encode(x, layout, format, &Options { given, ..Options::default() }, parts)?;
        let mut codes = zeroed::<i8>(m * k)?;
        if k > 0 {
            for (packed, codes) in packed.chunks(sizes.row_bytes).zip(codes.chunks_mut(k)) {
                signed_codes(packed, format.width(), codes, level);
            }
        }
        Ok(Self { codes, scales: stored, k })
    }

    fn row(&self, row: usize) -> &[i8] {
        &self.codes[row * self.k..][..self.k]
    }

    fn scale(&self, row: usize) -> f32 {
        scale_at(&self.scales, row)
    }
}

/// The float32 scale of a row: its own, or the only one there is.
fn scale_at(scales: &[u8], row: usize) -> f32 {
    let all = scales.as_chunks::<4>().0;
    let found = if all.len() == 1 { all.first() } else { all.get(row) };
    found.map_or(0.0, |bytes| f32::from_le_bytes(*bytes))
}

/// Two's complement codes of `width` bits as bytes.
fn signed_codes(packed: &[u8], width: u32, codes: &mut [i8], level: Level) {
    // SAFETY: i8 and u8 have the same size and alignment, and every bit pattern is one of both.
    let bytes = unsafe { std::slice::from_raw_parts_mut(codes.as_mut_ptr().cast::<u8>(), codes.len()) };
    unpack(level, packed, width, bytes);
    for code in codes {
        *code = *code << (8 - width) >> (8 - width);
    }
}

fn sum_of_products(a: &[i8], b: &[i8]) -> i64 {
    let exact = |(a, b): (&[i8], &[i8])| a.iter().zip(b).map(|(&a, &b)| i32::from(a) * i32::from(b)).sum::<i32>();
    a.chunks(EXACT).zip(b.chunks(EXACT)).map(|pair| i64::from(exact(pair))).sum()
}
