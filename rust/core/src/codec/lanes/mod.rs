//! SIMD paths of the codecs. Each function here gives the bits of its scalar twin in `reference` or `scale`.
//!
//! `kernels` has the arithmetic of elements on lanes, `batch` chooses the scales of sixteen groups at a time, `groups` has
//! the loops, `neighbours` the rules that try several scales, `statistics` finds absmax and errors of groups, `convert`
//! widens and narrows 16-bit floats, `dynamic_map` has the moments of `dynamic8`. The functions below run one job per piece, compiled for the level. Where the format has no kernel they call the reference.

mod batch;
mod convert;
pub(crate) mod dynamic_map;
mod groups;
mod kernels;
mod marks;
mod masks;
mod neighbours;
mod statistics;

use kernels::{
    AffineSteps, Book, Floats, Identity, Kernel, PowerSteps, Powers, RealSteps, ScaledE2M1, Signs, Truncated,
};

use crate::bitpack::Code;
use crate::simd::{Job, Lanes, Level, fast};

use super::grid::{Grid, GroupScale};
use super::group_scales::Work;
use super::reference;
use super::scale::{CHUNK, Query, Stat, stat_chunk};
use super::scale_search::RawScale;

/// Work on a piece with the kernel of its format.
trait WithKernel<V: Lanes> {
    /// The result.
    type Output;
    /// # Safety
    /// The processor must have the features of `V`.
    unsafe fn with<K: Kernel<V>>(self, base: K::Base) -> Self::Output;
}

/// A job with one of the kernels: compiled apart from those with others, for the time that it takes to compile a function
/// grows faster than the function does.
struct OfKernel<V: Lanes, K: Kernel<V>, J> {
    base: K::Base,
    job: J,
}

impl<V: Lanes, K: Kernel<V>, J: WithKernel<V>> Job<V> for OfKernel<V, K, J> {
    type Output = J::Output;
    #[inline(always)]
    fn run(self, _: V) -> J::Output {
        // SAFETY: the lanes prove the instructions.
        unsafe { self.job.with::<K>(self.base) }
    }
}

/// Does `job` with the first kernel that knows the format; `None` where none does.
#[inline(always)]
fn with_kernel<V: Lanes, J: WithKernel<V>>(lanes: V, work: &Work, job: J) -> Option<J::Output> {
    macro_rules! first_of {
        ($($kernel:ty),* $(,)?) => {
            $(if let Some(base) = <$kernel as Kernel<V>>::base(work) {
                return Some(lanes.run(OfKernel::<V, $kernel, J> { base, job }));
            })*
        };
    }
    first_of!(
        PowerSteps<V>,
        Floats<V, false>,
        Floats<V, true>,
        RealSteps<V>,
        AffineSteps<V>,
        Truncated,
        Identity,
        Powers<V>,
        ScaledE2M1<V>,
        Book<V>,
        Signs<V>,
    );
    None
}

struct Statistics<'a>(&'a [f32], &'a Query);

impl<V: Lanes> Job<V> for Statistics<'_> {
    type Output = Stat;
    #[inline(always)]
    fn run(self, _: V) -> Stat {
        // SAFETY: the lanes prove the instructions.
        unsafe { statistics::stat::<V>(self.0, self.1) }
    }
}

/// Answers a query about values that may hold NaN and infinities, as [`reference::stat`] does. The level of a [`Work`] is
/// one that this processor has.
pub(crate) fn stat(work: &Work, x: &[f32], query: &Query) -> Stat {
    if work.level == Level::Scalar {
        return reference::stat(work, x, query);
    }
    let mut all = Stat::default();
    for chunk in x.chunks(CHUNK) {
        let mut stat = fast(work.level, Statistics(chunk, query)).unwrap_or_else(|_| stat_chunk(chunk, query));
        let tainted = stat.absmax >= 0x7f80_0000
            || !stat.sum.is_finite()
            || !stat.min.is_finite()
            || !stat.max.is_finite()
            || !stat.errors[0].is_finite();
        if tainted {
            stat = reference::stat(work, chunk, query);
        }
        all = all.join(&stat);
    }
    all
}

