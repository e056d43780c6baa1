//! Rows in lanes: 64 columns at a time, as the mask has them.

use super::Settings;
use super::mask::GROUP;
use crate::codec::{DType, Dst, Src};
use crate::simd::{Job, LANES, Lanes};

/// What rows are read from and written to, `[rows, width]` each.
#[derive(Clone, Copy)]
pub(super) struct Forward<'a> {
    pub(super) x: Src,
    pub(super) branch: Src,
    pub(super) gain: Option<&'a [f32]>,
    pub(super) width: usize,
    pub(super) settings: Settings,
    pub(super) stream: Dst,
    pub(super) normed: Dst,
}

/// As [`Forward`], of the gradients.
#[derive(Clone, Copy)]
pub(super) struct Backward<'a> {
    pub(super) of_stream: Src,
    pub(super) of_normed: Src,
    pub(super) stream: Src,
    pub(super) gain: Option<&'a [f32]>,
    pub(super) width: usize,
    pub(super) settings: Settings,
    pub(super) of_x: Dst,
    pub(super) of_branch: Dst,
}

/// The rows from `first` on, as many as there are rates.
///
/// Who makes one promises that all memory of its call is there, and that nobody else writes to these rows meanwhile.
pub(super) struct ForwardRows<'a>(pub(super) Forward<'a>, pub(super) usize, pub(super) &'a mut [f32]);

/// The same of gradients; to `gains`, one a column or none, what the rows add to those of the gains.
pub(super) struct BackwardRows<'a> {
    pub(super) call: Backward<'a>,
    pub(super) first: usize,
    pub(super) rates: &'a [f32],
    pub(super) gains: &'a mut [f32],
}

/// Four vectors of consecutive numbers.
type Four<V> = [<V as Lanes>::F; 4];

/// # Safety
/// The processor must have the features of `V`; 64 numbers must be readable at `p`.
#[inline(always)]
unsafe fn load_whole<V: Lanes>(p: *const u8, dtype: DType) -> Four<V> {
    // SAFETY: as the caller promises.
    unsafe {
        let mut four = [V::splat(0.0); 4];
        for (w, v) in four.iter_mut().enumerate() {
            *v = match dtype {
                DType::F32 => V::load(p.cast::<f32>().add(LANES * w)),
                DType::F16 => V::load_f16(p.cast::<u16>().add(LANES * w)),
                DType::BF16 => V::from_bits(V::shl(V::load_u16(p.cast::<u16>().add(LANES * w)), 16)),
            };
        }
        four
    }
}

/// Rounds to nearest even and writes; returns what was written.
///
/// # Safety
/// The processor must have the features of `V`; 64 numbers must be writable at `p`.
#[inline(always)]
unsafe fn store_whole<V: Lanes>(p: *mut u8, dtype: DType, mut four: Four<V>) -> Four<V> {
    // SAFETY: as the caller promises.
    unsafe {
        for (w, v) in four.iter_mut().enumerate() {
            match dtype {
                DType::F32 => V::store(p.cast::<f32>().add(LANES * w), *v),
                DType::F16 => {
                    let to = p.cast::<u16>().add(LANES * w);
                    V::store_f16(to, *v);
                    *v = V::load_f16(to);
                }
                DType::BF16 => {
                    let bits = V::bits(*v);
                    let odd = V::and(V::shr(bits, 16), V::splat_i(1));
                    let nearest = V::add_i(bits, V::add_i(odd, V::splat_i(0x7fff)));
                    let quiet = V::or(bits, V::splat_i(0x40_0000));
                    let upper = V::shr(V::select_i(V::unordered(*v), quiet, nearest), 16);
                    V::store_u16(p.cast::<u16>().add(LANES * w), upper);
                    *v = V::from_bits(V::shl(upper, 16));
                }
            }
        }
        four
    }
}

/// Up to 64 numbers from element `at` on, zeros behind.
///
/// # Safety
/// The processor must have the features of `V`; `n` numbers, at most 64, must be readable.
#[inline(always)]
unsafe fn load<V: Lanes>(from: Src, at: usize, n: usize) -> Four<V> {
    // SAFETY: as the caller promises; the buffer holds 64 numbers of any dtype.
    unsafe {
        let p = from.raw().add(at * from.dtype.bytes());
        if n == GROUP {
            return load_whole::<V>(p, from.dtype);
        }
        let mut part = [0u8; 4 * GROUP];
        std::ptr::copy_nonoverlapping(p, part.as_mut_ptr(), n * from.dtype.bytes());
        load_whole::<V>(part.as_ptr(), from.dtype)
    }
}

/// As [`store_whole`], of the first `n` numbers.
///
/// # Safety
/// The processor must have the features of `V`; `n` numbers, at most 64, must be writable.
#[inline(always)]
unsafe fn store<V: Lanes>(to: Dst, at: usize, n: usize, four: Four<V>) -> Four<V> {
    // SAFETY: as the caller promises; the buffer holds 64 numbers of any dtype.
    unsafe {
        let p = to.raw().add(at * to.dtype.bytes());
        if n == GROUP {
            return store_whole::<V>(p, to.dtype, four);
        }
        let mut part = [0u8; 4 * GROUP];
        let written = store_whole::<V>(part.as_mut_ptr(), to.dtype, four);
        std::ptr::copy_nonoverlapping(part.as_ptr(), p, n * to.dtype.bytes());
        written
    }
}

