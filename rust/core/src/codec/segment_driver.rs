//! The driver of a codec call. First it finds scales that need the whole tensor or very long rows. Then it runs segments of
//! the tensor in parallel. Segments depend on the shape alone, so results do not depend on the number of threads.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::bitpack::{Code, pack, unpack};
use crate::error::{Error, Result};
use crate::format::{Format, Granularity};
use crate::pool;
use crate::simd::Level;

use super::group_scales::{Scales, Work};
use super::scale::{CHUNK, Query, Stat, choose, nvfp4_tensor_scale};
use super::scale_search::Chooser;
use super::segments::{Piece, Segments};
use super::views::{Dst, Layout, Sizes, Src};
use super::{Nonfinite, Options, Packed, PackedMut, lanes, transpose};

/// Longest `:channel` row that one thread handles in one go; longer rows find their scale in parallel first.
const LONG_ROW: usize = 1 << 18;

/// All fraction bits, as they are stored: what a scale of the tensor may be.
static FRACTIONS: [u8; 256] = {
    let mut all = [0; 256];
    let mut code = 0;
    while code < 256 {
        all[code] = code as u8;
        code += 1;
    }
    all
};

/// Scales found before the segments run.
pub(super) struct Early {
    scales: transpose::Buffer,
    zeros: Vec<u16>,
}

/// Asks a query about `range` of the tensor, chunk by chunk in parallel, joining the answers in order.
fn ask(work: &Work, src: Src, range: Range<usize>, query: &Query) -> Result<Stat> {
    let chunks = range.len().div_ceil(CHUNK);
    let stats = pool::map(chunks, range.len() * src.dtype.bytes(), |i| {
        let start = range.start + i * CHUNK;
        let len = (range.end - start).min(CHUNK);
        // SAFETY: start + len <= range.end, which lies inside the buffer.
        unsafe { with_f32(src, start, len, work.level, |x| lanes::stat(work, x, query)) }
    })?;
    stats.into_iter().try_fold(Stat::default(), |all, stat| Ok(all.join(&stat?)))
}

/// Calls `f` with elements as float32: the buffer itself, or a widened copy.
///
/// # Safety
/// The range must lie inside the buffer, which must be alive and which nobody may write to meanwhile; `level` must be
/// one that this processor has.
unsafe fn with_f32<R>(src: Src, start: usize, len: usize, level: Level, f: impl FnOnce(&[f32]) -> R) -> Result<R> {
    let direct = src.f32_at(start);
    // SAFETY: as the caller promises; the pointer is used only where it means float32, and as a slice only when aligned.
    unsafe {
        if src.dtype == super::DType::F32 && direct.is_aligned() {
            return Ok(f(std::slice::from_raw_parts(direct, len)));
        }
        let mut wide = transpose::zeroed(len)?;
        src.widen(start, &mut wide, level);
        Ok(f(&wide))
    }
}

/// Chooses what must be known before the segments run, and sets `work` to use it.
fn choose_early(work: &mut Work, src: Src, layout: &Layout, sizes: &Sizes) -> Result<Option<Early>> {
    if matches!(work.chooser, Chooser::NvFp4) {
        work.tensor = nvfp4_tensor_scale(ask(work, src, 0..layout.len(), &Query::AbsMax)?.absmax);
        return Ok(None);
    }
    let row = match work.format.granularity() {
        Granularity::Tensor => layout.len(),
        Granularity::Channel if layout.k > LONG_ROW => layout.k,
        _ => return Ok(None),
    };
    let mut early = Early { scales: transpose::buffer(sizes.scales)?, zeros: transpose::zeroed(sizes.groups)? };
    let mut keeper = Work { scale_out: early.scales.as_mut_ptr(), zero_out: early.zeros.as_mut_ptr(), ..*work };
    keeper.scales = Scales::Choose;
    for group in 0..sizes.groups {
        let range = group * row..(group + 1) * row;
        let raw = choose(&work.chooser, work.float16(), |query| ask(work, src, range.clone(), query))?;
        keeper.store(group, &raw);
    }
    use_stored(work, &early);
    Ok(Some(early))
}