/// The scale that the rules choose for a whole group.
pub(crate) fn choose(work: &Work, x: &[f32]) -> RawScale {
    if work.level == Level::Scalar {
        return reference::choose(work, x);
    }
    reference::choose_from(work, x, |query| stat(work, x, query))
}

/// The scale of a group: chosen and kept, or read.
pub(crate) fn group_scale(work: &Work, x: &[f32], group: usize) -> GroupScale {
    work.group_scale(group, || choose(work, x))
}

/// True where every code is a number that float32 holds, or the bits of one: all but fixed point of 25 to 32 bits.
fn counts_in_lanes(work: &Work) -> bool {
    work.width <= 24 || !matches!(work.grid, Grid::Integer { .. })
}

/// A piece to encode. Scales are there for all groups, as [`Work`] says.
struct Encode<'a, C> {
    work: &'a Work,
    x: &'a [f32],
    codes: &'a mut [C],
    group: usize,
}

impl<V: Lanes, C: Code> Job<V> for Encode<'_, C> {
    /// `None` where no kernel knows the format.
    type Output = Option<Option<usize>>;
    #[inline(always)]
    fn run(self, lanes: V) -> Self::Output {
        with_kernel(lanes, self.work, self)
    }
}

impl<V: Lanes, C: Code> WithKernel<V> for Encode<'_, C> {
    type Output = Option<usize>;
    #[inline(always)]
    unsafe fn with<K: Kernel<V>>(self, base: K::Base) -> Self::Output {
        // SAFETY: as the caller promises; scales are there.
        unsafe { groups::encode::<V, K, C>(self.work, &base, self.x, self.codes, self.group) }
    }
}

/// Encodes a piece; returns the first position that the non-finite policy refuses.
pub(crate) fn encode_piece<C: Code>(work: &Work, x: &[f32], group: usize, codes: &mut [C]) -> Option<usize> {
    // float32 lanes cannot count beyond 24 bits.
    if counts_in_lanes(work)
        && let Ok(Some(first)) = fast(work.level, Encode { work, x, codes, group })
    {
        return first;
    }
    let len = work.group_len(x.len());
    let mut first = None;
    for (i, (x, codes)) in x.chunks(len).zip(codes.chunks_mut(len)).enumerate() {
        let failed = groups::scalar_encode(work, x, codes, group + i);
        first = first.or(failed.map(|position| i * len + position));
    }
    first
}

/// A piece to quantize, as [`quantize_piece`] is given it.
struct Quantize<'a> {
    work: &'a Work,
    x: *const f32,
    out: *mut f32,
    len: usize,
    group: usize,
}

impl<V: Lanes> Job<V> for Quantize<'_> {
    /// `None` where no kernel knows the format.
    type Output = Option<()>;
    #[inline(always)]
    fn run(self, lanes: V) -> Self::Output {
        with_kernel(lanes, self.work, self)
    }
}

impl<V: Lanes> WithKernel<V> for Quantize<'_> {
    type Output = ();
    #[inline(always)]
    unsafe fn with<K: Kernel<V>>(self, base: K::Base) -> Self::Output {
        // SAFETY: as the caller promises; `quantize_piece`'s caller promises the rest.
        unsafe { groups::quantize::<V, K>(self.work, &base, self.x, self.out, self.len, self.group) }
    }
}

/// Quantizes a piece; `out` may be `x`.
///
/// # Safety
/// `x` must be aligned and readable, `out` writable, for `len` elements; where they are not the same address, they must be
/// apart. Nobody else may use `out`, or the scales of these groups, meanwhile. Scales must be there for all groups, as
/// [`Work`] says.
pub(crate) unsafe fn quantize_piece(work: &Work, x: *const f32, out: *mut f32, len: usize, group: usize) {
    if let Ok(Some(())) = fast(work.level, Quantize { work, x, out, len, group }) {
        return;
    }
    let each = work.group_len(len);
    for (i, start) in (0..len).step_by(each).enumerate() {
        // SAFETY: as the caller promises; the group lies inside both buffers.
        unsafe { groups::scalar_quantize(work, x.add(start), out.add(start), each.min(len - start), group + i) };
    }
}

