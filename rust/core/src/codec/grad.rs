//! Gradients of `quantize`: straight-through for values, clipped to the representable range; LSQ for learned scales.

use crate::error::{FormatError, Result};
use crate::float_state::FloatState;
use crate::format::{Element, Format, Granularity};
use crate::pool;
use crate::simd::Level;

use super::grid::{GroupScale, range};
use super::group_scales::{Scales, Work};
use super::scale_search::{Chooser, ScaleRule};
use super::segment_driver::prepare;
use super::segments::Segments;
use super::views::{Dst, Layout, Sizes, Src, Values, ValuesMut};
use super::{Options, check_len, check_options, lanes, transpose};

/// Where the gradients go.
#[derive(Debug)]
pub struct Gradients<'a> {
    /// Gradient of `x`, in its dtype.
    pub x: ValuesMut<'a>,
    /// Gradient of the given scales, one for each; `None` if nobody wants it.
    pub scales: Option<&'a mut [f32]>,
}

/// Gradients of `quantize(x)` for an incoming gradient `grad` of the same shape and dtype.
///
/// Gradient of `x`: `grad` where x lies inside the representable range of its group, 0 where it saturated or is NaN;
/// `binary` passes `|x| <= 1` for `:unit` and everything when scaled. Gradient of a given scale s of `intW`, or of the
/// fraction bits F of `fixedW` (s = 2^-F): LSQ, `sum(grad * (inside ? q - x/s : bound)) / sqrt(n * qmax)`, times
/// `-ln 2 * s` for F. Source: FORMATS.md section 4; Esser et al., Learned Step Size Quantization (2020), equations 3 to 5.
///
/// # Errors
/// As for [`super::quantize`]; [`crate::Error::Format`] where a gradient of scales is asked for and the format is neither
/// `intW` nor `fixedW`, or no scales are given.
pub fn quantize_backward(
    grad: Values<'_>,
    x: Values<'_>,
    layout: Layout,
    format: Format,
    options: &Options<'_>,
    out: Gradients<'_>,
) -> Result<()> {
    let _state = FloatState::standard();
    let mut out = out;
    let sizes = Sizes::new(format, &layout)?;
    check_len(format, "x (elements)", x.len(), layout.len())?;
    check_len(format, "grad (elements)", grad.len(), layout.len())?;
    check_len(format, "x gradient (elements)", out.x.len(), layout.len())?;
    check_options(format, &sizes, options)?;
    if let Some(scales) = &mut out.scales {
        let learnable =
            matches!(format.element(), Element::Int { signed: true, .. } | Element::Fixed { fraction: None, .. });
        if !learnable || options.given.is_none() {
            return Err(FormatError::NotLearnable { format }.into());
        }
        check_len(format, "scale gradient (elements)", scales.len(), sizes.groups)?;
        scales.fill(0.0);
    }
    if layout.is_empty() {
        return Ok(());
    }
    let (x_moved, grad_moved) = (transpose::forward(x.src(), &layout)?, transpose::forward(grad.src(), &layout)?);
    let at = |moved: &Option<transpose::Buffer>, src: Src| {
        moved.as_ref().map_or(src, |buffer| Src::new(buffer.as_ptr(), src.dtype))
    };
    let (x, grad) = (at(&x_moved, x.src()), at(&grad_moved, grad.src()));
    let dst = out.x.dst();
    if layout.inner == 1 {
        return rows(grad, x, dst, &layout, format, options, out.scales);
    }
    let mut buffer = transpose::buffer(layout.len() * dst.dtype.bytes())?;
    let moved = Dst::new(buffer.as_mut_ptr(), dst.dtype);
    rows(grad, x, moved, &layout, format, options, out.scales)?;
    transpose::backward(Src::new(buffer.as_ptr(), dst.dtype), dst, &layout)
}

fn rows(
    grad: Src,
    x: Src,
    dst: Dst,
    layout: &Layout,
    format: Format,
    options: &Options<'_>,
    scale_grads: Option<&mut [f32]>,
) -> Result<()> {
    let level = Level::current();
    let sizes = Sizes::new(format, layout)?;
    let mut work = Work::new(format, level);
    work.rule = options.rule;
    work.given = options.given.is_some();
    work.largest = x.dtype.largest();
    let Some(out) = scale_grads else { return masked(&mut work, grad, x, dst, layout, options) };
    let _early = prepare(&mut work, x, layout, &sizes, options)?;
    let segments = Segments::new(layout, format, matches!(work.scales, Scales::Stored), false);
    let sums: Vec<Result<_>> = pool::map(segments.count(), layout.len() * x.dtype.bytes(), |segment| {
        let mut partial: Vec<(usize, f64)> = Vec::new();
        for piece in segments.pieces(segment, format) {
            let (mut values, mut grads) = (transpose::zeroed(piece.len)?, transpose::zeroed(piece.len)?);
            // SAFETY: pieces lie inside all buffers, whose lengths were checked against the layout.
            unsafe {
                x.widen(piece.start, &mut values, level);
                grad.widen(piece.start, &mut grads, level);
            }
            let each = work.group_len(piece.len);
            for (i, (values, grads)) in values.chunks(each).zip(grads.chunks_mut(each)).enumerate() {
                let scale = lanes::group_scale(&work, values, piece.group + i);
                partial.push((piece.group + i, scale_sum(&work, values, grads, &scale)));
                mask(&work, values, grads, &scale);
            }
            // SAFETY: as above; pieces are disjoint.
            unsafe { dst.narrow(piece.start, &grads, level) };
        }
        Ok(partial)
    })?;
    let mut totals = transpose::zeroed::<f64>(out.len())?;
    for partial in sums {
        for (group, sum) in partial? {
            totals[group] += sum;
        }
    }
    let elements = |group: usize| match format.granularity() {
        Granularity::Tensor => layout.len(),
        Granularity::Block(block) => {
            let per_row = layout.k.div_ceil(block as usize);
            (layout.k - group % per_row * block as usize).min(block as usize)
        }
        _ => layout.k,
    };
    for (group, (gradient, total)) in out.iter_mut().zip(totals).enumerate() {
        let scale = work.resolve(&work.load(group));
        let qmax = range(&work.grid, &GroupScale::step(1.0)).1;
        let chain =
            if matches!(format.element(), Element::Fixed { .. }) { -std::f64::consts::LN_2 * scale.step } else { 1.0 };
        *gradient = (total * chain / (elements(group) as f64 * qmax).sqrt()) as f32;
    }
    Ok(())
}