/// Points `work` at scales that outlive the call.
fn use_stored(work: &mut Work, early: &Early) {
    work.scales = Scales::Stored;
    work.scale_in = early.scales.as_ptr();
    work.zero_in = if work.format.has_zeros() { early.zeros.as_ptr() } else { std::ptr::null() };
}

/// Given or stored scales in the form the pieces read.
fn stored(format: Format, sizes: &Sizes, packed: &Packed<'_>, level: Level) -> Result<Early> {
    let mut zeros = transpose::zeroed::<u16>(if format.has_zeros() { sizes.groups } else { 0 })?;
    if sizes.zeros_row > 0 {
        for (row, bytes) in zeros.chunks_mut(sizes.groups_per_row).zip(packed.zeros.chunks(sizes.zeros_row)) {
            unpack(level, bytes, format.width(), row);
        }
    }
    Ok(Early { scales: transpose::buffer(0)?, zeros })
}

pub(super) fn first_level(packed: &Packed<'_>) -> f32 {
    packed.levels.first_chunk::<4>().map_or(0.0, |bytes| f32::from_le_bytes(*bytes))
}

/// Prepares the scales of `encode` and `quantize`: given ones, early ones, or none yet.
pub(super) fn prepare(
    work: &mut Work,
    src: Src,
    layout: &Layout,
    sizes: &Sizes,
    options: &Options<'_>,
) -> Result<Option<Early>> {
    work.rule = options.rule;
    work.nonfinite = options.nonfinite;
    work.largest = src.dtype.largest();
    work.given = options.given.is_some();
    match &options.given {
        None => choose_early(work, src, layout, sizes),
        Some(given) => {
            let early = stored(work.format, sizes, given, work.level)?;
            use_stored(work, &early);
            work.scale_in = given.scales.as_ptr();
            work.tensor = first_level(given);
            Ok(Some(early))
        }
    }
}

pub(crate) fn encode(
    src: Src,
    layout: Layout,
    format: Format,
    options: &Options<'_>,
    out: PackedMut<'_>,
    level: Level,
) -> Result<()> {
    let sizes = Sizes::new(format, &layout)?;
    let mut work = Work::new(format, level);
    if Guesses::suit(&work, options) {
        return encode_guessing(work, src, &layout, &sizes, options, out);
    }
    let early = prepare(&mut work, src, &layout, &sizes, options)?;
    let mut zeros = transpose::zeroed::<u16>(if format.has_zeros() { sizes.groups } else { 0 })?;
    if matches!(work.scales, Scales::Stored) {
        // Known scales are part of the result too.
        let known = match (&options.given, &early) {
            (Some(given), _) => given.scales,
            (None, Some(early)) => &early.scales,
            (None, None) => &[],
        };
        out.scales.copy_from_slice(known);
        if let Some(early) = &early {
            let count = zeros.len();
            zeros.copy_from_slice(&early.zeros[..count]);
        }
    }
    work.scale_out = out.scales.as_mut_ptr();
    work.zero_out = if format.has_zeros() { zeros.as_mut_ptr() } else { std::ptr::null_mut() };
    if format.has_levels() {
        out.levels.copy_from_slice(&work.tensor.to_le_bytes());
    }
    if format.width() == 8 {
        work.stream_to(out.codes.as_ptr(), layout.len());
    }
    let all = {
        let work = &work;
        move |_: usize, _: &Segments| Ok(Some(*work))
    };
    match format.width() {
        0..=8 => encode_segments::<u8>(&work, src, &layout, &sizes, out.codes, all)?,
        9..=16 => encode_segments::<u16>(&work, src, &layout, &sizes, out.codes, all)?,
        _ => encode_segments::<u32>(&work, src, &layout, &sizes, out.codes, all)?,
    }
    if sizes.zeros_row > 0 {
        for (row, bytes) in zeros.chunks(sizes.groups_per_row).zip(out.zeros.chunks_mut(sizes.zeros_row)) {
            pack(level, row, format.width(), bytes);
        }
    }
    Ok(())
}

