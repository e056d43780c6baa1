//! `y = round(x) W^T + bias`: inputs rounded to a format, which layers choose.
//!
//! Definition: inputs are widened to float32 and quantized, and [`super::multiply`] multiplies them. Where inputs have codes
//! that are small integers times the scale of a group, and the processor multiplies bytes, sums of a group are computed in
//! int32 and combined in float32: the same product, within the same bound.

#[cfg(target_arch = "x86_64")]
use std::sync::OnceLock;

use super::{Matrix, check_sizes, float};
#[cfg(target_arch = "x86_64")]
use super::{
    bf16_limbs_amx,
    float::{Biased, PANEL, Panel},
    int8_limbs_vnni::{Dot, FixedInputs, Plan},
    output::{Inputs, Outputs, widened},
    route,
};
use crate::codec::{self, DType, Layout, Options, Values, ValuesMut, zeroed};
#[cfg(target_arch = "x86_64")]
use crate::codec::{Nonfinite, Packed, PackedMut, Sizes, rows::Rows};
use crate::error::Result;
#[cfg(target_arch = "x86_64")]
use crate::error::ShapeError;
use crate::float_state::FloatState;
use crate::format::Format;
#[cfg(target_arch = "x86_64")]
use crate::simd::LANES;
use crate::simd::Level;

/// Multiplies `m` rows of inputs, rounded to `input`, with the transposed weights and adds the bias, if there is one.
///
/// `x` holds `[m, columns]` and `out` `[m, rows]` values. Inputs are rounded along their rows as [`codec::quantize`] does,
/// with its `options`, but to float32 whatever their dtype. Everything else is as for [`super::multiply`] of the rounded
/// inputs: its bound, and what a row's result depends on, but for scales of the format that belong to all rows.
///
/// # Errors
/// As for [`super::multiply`] and [`codec::quantize`].
pub fn multiply_rounded(
    x: Values<'_>,
    m: usize,
    input: Format,
    options: &Options<'_>,
    w: &Matrix<'_>,
    bias: Option<Values<'_>>,
    out: ValuesMut<'_>,
) -> Result<()> {
    let _state = FloatState::standard();
    let level = Level::current();
    check_sizes(m, w, x.len(), out.len())?;
    #[cfg(target_arch = "x86_64")]
    if let Some((weights, inputs)) = route::groups(w.format, input, m, w.rows, w.columns, level) {
        let rounded = Encoded { x, m, input, options, plan: &inputs };
        return rounded.multiply(w, &weights, bias, out, level);
    }
    #[cfg(target_arch = "x86_64")]
    let held = bf16_limbs_amx::held_by(input);
    #[cfg(not(target_arch = "x86_64"))]
    let held = DType::F32;
    let x = rounded(x, m, w.columns, input, options, level)?;
    float::multiply_as(Values::F32(&x), held, m, w, bias, out, m)
}

/// `m` rows of `k` inputs in float32, rounded.
fn rounded(x: Values<'_>, m: usize, k: usize, input: Format, options: &Options<'_>, level: Level) -> Result<Vec<f32>> {
    let mut values = zeroed::<f32>(m * k)?;
    // SAFETY: the buffer holds the `m * k` values, whose number the caller has checked.
    unsafe { x.src().widen(0, &mut values, level) };
    let most = match x.src().dtype {
        DType::F32 => f32::MAX,
        DType::F16 => 65_504.0,
        DType::BF16 => f32::from_bits(0x7f7f_0000),
    };
    if most < f32::MAX {
        // Infinities count as the largest number of their dtype.
        values.iter_mut().filter(|v| v.is_infinite()).for_each(|v| *v = most.copysign(*v));
    }
    codec::quantize_in_place(ValuesMut::F32(&mut values), Layout::new(&[m, k], -1, input)?, input, options)?;
    Ok(values)
}

/// Rows of inputs whose codes are multiplied.
#[cfg(target_arch = "x86_64")]
struct Encoded<'a> {
    x: Values<'a>,
    m: usize,
    input: Format,
    options: &'a Options<'a>,
    plan: &'a Plan,
}

#[cfg(target_arch = "x86_64")]
impl Encoded<'_> {
    /// Multiplies them with weights of a plan.
    fn multiply(
        &self,
        w: &Matrix<'_>,
        weights: &Plan,
        bias: Option<Values<'_>>,
        mut out: ValuesMut<'_>,
        level: Level,
    ) -> Result<()> {
        let (m, n, k) = (self.m, w.rows, w.columns);
        let rows = Rows::new(w.packed, n, k, w.format, level)?;
        let bias = match bias {
            Some(bias) if bias.len() != n => return Err(ShapeError::Bias { got: bias.len(), rows: n }.into()),
            Some(bias) => widened(bias, level)?,
            None => Vec::new(),
        };
        let out = Biased::new(Outputs::new(&mut out, n, level), &bias);
        let fixed = self.codes(k, level)?;
        // SAFETY: `route::groups` found the instructions.
        let product = unsafe { Dot::new(weights, &rows, &fixed)? };
        // Rounded inputs, made where a row of inputs or weights has no fixed-point form.
        let made: OnceLock<Vec<f32>> = OnceLock::new();
        let plain = |row: Option<usize>, first: usize, count: usize| {
            let values = match made.get() {
                Some(values) => values,
                None => {
                    let x = rounded(self.x, m, k, self.input, self.options, level)?;
                    made.get_or_init(|| x)
                }
            };
            let x = Inputs::new(Values::F32(values), m, k, LANES, level)?;
            let (values, m) = row.map_or((x.values(), m), |row| (x.row(row), 1));
            for start in (first..first + count).step_by(PANEL) {
                let count = PANEL.min(first + count - start);
                let panel = Panel { rows: &rows, x: values, stride: x.stride, first: start, count };
                // SAFETY: the rows of weights belong to one unit of work.
                panel.run(m, |i, values| unsafe { out.write(row.unwrap_or(i), start, values) })?;
            }
            Ok(())
        };
        // SAFETY: as above.
        unsafe { product.multiply(n, m.saturating_mul(n).saturating_mul(k), &out, plain) }
    }

    /// The codes of the inputs; of rows with infinities or NaN none.
    fn codes(&self, k: usize, level: Level) -> Result<FixedInputs> {
        let (m, x, format) = (self.m, self.x, self.input);
        let layout = Layout::new(&[m, k], -1, format)?;
        let sizes = Sizes::new(format, &layout)?;
        let (mut codes, mut scales) = (zeroed(sizes.codes)?, zeroed(sizes.scales)?);
        let mut levels = zeroed(sizes.levels)?;
        let parts = PackedMut { codes: &mut codes, scales: &mut scales, zeros: &mut [], levels: &mut levels };
        let options = Options { nonfinite: Nonfinite::Saturate, ..*self.options };
        codec::encode(x, layout, format, &options, parts)?;
        let packed = Packed { codes: &codes, scales: &scales, zeros: &[], levels: &levels };
        let encoded = Rows::new(packed, m, k, format, level)?;
        let wide = Inputs::new(x, m, k, 1, level)?;
        let not_finite = |row: usize| wide.row(row).iter().fold(false, |any, v| any | !v.is_finite());
        // SAFETY: `route::groups` found the instructions, and a plan of one limb without zero points.
        unsafe { FixedInputs::encoded(self.plan, &encoded, m, not_finite) }
    }
}
