//! AdamW whose moments are codes: decoded, updated and encoded again while they are in the nearest cache.

use crate::error::{FormatError, Result};
use crate::float_state::FloatState;
use crate::format::{Format, Granularity};
use crate::pack::{Code, pack, unpack};
use crate::pool;
use crate::simd::{Job, LANES, Lanes, Level, fast};

use super::work::{Scales, Work};
use super::{Nonfinite, check_len, lanes};

/// Values that are updated at once: whole blocks and bytes of every format.
const PIECE: usize = 2048;
/// Pieces that a thread takes together.
const TOGETHER: usize = 16;
/// Most values of a block.
const BLOCK: usize = 256;

/// The settings of one update. All arithmetic is float32, every operation rounded once.
///
/// `w = w * keep`, `m = m + first * (g - m)`, `v = v * (1 - second) + (second * g) * g`,
/// `w = w - (rate * m) / (sqrt(v) * root + epsilon)`. Source: Loshchilov and Hutter, Decoupled Weight Decay
/// Regularization (2019), algorithm 2.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// `1 - learning rate * weight decay`.
    pub keep: f32,
    /// `1 - beta1`.
    pub first: f32,
    /// `1 - beta2`.
    pub second: f32,
    /// Learning rate over `1 - beta1 ** step`.
    pub rate: f32,
    /// One over the root of `1 - beta2 ** step`.
    pub root: f32,
    /// Added to the root of the second moment.
    pub epsilon: f32,
}

/// A moment of every weight, encoded along the one axis of the flattened weights.
#[derive(Debug)]
pub struct Moment<'a> {
    /// Dense codes.
    pub codes: &'a mut [u8],
    /// Scales in their storage type, little-endian.
    pub scales: &'a mut [u8],
}

impl<'a> Moment<'a> {
    /// Parts of so many bytes of codes and scales.
    fn pieces(self, codes: usize, scales: usize) -> impl Iterator<Item = Moment<'a>> {
        let codes = self.codes.chunks_mut(codes);
        codes.zip(self.scales.chunks_mut(scales)).map(|(codes, scales)| Moment { codes, scales })
    }

    /// Decodes the moment of a piece.
    fn read<C: Code>(&self, work: &Work, scratch: &mut [C], values: &mut [f32]) {
        let work = Work { scales: Scales::Stored, scale_in: self.scales.as_ptr(), ..*work };
        // SAFETY: scales are there for all groups of the piece, as `adamw` has checked; `values` is a slice.
        unsafe {
            if work.width == 8 {
                lanes::decode_piece(&work, &*self.codes, values.as_mut_ptr(), 0);
            } else {
                unpack(work.level, self.codes, work.width, scratch);
                lanes::decode_piece(&work, scratch, values.as_mut_ptr(), 0);
            }
        }
    }

    /// Encodes the moment of a piece.
    fn write<C: Code>(&mut self, work: &Work, scratch: &mut [C], values: &[f32]) {
        let work = Work { scale_out: self.scales.as_mut_ptr(), ..*work };
        if work.width == 8 {
            lanes::encode_piece(&work, values, 0, self.codes);
        } else {
            lanes::encode_piece(&work, values, 0, scratch);
            pack(work.level, scratch, work.width, self.codes);
        }
    }
}

/// One update of `weights` by `gradients` and of both moments, which are stored in `format`.
///
/// The moments that move a weight are those before they are encoded again. A moment that is not finite is stored as its
/// format saturates it.
///
/// # Errors
/// [`crate::Error::Format`] where the blocks of `format` do not divide 256 values or it stores more than codes and scales;
/// [`crate::Error::Shape`] where lengths differ.
pub fn adamw(
    weights: &mut [f32],
    gradients: &[f32],
    first: Moment<'_>,
    second: Moment<'_>,
    format: Format,
    step: Step,
) -> Result<()> {
    at_level(weights, gradients, first, second, format, step, Level::current())
}