/// Gradients of values alone, in one pass. Scales are chosen, or read, only where the range depends on them.
fn masked(work: &mut Work, grad: Src, x: Src, dst: Dst, layout: &Layout, options: &Options<'_>) -> Result<()> {
    let format = work.format;
    let everywhere = Inside::of(work).everywhere().is_some();
    let _early = match everywhere {
        true => None,
        false => prepare(work, x, layout, &Sizes::new(format, layout)?, options)?,
    };
    if x.dtype == super::DType::F32 {
        work.stream_to(dst.f32_at(0), layout.len());
    }
    let known = everywhere || matches!(work.scales, Scales::Stored);
    let segments = Segments::new(layout, format, known, false);
    let work = &*work;
    pool::try_for_each(segments.count(), layout.len() * x.dtype.bytes(), |segment| {
        let (mut values, mut grads): (Vec<f32>, Vec<f32>) = (Vec::new(), Vec::new());
        for piece in segments.pieces(segment, format) {
            // SAFETY: pieces are disjoint and lie inside all buffers, whose lengths were checked against the layout.
            unsafe {
                if x.dtype == super::DType::F32 {
                    let (x, grad) = (x.f32_at(piece.start), grad.f32_at(piece.start));
                    lanes::mask_piece(work, x, grad, dst.f32_at(piece.start), piece.len, piece.group);
                } else {
                    transpose::set_len(&mut values, piece.len)?;
                    transpose::set_len(&mut grads, piece.len)?;
                    x.widen(piece.start, &mut values, work.level);
                    grad.widen(piece.start, &mut grads, work.level);
                    let to = grads.as_mut_ptr();
                    lanes::mask_piece(work, values.as_ptr(), to.cast_const(), to, piece.len, piece.group);
                    dst.narrow(piece.start, &grads, work.level);
                }
            }
        }
        Ok(())
    })
}

/// True where a value may lie outside the representable range of its group: under this rule, or under given scales.
pub fn saturates(format: Format, rule: ScaleRule, given: bool) -> bool {
    let work = Work { rule, given, ..Work::new(format, Level::Scalar) };
    !matches!(Inside::of(&work), Inside::Between(f64::NEG_INFINITY, f64::INFINITY))
}

/// Which values have a gradient; NaN has none.
pub(super) enum Inside {
    /// Those between two bounds, whatever the scales are.
    Between(f64, f64),
    /// Those between the lowest and the highest number times the step of their group.
    Scaled,
}

impl Inside {
    /// That of a call.
    pub(super) fn of(work: &Work) -> Self {
        let from_absmax =
            matches!(work.chooser, Chooser::Symmetric { .. } | Chooser::Asymmetric { .. } | Chooser::Affine { .. });
        match (work.format.element(), work.format.granularity(), work.chooser) {
            (Element::Binary { .. }, Granularity::None, _) => Self::Between(-1.0, 1.0),
            (Element::Binary { .. }, ..) => Self::Between(f64::NEG_INFINITY, f64::INFINITY),
            // A scale from the largest magnitude saturates nowhere, although its rounding may fall half an ulp short.
            _ if !work.given && (from_absmax || work.rule == ScaleRule::Ceil) => {
                Self::Between(f64::NEG_INFINITY, f64::INFINITY)
            }
            (.., Chooser::Unit(step)) => {
                let (lo, hi) = range(&work.grid, &GroupScale::step(step));
                Self::Between(lo, hi)
            }
            _ => Self::Scaled,
        }
    }

    /// The bounds that hold for all groups, if they do.
    pub(super) const fn everywhere(&self) -> Option<(f64, f64)> {
        match *self {
            Self::Between(lo, hi) => Some((lo, hi)),
            Self::Scaled => None,
        }
    }
}

/// Zeroes the gradients of elements outside the representable range.
pub(super) fn mask(work: &Work, values: &[f32], grads: &mut [f32], scale: &GroupScale) {
    let (lo, hi) = Inside::of(work).everywhere().unwrap_or_else(|| range(&work.grid, scale));
    for (v, g) in values.iter().zip(grads) {
        let v = f64::from(v.clamp(-work.largest, work.largest)); // an infinity counts as the largest value; NaN stays
        if !(v >= lo && v <= hi) {
            *g = 0.0;
        }
    }
}

/// The LSQ sum of one group.
fn scale_sum(work: &Work, values: &[f32], grads: &[f32], scale: &GroupScale) -> f64 {
    let (lo, hi) = range(&work.grid, &GroupScale::step(1.0));
    if scale.step == 0.0 {
        return 0.0;
    }
    let terms = values.iter().zip(grads).map(|(&v, &g)| {
        let y = f64::from(v) / scale.step;
        let slope = if y <= lo {
            lo
        } else if y >= hi {
            hi
        } else {
            y.round_ties_even() - y
        };
        if slope.is_nan() { 0.0 } else { f64::from(g) * slope }
    });
    terms.sum()
}