/// Sum of all lanes: the vectors in pairs, then a tree.
///
/// # Safety
/// The processor must have the features of `V`.
#[inline(always)]
unsafe fn total<V: Lanes>(sums: Four<V>) -> f32 {
    // SAFETY: as the caller promises.
    unsafe { V::tree_sum(V::add(V::add(sums[0], sums[1]), V::add(sums[2], sums[3]))) }
}

/// The first columns of groups of 64, the group's number, and how many there are in it.
#[inline(always)]
fn groups(width: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    (0..width.div_ceil(GROUP)).map(move |group| (group * GROUP, group, (width - group * GROUP).min(GROUP)))
}

#[inline(always)]
fn source(numbers: &[f32]) -> Src {
    Src::new(numbers.as_ptr().cast(), DType::F32)
}

impl<V: Lanes> Job<V> for ForwardRows<'_> {
    type Output = ();
    #[inline(always)]
    fn run(self, _: V) {
        let Self(Forward { x, branch, gain, width, settings, stream, normed }, first, rates) = self;
        // SAFETY: the lanes prove the instructions; who makes the job promises the memory.
        unsafe {
            let (weight, written) = (V::splat(settings.weight), Src::new(stream.raw(), stream.dtype));
            for (row, rate) in (first..).zip(rates) {
                let mut sums = [V::splat(0.0); 4];
                for (column, group, n) in groups(width) {
                    let at = row * width + column;
                    let (mut added, mut sum) = (load::<V>(branch, at, n), load::<V>(x, at, n));
                    if let Some(mask) = settings.mask {
                        mask.apply::<V>(row, group, &mut added);
                    }
                    for (sum, added) in sum.iter_mut().zip(added) {
                        *sum = V::fma(weight, added, *sum);
                    }
                    sum = store::<V>(stream, at, n, sum);
                    for (squares, sum) in sums.iter_mut().zip(sum) {
                        *squares = V::fma(sum, sum, *squares);
                    }
                }
                *rate = 1.0 / (total::<V>(sums) / width as f32 + settings.epsilon).sqrt();
                let by = V::splat(*rate);
                for (column, _, n) in groups(width) {
                    let at = row * width + column;
                    let mut unit = load::<V>(written, at, n);
                    for unit in &mut unit {
                        *unit = V::mul(*unit, by);
                    }
                    if let Some(gain) = gain {
                        for (unit, gain) in unit.iter_mut().zip(load::<V>(source(gain), column, n)) {
                            *unit = V::mul(*unit, gain);
                        }
                    }
                    store::<V>(normed, at, n, unit);
                }
            }
        }
    }
}

impl<V: Lanes> Job<V> for BackwardRows<'_> {
    type Output = ();
    #[inline(always)]
    fn run(self, _: V) {
        let Self { call, first, rates, gains } = self;
        let Backward { of_stream, of_normed, stream, gain, width, settings, of_x, of_branch } = call;
        // SAFETY: as for the forward job; of gains there are as many as columns where there is a gain.
        unsafe {
            let weight = V::splat(settings.weight);
            for (row, rate) in (first..).zip(rates) {
                let (rate, mut sums) = (V::splat(*rate), [V::splat(0.0); 4]);
                for (column, _, n) in groups(width) {
                    let at = row * width + column;
                    let (mut of_unit, unit) = (load::<V>(of_normed, at, n), load::<V>(stream, at, n));
                    if let Some(gain) = gain {
                        let to = Dst::new(gains.as_mut_ptr().cast(), DType::F32);
                        let mut more = load::<V>(source(gains), column, n);
                        for ((more, of_normed), unit) in more.iter_mut().zip(of_unit).zip(unit) {
                            *more = V::add(*more, V::mul(of_normed, V::mul(unit, rate)));
                        }
                        store::<V>(to, column, n, more);
                        for (of_unit, gain) in of_unit.iter_mut().zip(load::<V>(source(gain), column, n)) {
                            *of_unit = V::mul(*of_unit, gain);
                        }
                    }
                    for ((sum, of_unit), unit) in sums.iter_mut().zip(of_unit).zip(unit) {
                        *sum = V::fma(of_unit, V::mul(unit, rate), *sum);
                    }
                }
                let inner = V::splat(total::<V>(sums) / width as f32);
                for (column, group, n) in groups(width) {
                    let at = row * width + column;
                    let (mut of_row, unit) = (load::<V>(of_normed, at, n), load::<V>(stream, at, n));
                    if let Some(gain) = gain {
                        for (of_row, gain) in of_row.iter_mut().zip(load::<V>(source(gain), column, n)) {
                            *of_row = V::mul(*of_row, gain);
                        }
                    }
                    for ((of_row, unit), of_stream) in of_row.iter_mut().zip(unit).zip(load::<V>(of_stream, at, n)) {
                        let across = V::fnmadd(V::mul(unit, rate), inner, *of_row);
                        *of_row = V::fma(across, rate, of_stream);
                    }
                    store::<V>(of_x, at, n, of_row);
                    for of_row in &mut of_row {
                        *of_row = V::mul(*of_row, weight);
                    }
                    if let Some(mask) = settings.mask {
                        mask.apply::<V>(row, group, &mut of_row);
                    }
                    store::<V>(of_branch, at, n, of_row);
                }
            }
        }
    }
}