/// [`adamw`] with the instructions of a level that this processor has.
fn at_level(
    weights: &mut [f32],
    gradients: &[f32],
    first: Moment<'_>,
    second: Moment<'_>,
    format: Format,
    step: Step,
    level: Level,
) -> Result<()> {
    let Granularity::Block(block) = format.granularity() else { return Err(FormatError::Moments { format }.into()) };
    let block = block as usize;
    let Some(scale) = format.scale_type() else { return Err(FormatError::Moments { format }.into()) };
    if !BLOCK.is_multiple_of(block) || format.has_zeros() || format.has_levels() {
        return Err(FormatError::Moments { format }.into());
    }
    let each = scale.bytes() * format.scales_per_group();
    let (count, width) = (weights.len(), format.width() as usize);
    check_len(format, "gradients (elements)", gradients.len(), count)?;
    for moment in [&first, &second] {
        check_len(format, "codes (bytes)", moment.codes.len(), (count * width).div_ceil(8))?;
        check_len(format, "scales (bytes)", moment.scales.len(), count.div_ceil(block) * each)?;
    }
    let _state = FloatState::standard();
    let sizes = (PIECE * width / 8, PIECE / block * each);
    let (codes, scales) = (TOGETHER * sizes.0, TOGETHER * sizes.1);
    let work = Work { nonfinite: Nonfinite::Saturate, ..Work::new(format, level) };
    let parts: Vec<_> = weights
        .chunks_mut(TOGETHER * PIECE)
        .zip(gradients.chunks(TOGETHER * PIECE))
        .zip(first.pieces(codes, scales))
        .zip(second.pieces(codes, scales))
        .collect();
    pool::consume(parts, 4 * size_of::<f32>() * count, |(((weights, gradients), first), second)| match width {
        0..=8 => pieces::<u8>(&work, weights, gradients, first, second, sizes, step),
        9..=16 => pieces::<u16>(&work, weights, gradients, first, second, sizes, step),
        _ => pieces::<u32>(&work, weights, gradients, first, second, sizes, step),
    })
}

/// Updates weights and their moments piece by piece; `sizes`: bytes of the codes and of the scales of a piece.
fn pieces<C: Code>(
    work: &Work,
    weights: &mut [f32],
    gradients: &[f32],
    first: Moment<'_>,
    second: Moment<'_>,
    sizes: (usize, usize),
    step: Step,
) {
    let (mut codes, mut m, mut v) = ([C::default(); PIECE], [0.0; PIECE], [0.0; PIECE]);
    let moments = first.pieces(sizes.0, sizes.1).zip(second.pieces(sizes.0, sizes.1));
    let values = weights.chunks_mut(PIECE).zip(gradients.chunks(PIECE));
    for ((weights, gradients), (mut first, mut second)) in values.zip(moments) {
        let count = weights.len();
        let (codes, m, v) = (&mut codes[..count], &mut m[..count], &mut v[..count]);
        first.read(work, codes, m);
        second.read(work, codes, v);
        if let Err(Update(weights, gradients, m, v, step)) = fast(work.level, Update(weights, gradients, m, v, step)) {
            reference(weights, gradients, m, v, step);
        }
        first.write(work, codes, m);
        second.write(work, codes, v);
    }
}

/// The definition of an update.
fn reference(weights: &mut [f32], gradients: &[f32], m: &mut [f32], v: &mut [f32], step: Step) {
    for (((w, &g), m), v) in weights.iter_mut().zip(gradients).zip(m).zip(v) {
        *m = step.first.mul_add(g - *m, *m);
        *v = (step.second * g).mul_add(g, *v * (1.0 - step.second));
        *w = *w * step.keep - step.rate * *m / v.sqrt().mul_add(step.root, step.epsilon);
    }
}

/// [`reference`] in lanes.
struct Update<'a>(&'a mut [f32], &'a [f32], &'a mut [f32], &'a mut [f32], Step);

