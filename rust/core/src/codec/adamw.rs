//! AdamW whose moments are codes of a block format or of the dynamic map: decoded, updated and encoded again while they are
//! in the nearest cache.

use crate::bitpack::{Code, pack, unpack};
use crate::error::{FormatError, Result, ShapeError};
use crate::float_state::FloatState;
use crate::format::{Format, Granularity};
use crate::pool;
use crate::simd::{Job, LANES, Lanes, Level, fast};

use super::group_scales::{Scales, Work};
use super::{Layout, Nonfinite, Sizes, dynamic_map, lanes};

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

/// How both moments are stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MomentForm {
    /// Codes of a format, encoded along the one axis of the flattened weights.
    Blocks(Format),
    /// Codes of the dynamic map in blocks of 256 values, signed for the first moment and not for the second; scales are the
    /// largest magnitudes of the blocks, float32. Source: Dettmers et al. (2021), section 2.2.
    Dynamic,
}

impl MomentForm {
    /// Bytes of the codes and of the scales of a moment of `count` weights.
    ///
    /// # Errors
    /// [`crate::Error::Shape`] where they overflow the address space.
    pub fn sizes(self, count: usize) -> Result<(usize, usize)> {
        match self {
            Self::Blocks(format) => {
                let sizes = Sizes::new(format, &Layout::new(&[count], -1, format)?)?;
                Ok((sizes.codes, sizes.scales))
            }
            Self::Dynamic => Ok((count, count.div_ceil(dynamic_map::BLOCK) * size_of::<f32>())),
        }
    }
}

/// A moment of every weight.
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
}

/// What decodes and encodes a piece of a moment.
trait Codec: Sync {
    /// Decodes a piece; `signed`: whether its values may be negative.
    fn read(&self, piece: &Moment<'_>, signed: bool, values: &mut [f32]);
    /// Encodes a piece.
    fn write(&self, piece: &mut Moment<'_>, signed: bool, values: &[f32]);
}

impl Codec for Work {
    fn read(&self, piece: &Moment<'_>, _signed: bool, values: &mut [f32]) {
        /// Decodes codes that are not bytes.
        fn dense<C: Code>(work: &Work, codes: &[u8], values: &mut [f32]) {
            let mut scratch = [C::default(); PIECE];
            let scratch = &mut scratch[..values.len()];
            unpack(work.level, codes, work.width, scratch);
            // SAFETY: scales are there for all groups of the piece, as `at_level` has checked; `values` is a slice.
            unsafe { lanes::decode_piece(work, scratch, values.as_mut_ptr(), 0) };
        }
        let work = Work { scales: Scales::Stored, scale_in: piece.scales.as_ptr(), ..*self };
        match self.width {
            // SAFETY: as above.
            8 => unsafe { lanes::decode_piece(&work, &*piece.codes, values.as_mut_ptr(), 0) },
            0..8 => dense::<u8>(&work, piece.codes, values),
            9..=16 => dense::<u16>(&work, piece.codes, values),
            _ => dense::<u32>(&work, piece.codes, values),
        }
    }

    fn write(&self, piece: &mut Moment<'_>, _signed: bool, values: &[f32]) {
        /// Encodes values to codes that are not bytes.
        fn dense<C: Code>(work: &Work, codes: &mut [u8], values: &[f32]) {
            let mut scratch = [C::default(); PIECE];
            let scratch = &mut scratch[..values.len()];
            lanes::encode_piece(work, values, 0, scratch);
            pack(work.level, scratch, work.width, codes);
        }
        let work = Work { scale_out: piece.scales.as_mut_ptr(), ..*self };
        match self.width {
            8 => {
                lanes::encode_piece(&work, values, 0, piece.codes);
            }
            0..8 => dense::<u8>(&work, piece.codes, values),
            9..=16 => dense::<u16>(&work, piece.codes, values),
            _ => dense::<u32>(&work, piece.codes, values),
        }
    }
}

/// The dynamic map at a level.
struct Dynamic(Level);

impl Codec for Dynamic {
    fn read(&self, piece: &Moment<'_>, signed: bool, values: &mut [f32]) {
        lanes::dynamic_map::decode(self.0, signed, piece.codes, piece.scales, values);
    }

    fn write(&self, piece: &mut Moment<'_>, signed: bool, values: &[f32]) {
        lanes::dynamic_map::encode(self.0, signed, piece.codes, piece.scales, values);
    }
}

/// One update of `weights` by `gradients` and of both moments, which are stored in `form`.
///
/// The moments that move a weight are those before they are encoded again. A moment that is not finite is stored as its
/// format saturates it; on the dynamic map, all of its block decodes to NaN.
///
/// # Errors
/// [`crate::Error::Format`] where the blocks of a format do not divide 256 values or it stores more than codes and scales;
/// [`crate::Error::Shape`] where lengths differ.
pub fn adamw(
    weights: &mut [f32],
    gradients: &[f32],
    first: Moment<'_>,
    second: Moment<'_>,
    form: MomentForm,
    step: Step,
) -> Result<()> {
    at_level(weights, gradients, first, second, form, step, Level::current())
}

/// [`adamw`] with the instructions of a level that this processor has.
fn at_level(
    weights: &mut [f32],
    gradients: &[f32],
    first: Moment<'_>,
    second: Moment<'_>,
    form: MomentForm,
    step: Step,
    level: Level,
) -> Result<()> {
    if let MomentForm::Blocks(format) = form {
        check_format(format)?;
    }
    let count = weights.len();
    check_len("gradients (elements)", gradients.len(), count)?;
    let (codes, scales) = form.sizes(count)?;
    for moment in [&first, &second] {
        check_len("codes (bytes)", moment.codes.len(), codes)?;
        check_len("scales (bytes)", moment.scales.len(), scales)?;
    }
    let _state = FloatState::standard();
    let task = Task { weights, gradients, first, second, sizes: form.sizes(PIECE)?, step, level };
    match form {
        MomentForm::Blocks(format) => task.run(&Work { nonfinite: Nonfinite::Saturate, ..Work::new(format, level) }),
        MomentForm::Dynamic => task.run(&Dynamic(level)),
    }
}

fn check_format(format: Format) -> Result<()> {
    let divides = matches!(format.granularity(), Granularity::Block(block) if BLOCK.is_multiple_of(block as usize));
    if !divides || format.scale_type().is_none() || format.has_zeros() || format.has_offsets() || format.has_levels() {
        return Err(FormatError::Moments { format }.into());
    }
    Ok(())
}

fn check_len(what: &'static str, got: usize, expected: usize) -> Result<()> {
    if got == expected { Ok(()) } else { Err(ShapeError::Moments { what, got, expected }.into()) }
}

/// An update, whose lengths have been checked.
struct Task<'a> {
    weights: &'a mut [f32],
    gradients: &'a [f32],
    first: Moment<'a>,
    second: Moment<'a>,
    /// Bytes of the codes and of the scales of a piece.
    sizes: (usize, usize),
    step: Step,
    level: Level,
}

impl<'a> Task<'a> {
    /// Tasks on so many weights each.
    fn parts(self, pieces: usize) -> impl Iterator<Item = Task<'a>> {
        let Self { sizes, step, level, .. } = self;
        let (codes, scales) = (pieces * sizes.0, pieces * sizes.1);
        let moments = self.first.pieces(codes, scales).zip(self.second.pieces(codes, scales));
        let values = self.weights.chunks_mut(pieces * PIECE).zip(self.gradients.chunks(pieces * PIECE));
        values.zip(moments).map(move |((weights, gradients), (first, second))| Task {
            weights,
            gradients,
            first,
            second,
            sizes,
            step,
            level,
        })
    }