/// Scales that are guessed while a tensor is read for the first time: its largest value so far chooses them.
struct Guesses {
    /// Of the segments so far.
    seen: Mutex<Stat>,
    /// The scale of each segment.
    used: Vec<AtomicU8>,
}

impl Guesses {
    /// True where one power of two belongs to the tensor: the first values of most tensors choose that of all. Where they do
    /// not, the segments before a larger value are encoded again.
    fn suit(work: &Work, options: &Options<'_>) -> bool {
        let whole = work.format.granularity() == Granularity::Tensor && options.given.is_none();
        whole && work.width == 8 && matches!(work.chooser, Chooser::Fraction { mse: false, .. })
    }

    /// The scale that the segments seen so far choose.
    fn scale(&self, work: &Work) -> Result<u8> {
        let seen = *self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(choose(&work.chooser, work.float16(), |_| Ok(seen))?.bits[0] as u8)
    }
}

/// [`encode`] where [`Guesses::suit`]: one pass over the values, and a second over those that it guessed wrong.
fn encode_guessing(
    mut work: Work,
    src: Src,
    layout: &Layout,
    sizes: &Sizes,
    options: &Options<'_>,
    out: PackedMut<'_>,
) -> Result<()> {
    (work.rule, work.nonfinite, work.largest) = (options.rule, options.nonfinite, src.dtype.largest());
    work.scales = Scales::Stored;
    work.stream_to(out.codes.as_ptr(), layout.len());
    let (format, count) = (work.format, Segments::new(layout, work.format, true, true).count());
    // Values whose sign cannot be stored are asked for their range, the others for their magnitude.
    let query =
        if matches!(work.chooser, Chooser::Fraction { signed: true, .. }) { Query::AbsMax } else { Query::Range };
    let guesses = Guesses { seen: Mutex::default(), used: (0..count).map(|_| AtomicU8::new(0)).collect() };
    encode_segments::<u8>(&work, src, layout, sizes, out.codes, |segment, segments| {
        let mut stat = Stat::default();
        for piece in segments.pieces(segment, format) {
            // SAFETY: pieces lie inside the buffer, whose length was checked against the layout.
            let found =
                unsafe { with_f32(src, piece.start, piece.len, work.level, |x| lanes::stat(&work, x, &query))? };
            stat = stat.join(&found);
        }
        let mut seen = guesses.seen.lock().unwrap_or_else(PoisonError::into_inner);
        *seen = seen.join(&stat);
        drop(seen);
        let scale = guesses.scale(&work)?;
        guesses.used[segment].store(scale, Ordering::Relaxed);
        Ok(Some(with_fraction(&work, scale)))
    })?;
    let scale = guesses.scale(&work)?;
    out.scales.fill(scale);
    encode_segments::<u8>(&work, src, layout, sizes, out.codes, |segment, _| {
        let wrong = guesses.used[segment].load(Ordering::Relaxed) != scale;
        Ok(wrong.then(|| with_fraction(&work, scale)))
    })
}

/// The same work with a scale of the tensor.
fn with_fraction(work: &Work, scale: u8) -> Work {
    Work { scale_in: &raw const FRACTIONS[usize::from(scale)], ..*work }
}

/// A pointer to bytes that several threads write disjoint ranges of.
#[derive(Clone, Copy)]
pub(crate) struct Shared(pub(crate) *mut u8);
// SAFETY: bytes belong to no thread, and whoever uses the pointer keeps to a range of its own.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    /// The pointer, through the wrapper that may cross threads.
    const fn get(&self) -> *mut u8 {
        self.0
    }
}