impl<V: Lanes> Job<V> for Update<'_> {
    type Output = ();
    #[inline(always)]
    fn run(self, _: V) {
        let Self(weights, gradients, moments, squares, step) = self;
        let whole = weights.len() / LANES * LANES;
        // SAFETY: the lanes prove the instructions; all four slices are equally long, and `i + LANES <= whole`.
        unsafe {
            let (keep, first, second) = (V::splat(step.keep), V::splat(step.first), V::splat(step.second));
            let (rate, root, epsilon) = (V::splat(step.rate), V::splat(step.root), V::splat(step.epsilon));
            let past = V::splat(1.0 - step.second);
            for i in (0..whole).step_by(LANES) {
                let (w, g) = (V::load(weights.as_ptr().add(i)), V::load(gradients.as_ptr().add(i)));
                let (m, v) = (V::load(moments.as_ptr().add(i)), V::load(squares.as_ptr().add(i)));
                let m = V::fma(first, V::sub(g, m), m);
                let v = V::fma(V::mul(second, g), g, V::mul(v, past));
                let moved = V::div(V::mul(rate, m), V::fma(V::sqrt(v), root, epsilon));
                V::store(weights.as_mut_ptr().add(i), V::sub(V::mul(w, keep), moved));
                V::store(moments.as_mut_ptr().add(i), m);
                V::store(squares.as_mut_ptr().add(i), v);
            }
        }
        let rest = whole..;
        let (m, v) = (&mut moments[rest.clone()], &mut squares[rest.clone()]);
        reference(&mut weights[rest.clone()], &gradients[rest], m, v, step);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{Layout, Options, Packed, PackedMut, Sizes, Values, ValuesMut, decode, encode};

    const STEP: Step = Step { keep: 0.99, first: 0.1, second: 0.05, rate: 1e-2, root: 1.5, epsilon: 1e-8 };

    /// Numbers of many sizes, of both signs.
    fn numbers(count: usize, seed: u32) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state >> 8
        };
        (0..count).map(|_| (next() as f32 / 8_388_608.0 - 1.0) * 2f32.powi((next() % 24) as i32 - 16)).collect()
    }

    fn encoded(x: &[f32], format: Format) -> (Vec<u8>, Vec<u8>) {
        let layout = Layout::new(&[x.len()], -1, format).expect("a layout");
        let sizes = Sizes::new(format, &layout).expect("sizes");
        let (mut codes, mut scales) = (vec![0; sizes.codes], vec![0; sizes.scales]);
        let out = PackedMut { codes: &mut codes, scales: &mut scales, zeros: &mut [], levels: &mut [] };
        let options = Options { nonfinite: Nonfinite::Saturate, ..Options::default() };
        encode(Values::F32(x), layout, format, &options, out).expect("finite values");
        (codes, scales)
    }

    fn decoded((codes, scales): &(Vec<u8>, Vec<u8>), count: usize, format: Format) -> Vec<f32> {
        let layout = Layout::new(&[count], -1, format).expect("a layout");
        let mut out = vec![0.0; count];
        let packed = Packed { codes, scales, zeros: &[], levels: &[] };
        decode(packed, layout, format, ValuesMut::F32(&mut out)).expect("fitting parts");
        out
    }

    #[test]
    fn an_update_is_decode_the_definition_and_encode_at_every_level() {
        for name in ["bm8e4/256", "mxfp8e4m3", "mxint8", "mxfp6e3m2", "mxfp4", "bfp12/16", "int8:g256", "int5:g32"] {
            let format: Format = name.parse().expect("a format");
            for count in [1, 15, 255, PIECE, PIECE + 33, 3 * PIECE + 8, TOGETHER * PIECE + 300] {
                let (start, gradients) = (numbers(count, 1), numbers(count, 2));
                let squares: Vec<f32> = numbers(count, 3).iter().map(|v| v * v).collect();
                let before = [encoded(&numbers(count, 4), format), encoded(&squares, format)];
                let mut wanted = start.clone();
                let [mut m, mut v] = before.each_ref().map(|moment| decoded(moment, count, format));
                reference(&mut wanted, &gradients, &mut m, &mut v, STEP);
                let after = [encoded(&m, format), encoded(&v, format)];
                for level in [Level::Scalar, Level::Avx2, Level::Avx512] {
                    if level > Level::detect() {
                        continue;
                    }
                    let (mut weights, mut held) = (start.clone(), before.clone());
                    let [first, second] = held.each_mut().map(|(codes, scales)| Moment { codes, scales });
                    at_level(&mut weights, &gradients, first, second, format, STEP, level).expect("fitting lengths");
                    let same = weights.iter().zip(&wanted).all(|(a, b)| a.to_bits() == b.to_bits());
                    assert!(same && held == after, "{name}, {count} values, {level:?}");
                }
            }
        }
    }

    #[test]
    fn formats_without_blocks_and_wrong_lengths_are_refused() {
        for name in ["int8:channel", "int8", "e4m3", "uint8:g32", "nvfp4", "int8:g192", "bm8e4/512"] {
            let format: Format = name.parse().expect("a format");
            let (first, second) =
                (Moment { codes: &mut [], scales: &mut [] }, Moment { codes: &mut [], scales: &mut [] });
            let refused = adamw(&mut [], &[], first, second, format, STEP).expect_err("a refusal").to_string();
            assert!(refused.contains("moments"), "{refused}");
        }
        let format: Format = "mxint8".parse().expect("a format");
        let (first, second) =
            (Moment { codes: &mut [0; 32], scales: &mut [0] }, Moment { codes: &mut [0; 31], scales: &mut [0] });
        assert!(adamw(&mut [0.0; 32], &[0.0; 32], first, second, format, STEP).is_err());
    }
}