/// A piece to decode, as [`decode_piece`] is given it.
struct Decode<'a, C> {
    work: &'a Work,
    codes: &'a [C],
    out: *mut f32,
    group: usize,
}

impl<V: Lanes, C: Code> Job<V> for Decode<'_, C> {
    /// `None` where no kernel knows the format.
    type Output = Option<()>;
    #[inline(always)]
    fn run(self, lanes: V) -> Self::Output {
        with_kernel(lanes, self.work, self)
    }
}

impl<V: Lanes, C: Code> WithKernel<V> for Decode<'_, C> {
    type Output = ();
    #[inline(always)]
    unsafe fn with<K: Kernel<V>>(self, base: K::Base) -> Self::Output {
        // SAFETY: as the caller promises; `decode_piece`'s caller promises the rest.
        unsafe { groups::decode::<V, K, C>(self.work, &base, self.codes, self.out, self.group) }
    }
}

/// Decodes a piece.
///
/// # Safety
/// `out` must be aligned and writable for `codes.len()` elements, which nobody else may use meanwhile. Scales must be there
/// for all groups, as [`Work`] says.
pub(crate) unsafe fn decode_piece<C: Code>(work: &Work, codes: &[C], out: *mut f32, group: usize) {
    let group = work.first_group(group);
    if counts_in_lanes(work)
        && let Ok(Some(())) = fast(work.level, Decode { work, codes, out, group })
    {
        return;
    }
    let len = work.group_len(codes.len());
    for (i, codes) in codes.chunks(len).enumerate() {
        let scale = work.resolve(&work.load(group + i));
        // SAFETY: as the caller promises; the group lies inside `out`.
        unsafe { groups::scalar_decode(work, codes, out.add(i * len), &scale) };
    }
}

/// A piece whose gradients are masked, as [`mask_piece`] is given it.
struct Mask<'a>(masks::Masked<'a>);

impl<V: Lanes> Job<V> for Mask<'_> {
    /// `None` where no kernel knows the format.
    type Output = Option<()>;
    #[inline(always)]
    fn run(self, lanes: V) -> Self::Output {
        with_kernel(lanes, self.0.work, self)
    }
}

impl<V: Lanes> WithKernel<V> for Mask<'_> {
    type Output = ();
    #[inline(always)]
    unsafe fn with<K: Kernel<V>>(self, base: K::Base) -> Self::Output {
        // SAFETY: as the caller promises; `mask_piece`'s caller promises the rest.
        unsafe { masks::piece::<V, K>(self.0, &base) }
    }
}

/// Writes the gradients of values inside the representable range of their group, and +0 for those of others; `out` may
/// be `grad`.
///
/// # Safety
/// `x` and `grad` must be aligned and readable, `out` writable, for `len` elements; `out` must be `grad` or apart from both.
/// Nobody else may use `out` meanwhile. Scales must be there for all groups, as [`Work`] says.
pub(crate) unsafe fn mask_piece(work: &Work, x: *const f32, grad: *const f32, out: *mut f32, len: usize, group: usize) {
    let piece = masks::Masked { work, x, grad, out, len, group };
    if let Ok(Some(())) = fast(work.level, Mask(piece)) {
        return;
    }
    // SAFETY: as the caller promises.
    unsafe { masks::reference(piece) };
}

/// A piece that is rounded and marked, as [`mark_piece`] is given it.
struct Mark<'a>(marks::Marked<'a>);

impl<V: Lanes> Job<V> for Mark<'_> {
    /// `None` where no kernel knows the format.
    type Output = Option<()>;
    #[inline(always)]
    fn run(self, lanes: V) -> Self::Output {
        with_kernel(lanes, self.0.work, self)
    }
}

impl<V: Lanes> WithKernel<V> for Mark<'_> {
    type Output = ();
    #[inline(always)]
    unsafe fn with<K: Kernel<V>>(self, base: K::Base) -> Self::Output {
        // SAFETY: as the caller promises; `mark_piece`'s caller promises the rest.
        unsafe { marks::piece::<V, K>(self.0, &base) }
    }
}