/// Encodes the segments, each with the work that `work_of` gives for it; none where that is `None`.
fn encode_segments<C: Code>(
    work: &Work,
    src: Src,
    layout: &Layout,
    sizes: &Sizes,
    codes: &mut [u8],
    work_of: impl Fn(usize, &Segments) -> Result<Option<Work>> + Sync,
) -> Result<()> {
    let format = work.format;
    let segments = Segments::new(layout, format, matches!(work.scales, Scales::Stored), true);
    let row_bytes = if segments.rows == 1 { sizes.codes } else { sizes.row_bytes };
    let base = Shared(codes.as_mut_ptr());
    let width = format.width() as usize;
    let refused = AtomicUsize::new(usize::MAX);
    pool::try_for_each(segments.count(), layout.len() * src.dtype.bytes(), |segment| {
        let Some(work) = &work_of(segment, &segments)? else { return Ok(()) };
        let mut scratch: Vec<C> = Vec::new();
        for piece in segments.pieces(segment, format) {
            let bytes = (piece.len * width).div_ceil(8);
            let at = piece.row * row_bytes + piece.column * width / 8;
            // SAFETY: pieces are disjoint, start on whole bytes, and end inside the row's bytes; the sizes of all
            // buffers were checked against the layout.
            unsafe {
                let packed = std::slice::from_raw_parts_mut(base.get().add(at), bytes);
                let direct = width == 8 * size_of::<C>() && size_of::<C>() == 1;
                if !direct {
                    transpose::set_len(&mut scratch, piece.len)?;
                }
                with_f32(src, piece.start, piece.len, work.level, |x| {
                    let failed = if direct {
                        let direct = std::slice::from_raw_parts_mut(packed.as_mut_ptr().cast::<C>(), piece.len);
                        lanes::encode_piece(work, x, piece.group, direct)
                    } else {
                        let failed = lanes::encode_piece(work, x, piece.group, &mut scratch);
                        pack(work.level, &scratch, work.width, packed);
                        failed
                    };
                    if let Some(position) = failed {
                        refused.fetch_min(piece.start + position, Ordering::Relaxed);
                    }
                })?;
            }
        }
        Ok(())
    })?;
    match refused.into_inner() {
        usize::MAX => Ok(()),
        position if work.nonfinite == Nonfinite::Error => {
            // SAFETY: the position was counted inside the tensor.
            let value = unsafe { src.get(position) };
            Err(Error::NonFinite { format: format.to_string(), position, value })
        }
        _ => Ok(()),
    }
}

/// What `quantize` tells of the values besides.
#[derive(Clone, Copy)]
pub(crate) enum Seen<'a> {
    /// Nothing.
    Nothing,
    /// Whether one is NaN.
    Nan(&'a AtomicBool),
    /// Which lie inside the range of their group, in memory for [`super::marks::marks_len`] bytes.
    Inside(Shared),
}