    /// Makes the update on all threads.
    fn run(self, codec: &impl Codec) -> Result<()> {
        let bytes = 4 * size_of_val(self.weights);
        pool::consume(self.parts(TOGETHER).collect(), bytes, |task: Task<'_>| task.pieces(codec))
    }

    /// Updates weights and their moments piece by piece.
    fn pieces(self, codec: &impl Codec) {
        let (mut m, mut v) = ([0.0; PIECE], [0.0; PIECE]);
        for Task { weights, gradients, mut first, mut second, step, level, .. } in self.parts(1) {
            let (m, v) = (&mut m[..weights.len()], &mut v[..weights.len()]);
            codec.read(&first, true, m);
            codec.read(&second, false, v);
            if let Err(Update(weights, gradients, m, v, step)) = fast(level, Update(weights, gradients, m, v, step)) {
                reference(weights, gradients, m, v, step);
            }
            codec.write(&mut first, true, m);
            codec.write(&mut second, false, v);
        }
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
    use crate::codec::dynamic_map::{Map, SIGNED, UNSIGNED};
    use crate::codec::{Options, Packed, PackedMut, Values, ValuesMut, decode, encode};
    use crate::error::Error;

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

    /// Codes and scales of a moment, by the codec of its format or the definition of the map.
    fn encoded(x: &[f32], form: MomentForm, signed: bool) -> (Vec<u8>, Vec<u8>) {
        let (codes, scales) = form.sizes(x.len()).expect("sizes");
        let (mut codes, mut scales) = (vec![0; codes], vec![0; scales]);
        match form {
            MomentForm::Blocks(format) => {
                let layout = Layout::new(&[x.len()], -1, format).expect("a layout");
                let out = PackedMut { codes: &mut codes, scales: &mut scales, zeros: &mut [], levels: &mut [] };
                let options = Options { nonfinite: Nonfinite::Saturate, ..Options::default() };
                encode(Values::F32(x), layout, format, &options, out).expect("finite values");
            }
            MomentForm::Dynamic => {
                let blocks = x.chunks(BLOCK).zip(codes.chunks_mut(BLOCK)).zip(scales.chunks_mut(4));
                for ((x, codes), scale) in blocks {
                    scale.copy_from_slice(&map(signed).encode(x, codes).to_le_bytes());
                }
            }
        }
        (codes, scales)
    }

    fn decoded((codes, scales): &(Vec<u8>, Vec<u8>), count: usize, form: MomentForm, signed: bool) -> Vec<f32> {
        let mut out = vec![0.0; count];
        match form {
            MomentForm::Blocks(format) => {
                let layout = Layout::new(&[count], -1, format).expect("a layout");
                let packed = Packed { codes, scales, zeros: &[], levels: &[] };
                decode(packed, layout, format, ValuesMut::F32(&mut out)).expect("fitting parts");
            }
            MomentForm::Dynamic => {
                for ((x, codes), &scale) in out.chunks_mut(BLOCK).zip(codes.chunks(BLOCK)).zip(scales.as_chunks().0) {
                    map(signed).decode(codes, f32::from_le_bytes(scale), x);
                }
            }
        }
        out
    }

    fn map(signed: bool) -> &'static Map {
        if signed { &SIGNED } else { &UNSIGNED }
    }

    fn forms(names: &[&str]) -> Vec<MomentForm> {
        names.iter().map(|name| MomentForm::Blocks(name.parse().expect("a format"))).collect()
    }

    #[test]
    fn an_update_is_decode_the_definition_and_encode_at_every_level() {
        let names = ["bm8e4/256", "mxfp8e4m3", "mxint8", "mxfp6e3m2", "mxfp4", "bfp12/16", "int8:g256", "int5:g32"];
        for form in [forms(&names), vec![MomentForm::Dynamic]].concat() {
            for count in [0, 1, 15, 255, 256, 257, PIECE, PIECE + 33, 3 * PIECE + 8, TOGETHER * PIECE + 300] {
                let (start, gradients) = (numbers(count, 1), numbers(count, 2));
                let squares: Vec<f32> = numbers(count, 3).iter().map(|v| v * v).collect();
                let before = [encoded(&numbers(count, 4), form, true), encoded(&squares, form, false)];
                let mut wanted = start.clone();
                let [mut m, mut v] =
                    [true, false].map(|signed| decoded(&before[usize::from(!signed)], count, form, signed));
                reference(&mut wanted, &gradients, &mut m, &mut v, STEP);
                let after = [encoded(&m, form, true), encoded(&v, form, false)];
                for level in Level::available() {
                    let (mut weights, mut held) = (start.clone(), before.clone());
                    let [first, second] = held.each_mut().map(|(codes, scales)| Moment { codes, scales });
                    at_level(&mut weights, &gradients, first, second, form, STEP, level).expect("fitting lengths");
                    let same = weights.iter().zip(&wanted).all(|(a, b)| a.to_bits() == b.to_bits());
                    assert!(same && held == after, "{form:?}, {count} values, {level:?}");
                }
            }
        }
    }

    #[test]
    fn formats_without_blocks_and_wrong_lengths_are_refused() {
        for form in forms(&["int8:channel", "int8", "e4m3", "uint8:g32", "nvfp4", "int8:g192", "bm8e4/512"]) {
            let (first, second) =
                (Moment { codes: &mut [], scales: &mut [] }, Moment { codes: &mut [], scales: &mut [] });
            let refused = adamw(&mut [], &[], first, second, form, STEP).expect_err("a refusal").to_string();
            assert!(refused.contains("moments"), "{refused}");
        }
        for (form, scales) in forms(&["mxint8"]).into_iter().zip([1]).chain([(MomentForm::Dynamic, 4)]) {
            for (codes, given, gradients) in [(31, scales, 32), (32, scales - 1, 32), (32, scales, 31)] {
                let (mut codes, mut given) = (vec![0; codes], vec![0; given]);
                let first = Moment { codes: &mut [0; 32], scales: &mut vec![0; scales] };
                let second = Moment { codes: &mut codes, scales: &mut given };
                let refused = adamw(&mut [0.0; 32], &vec![0.0; gradients], first, second, form, STEP);
                assert!(matches!(refused, Err(Error::Shape(ShapeError::Moments { .. }))), "{refused:?}");
            }
        }
    }
}