/// Quantizes a piece, and marks the values inside the representable range of their group: bit `i % 8` of byte `i / 8`.
///
/// # Safety
/// As for [`quantize_piece`]; `len` and the elements of a group must be multiples of 8, and `marks` be writable for
/// `len / 8` bytes, which nobody else may use meanwhile.
pub(crate) unsafe fn mark_piece(work: &Work, x: *const f32, out: *mut f32, marks: *mut u8, len: usize, group: usize) {
    let piece = marks::Marked { work, x, out, marks, len, group };
    if let Ok(Some(())) = fast(work.level, Mark(piece)) {
        return;
    }
    // SAFETY: as the caller promises.
    unsafe { marks::reference(piece) };
}

/// Gradients to pass by marks, as [`pass_marked`] is given them.
struct Pass(*const f32, *const u8, *mut f32, usize);

impl<V: Lanes> Job<V> for Pass {
    type Output = ();
    #[inline(always)]
    fn run(self, _: V) {
        // SAFETY: the lanes prove the instructions; `pass_marked`'s caller promises the rest.
        unsafe { marks::pass::<V>(self.0, self.1, self.2, self.3) }
    }
}

/// Copies the gradients of marked values to `out`, and +0 for those of others.
///
/// # Safety
/// `grad` must be aligned and readable, `out` apart from it and writable, for `len` elements, a multiple of 8; `marks`
/// readable for `len / 8` bytes. Nobody else may use `out` meanwhile. `level` must be one that this processor has.
pub(crate) unsafe fn pass_marked(level: Level, grad: *const f32, marks: *const u8, out: *mut f32, len: usize) {
    if let Err(job) = fast(level, Pass(grad, marks, out, len)) {
        for i in 0..job.3 {
            // SAFETY: as the caller promises.
            unsafe { *job.2.add(i) = if *job.1.add(i / 8) >> (i % 8) & 1 == 1 { *job.0.add(i) } else { 0.0 } };
        }
    }
}

struct HasNan<'a>(&'a [f32]);

impl<V: Lanes> Job<V> for HasNan<'_> {
    type Output = bool;
    #[inline(always)]
    fn run(self, _: V) -> bool {
        // SAFETY: the lanes prove the instructions.
        unsafe { statistics::has_nan::<V>(self.0) }
    }
}

/// Whether a value is NaN. `level` is one that this processor has.
pub(crate) fn has_nan(level: Level, x: &[f32]) -> bool {
    fast(level, HasNan(x)).unwrap_or_else(|job| job.0.iter().any(|v| v.is_nan()))
}

/// Halves to widen, as [`widen`] is given them.
struct Widen<'a>(*const u16, bool, &'a mut [f32]);

impl<V: Lanes> Job<V> for Widen<'_> {
    type Output = ();
    #[inline(always)]
    fn run(self, _: V) {
        // SAFETY: the lanes prove the instructions; `widen`'s caller promises the rest.
        unsafe { convert::widen::<V>(self.0, self.1, self.2) }
    }
}

/// Widens 16-bit floats.
///
/// # Safety
/// `from` must be readable for `to.len()` values; `level` must be one that this processor has.
pub(crate) unsafe fn widen(level: Level, from: *const u16, float16: bool, to: &mut [f32]) {
    if let Err(job) = fast(level, Widen(from, float16, to)) {
        // SAFETY: as the caller promises.
        unsafe { reference::widen(job.0, job.1, job.2) };
    }
}

/// Values to narrow, as [`narrow`] is given them.
struct Narrow<'a>(&'a [f32], bool, *mut u16);

impl<V: Lanes> Job<V> for Narrow<'_> {
    type Output = ();
    #[inline(always)]
    fn run(self, _: V) {
        // SAFETY: the lanes prove the instructions; `narrow`'s caller promises the rest.
        unsafe { convert::narrow::<V>(self.0, self.1, self.2) }
    }
}

/// Narrows to 16-bit floats.
///
/// # Safety
/// `to` must be writable for `from.len()` values, which nobody else may use meanwhile; `level` must be one that this
/// processor has.
pub(crate) unsafe fn narrow(level: Level, from: &[f32], float16: bool, to: *mut u16) {
    if let Err(job) = fast(level, Narrow(from, float16, to)) {
        // SAFETY: as the caller promises.
        unsafe { reference::narrow(job.0, job.1, job.2) };
    }
}