/// Quantizes.
pub(crate) fn quantize(
    src: Src,
    dst: Dst,
    layout: Layout,
    format: Format,
    options: &Options<'_>,
    level: Level,
    seen: Seen<'_>,
) -> Result<()> {
    let sizes = Sizes::new(format, &layout)?;
    let mut work = Work::new(format, level);
    let _early = prepare(&mut work, src, &layout, &sizes, options)?;
    if dst.dtype == super::DType::F32 && !std::ptr::eq(src.raw(), dst.raw()) {
        work.stream_to(dst.f32_at(0), layout.len());
    }
    let segments = Segments::new(&layout, format, matches!(work.scales, Scales::Stored), false);
    // NaN stays NaN, so that the results tell, while they are in the cache.
    let look = |values: &[f32]| match seen {
        Seen::Nan(nan) if lanes::has_nan(level, values) => nan.store(true, Ordering::Relaxed),
        _ => {}
    };
    let piece_from = |x: *const f32, out: *mut f32, piece: &Piece| match seen {
        // SAFETY: as below; where there are marks, pieces and groups are whole bytes of them, as `marks_len` demands.
        Seen::Inside(marks) => unsafe {
            lanes::mark_piece(&work, x, out, marks.get().add(piece.start / 8), piece.len, piece.group);
        },
        // SAFETY: pieces are disjoint, and `x` and `out` point to the piece's values and their place.
        _ => unsafe { lanes::quantize_piece(&work, x, out, piece.len, piece.group) },
    };
    pool::try_for_each(segments.count(), layout.len() * src.dtype.bytes(), |segment| {
        let mut wide: Vec<f32> = Vec::new();
        for piece in segments.pieces(segment, format) {
            // SAFETY: pieces are disjoint and inside both buffers, whose lengths were checked against the layout.
            unsafe {
                let (x, out) = (src.f32_at(piece.start), dst.f32_at(piece.start));
                if src.dtype == super::DType::F32 {
                    piece_from(x, out, &piece);
                    look(std::slice::from_raw_parts(out, piece.len));
                } else {
                    transpose::set_len(&mut wide, piece.len)?;
                    src.widen(piece.start, &mut wide, level);
                    // An infinity counts as the largest value of its dtype, which may lie inside the grid; NaN stays.
                    for value in &mut wide {
                        *value = value.clamp(-work.largest, work.largest);
                    }
                    let at = wide.as_mut_ptr();
                    piece_from(at.cast_const(), at, &piece);
                    look(&wide);
                    dst.narrow(piece.start, &wide, level);
                }
            }
        }
        Ok(())
    })
}

/// The work of a `decode`: scales are read from `packed`.
pub(crate) fn decode(packed: Packed<'_>, layout: Layout, format: Format, dst: Dst, level: Level) -> Result<()> {
    let sizes = Sizes::new(format, &layout)?;
    let mut work = Work::new(format, level);
    let early = stored(format, &sizes, &packed, level)?;
    use_stored(&mut work, &early);
    work.scale_in = packed.scales.as_ptr();
    work.tensor = first_level(&packed);
    if dst.dtype == super::DType::F32 && layout.inner == 1 {
        work.stream_to(dst.f32_at(0), layout.len());
    }
    match format.width() {
        0..=8 => decode_segments::<u8>(&work, packed.codes, &layout, &sizes, dst),
        9..=16 => decode_segments::<u16>(&work, packed.codes, &layout, &sizes, dst),
        _ => decode_segments::<u32>(&work, packed.codes, &layout, &sizes, dst),
    }
}

fn decode_segments<C: Code>(work: &Work, codes: &[u8], layout: &Layout, sizes: &Sizes, dst: Dst) -> Result<()> {
    let format = work.format;
    let segments = Segments::new(layout, format, true, true);
    let row_bytes = if segments.rows == 1 { sizes.codes } else { sizes.row_bytes };
    let width = format.width() as usize;
    pool::try_for_each(segments.count(), layout.len() * dst.dtype.bytes(), |segment| {
        let mut scratch: Vec<C> = Vec::new();
        let mut wide: Vec<f32> = Vec::new();
        for piece in segments.pieces(segment, format) {
            let at = piece.row * row_bytes + piece.column * width / 8;
            let packed = &codes[at..at + (piece.len * width).div_ceil(8)];
            // SAFETY: pieces are disjoint and inside the output; one-byte codes have no alignment.
            unsafe {
                let unpacked = if size_of::<C>() == 1 && width == 8 {
                    std::slice::from_raw_parts(packed.as_ptr().cast::<C>(), piece.len)
                } else {
                    transpose::set_len(&mut scratch, piece.len)?;
                    unpack(work.level, packed, work.width, &mut scratch);
                    &scratch
                };
                if dst.dtype == super::DType::F32 {
                    lanes::decode_piece(work, unpacked, dst.f32_at(piece.start), piece.group);
                } else {
                    transpose::set_len(&mut wide, piece.len)?;
                    lanes::decode_piece(work, unpacked, wide.as_mut_ptr(), piece.group);
                    dst.narrow(piece.start, &wide, work.level);
                }
            }
        }
        Ok(())
    })
}
