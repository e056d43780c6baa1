//! The dynamic map on lanes, with the bits of [`Map`].
//!
//! Levels and borders of a decade lie on a line. Where a lookup in a register is one instruction, codes and levels are
//! computed from the lines; elsewhere they are read from tables in memory, element by element. With AVX2 on a Zen 1 processor,
//! whose permutations are slow, an update takes 5.2 ns an element by tables and 7.3 ns on lines.

use crate::codec::dynamic_map::{BLOCK, DECADES, Map, SIGNED, UNSIGNED, divisor};
use crate::float::{LANES, exp2};
use crate::simd::{Job, Lanes, Level, fast};

/// Codes of a piece, the largest magnitudes of its blocks as little-endian float32, and its values.
struct Decode<'a, const SIGN: bool>(&'a [u8], &'a [u8], &'a mut [f32]);

impl<V: Lanes, const SIGN: bool> Job<V> for Decode<'_, SIGN> {
    type Output = ();
    #[inline(always)]
    fn run(self, _: V) {
        let map = map::<SIGN>();
        let blocks = self.0.chunks(BLOCK).zip(self.2.chunks_mut(BLOCK));
        for ((codes, values), largest) in blocks.zip(self.1.as_chunks().0) {
            let largest = f32::from_le_bytes(*largest);
            let whole = if V::ONE_LOOKUP { codes.len() / LANES * LANES } else { 0 };
            // SAFETY: the lanes prove the instructions.
            unsafe { decode_on_lines::<V, SIGN>(&codes[..whole], largest, &mut values[..whole]) };
            map.decode(&codes[whole..], largest, &mut values[whole..]);
        }
    }
}

/// As [`Decode`], the other way round.
struct Encode<'a, const SIGN: bool>(&'a mut [u8], &'a mut [u8], &'a [f32]);

impl<V: Lanes, const SIGN: bool> Job<V> for Encode<'_, SIGN> {
    type Output = ();
    #[inline(always)]
    fn run(self, _: V) {
        let map = map::<SIGN>();
        let mut scratch = [[0; BLOCK]; 2];
        let blocks = self.0.chunks_mut(BLOCK).zip(self.2.chunks(BLOCK));
        for ((codes, values), largest) in blocks.zip(self.1.as_chunks_mut().0) {
            // SAFETY: the lanes prove the instructions.
            let most = unsafe { largest_magnitude::<V>(values) };
            *largest = most.to_le_bytes();
            if !most.is_finite() {
                codes.fill(map.zero);
                continue;
            }
            let whole = values.len() / LANES * LANES;
            // SAFETY: as above.
            unsafe {
                if V::ONE_LOOKUP {
                    encode_on_lines::<V, SIGN>(&values[..whole], most, &mut codes[..whole]);
                } else {
                    encode_by_keys::<V, SIGN>(&values[..whole], most, &mut codes[..whole], &mut scratch);
                }
            }
            code_each(map, &values[whole..], most, &mut codes[whole..]);
        }
    }
}

/// Decodes a piece of whole blocks, of which the last may be short.
pub(crate) fn decode(level: Level, signed: bool, codes: &[u8], largest: &[u8], values: &mut [f32]) {
    let done = if signed {
        fast(level, Decode::<true>(codes, largest, values)).map_err(|job| (&SIGNED, job.0, job.1, job.2))
    } else {
        fast(level, Decode::<false>(codes, largest, values)).map_err(|job| (&UNSIGNED, job.0, job.1, job.2))
    };
    if let Err((map, codes, largest, values)) = done {
        let blocks = codes.chunks(BLOCK).zip(values.chunks_mut(BLOCK));
        for ((codes, values), &largest) in blocks.zip(largest.as_chunks().0) {
            map.decode(codes, f32::from_le_bytes(largest), values);
        }
    }
}

/// Encodes a piece of whole blocks, of which the last may be short.
pub(crate) fn encode(level: Level, signed: bool, codes: &mut [u8], largest: &mut [u8], values: &[f32]) {
    let done = if signed {
        fast(level, Encode::<true>(codes, largest, values)).map_err(|job| (&SIGNED, job.0, job.1, job.2))
    } else {
        fast(level, Encode::<false>(codes, largest, values)).map_err(|job| (&UNSIGNED, job.0, job.1, job.2))
    };
    if let Err((map, codes, largest, values)) = done {
        let blocks = codes.chunks_mut(BLOCK).zip(values.chunks(BLOCK));
        for ((codes, values), largest) in blocks.zip(largest.as_chunks_mut().0) {
            *largest = map.encode(values, codes).to_le_bytes();
        }
    }
}

const fn map<const SIGN: bool>() -> &'static Map {
    if SIGN { &SIGNED } else { &UNSIGNED }
}

/// NaN where a value is.
///
/// # Safety
/// The processor must have the features of `V`.
#[inline(always)]
unsafe fn largest_magnitude<V: Lanes>(values: &[f32]) -> f32 {
    let (lines, rest) = values.as_chunks::<LANES>();
    // Magnitudes are ordered as their bits are, and those of NaN are the largest.
    // SAFETY: as the caller promises; a line holds 16 values.
    let mut most = unsafe {
        let mut most = V::splat_i(0);
        for line in lines {
            most = V::max_i(most, V::bits(V::abs(V::load(line.as_ptr()))));
        }
        V::reduce_max(most)
    };
    for value in rest {
        most = most.max(value.abs().to_bits());
    }
    let most = f32::from_bits(most);
    if most.is_nan() { f32::NAN } else { most }
}

/// The codes of values as the reference finds them.
fn code_each(map: &Map, values: &[f32], largest: f32, codes: &mut [u8]) {
    for (code, value) in codes.iter_mut().zip(values) {
        *code = map.code(value / divisor(largest));
    }
}

/// Bits of `|unit|`, whose borders below it are counted. One more for a negative number, since on a border it belongs to the
/// level farther from 0. At least [`FLOOR`], which has no border below it.
///
/// # Safety
/// The processor must have the features of `V`.
#[inline(always)]
unsafe fn magnitude_bits<V: Lanes, const SIGN: bool>(unit: V::F) -> V::I {
    // SAFETY: as the caller promises.
    unsafe {
        let bits = V::bits(unit);
        let bits = if SIGN { V::add_i(V::and(bits, V::splat_i(i32::MAX)), V::shr(bits, 31)) } else { bits };
        V::max_i(bits, V::splat_i(FLOOR as i32))
    }
}

/// Bits of 2^-23, below the lowest border of either map.
const FLOOR: u32 = 0x3400_0000;

// --- tables ---

/// For the upper 16 bits of a magnitude, of which the lower 12 tell all above [`FLOOR`] apart: the number of borders below
/// it, shifted left by 16, to which `0xffff - lower half of a border` is added where one begins with the same bits: the sum
/// with the lower half of a magnitude carries where that lies above the border. Neighbouring levels differ by more than a
/// 128th, so that no two borders begin with the same bits.
struct Keys([u32; 4096]);

static SIGNED_KEYS: Keys = Keys::of(&SIGNED);
static UNSIGNED_KEYS: Keys = Keys::of(&UNSIGNED);

impl Keys {
    const fn of(map: &Map) -> Self {
        let (mut keys, mut count) = ([0; 4096], 0);
        let zero = map.zero as usize;
        let mut upper = FLOOR >> 16;
        while upper <= 1f32.to_bits() >> 16 {
            while zero + count < 255 && map.borders[zero + count].to_bits() < upper << 16 {
                count += 1;
            }
            let entry = &mut keys[(upper & 0xfff) as usize];
            *entry = (count as u32) << 16;
            if zero + count < 255 && map.borders[zero + count].to_bits() >> 16 == upper {
                *entry += 0xffff - (map.borders[zero + count].to_bits() & 0xffff);
            }
            upper += 1;
        }
        Self(keys)
    }

    /// The entries of magnitudes. Compiled without the instructions of a level: with them, compilers put vectors together
    /// from single elements, which takes longer.
    #[inline(never)]
    fn look_up(&self, magnitudes: &[u32], entries: &mut [u32]) {
        for (entry, magnitude) in entries.iter_mut().zip(magnitudes) {
            *entry = self.0[(magnitude >> 16 & 0xfff) as usize];
        }
    }
}

/// Encodes whole lanes of a block with a finite largest magnitude. `magnitudes` and `entries` are written over.
///
/// # Safety
/// The processor must have the features of `V`; values and codes must be as many, a multiple of 16 and no more than a block.
#[inline(always)]
unsafe fn encode_by_keys<V: Lanes, const SIGN: bool>(
    values: &[f32],
    largest: f32,
    codes: &mut [u8],
    [magnitudes, entries]: &mut [[u32; BLOCK]; 2],
) {
    let keys = if SIGN { &SIGNED_KEYS } else { &UNSIGNED_KEYS };
    let count = values.len();
    // SAFETY: as the caller promises; magnitudes and entries hold a block.
    unsafe {
        let over = V::splat(divisor(largest));
        for i in (0..count).step_by(LANES) {
            let magnitude = magnitude_bits::<V, SIGN>(V::div(V::load(values.as_ptr().add(i)), over));
            V::store(magnitudes.as_mut_ptr().add(i).cast(), V::from_bits(magnitude));
        }
        keys.look_up(&magnitudes[..count], &mut entries[..count]);
        for i in (0..count).step_by(LANES) {
            let magnitude = V::bits(V::load(magnitudes.as_ptr().add(i).cast()));
            let entry = V::bits(V::load(entries.as_ptr().add(i).cast()));
            let above = V::shr(V::add_i(entry, V::and(magnitude, V::splat_i(0xffff))), 16);
            let code = if SIGN {
                let sign = V::sar(V::bits(V::load(values.as_ptr().add(i))), 31);
                let number = V::sub_i(V::xor(above, sign), sign);
                // There is no level -1.
                V::max_i(V::add_i(number, V::splat_i(i32::from(SIGNED.zero))), V::splat_i(0))
            } else {
                above
            };
            V::store_u8(codes.as_mut_ptr().add(i), code);
        }
    }
}

// --- lines ---

/// A number of levels that lies on its line nearer than this to a border is left to the reference. Lines are wrong by less
/// than a quarter of it.
const DOUBT: f32 = 1.0 / 8192.0;

/// Levels and borders as lines, by the low four bits of an index.
struct Lines {
    /// By the exponent of `n`, which is the number of levels above 0 (signed) or one more, a level is
    /// `(n * rise + start) + (n * rise_rest + start_rest)`. The first sum is exact; the second has the digits that it lacks.
    rise: [f32; LANES],
    start: [f32; LANES],
    rise_rest: [f32; LANES],
    start_rest: [f32; LANES],
    /// By bits 24 to 27 of a magnitude: its segment unless it lies above `end`, else the next one. Segments are the level 0,
    /// the decades and the level 1; no two of them end in numbers whose bits 24 to 27 are the same. Integers, kept as bits.
    segment: [f32; LANES],
    end: [f32; LANES],
    /// By segment, for magnitude `u`: the integer nearest to `min(u * slope + offset, last)` is the number of levels above 0.
    slope: [f32; LANES],
    offset: [f32; LANES],
    last: [f32; LANES],
}

static SIGNED_LINES: Lines = Lines::of(&SIGNED);
static UNSIGNED_LINES: Lines = Lines::of(&UNSIGNED);

impl Lines {
    const fn of(map: &Map) -> Self {
        const NONE: [f32; LANES] = [0.0; LANES];
        let (mut rise, mut start, mut rise_rest, mut start_rest) = (NONE, NONE, NONE, NONE);
        let (mut slope, mut offset, mut last) = (NONE, NONE, NONE);
        let zero = map.zero as usize;
        let signed = zero > 0;
        let top = 255 - zero;
        // Of what `n` is more than the number of levels, and the exponent of the parts of the first decade.
        let more = if signed { 0 } else { 1 };
        let mut ends = [0; 8];
        ends[0] = map.borders[zero].to_bits();
        let mut decade = 0;
        while decade < DECADES.len() {
            let exponent = decade + more;
            let (parts, unit) = ((1u32 << exponent) as f64, DECADES[decade]);
            let (exact_rise, exact_start) = (0.9 * unit / parts, unit * (0.45 / parts - 0.8));
            // Both are cut to multiples of this one: 15 bits of the rise, whose products with 8 bits fit into a float32.
            let grain = f64::from_bits(exact_rise.to_bits() & 0x7ff0_0000_0000_0000) * exp2(-14);
            let at = (127 + exponent) % LANES;
            rise[at] = ((exact_rise / grain) as i64 as f64 * grain) as f32;
            start[at] = ((exact_start / grain) as i64 as f64 * grain) as f32;
            rise_rest[at] = (exact_rise - rise[at] as f64) as f32;
            start_rest[at] = (exact_start - start[at] as f64) as f32;
            // Borders are where parts meet; rounding to nearest counts them when halves are taken off. The last level of a
            // decade goes on up to the end.
            let highest = (2 << exponent) - 1 - more;
            let mut line = (parts / (0.9 * unit), parts * (8.0 / 9.0) - more as f64 - 0.5);
            if decade == 0 && !signed {
                // The lower of two levels begins at the middle between 0 and itself.
                let (low, high) = (map.borders[0] as f64, map.borders[1] as f64);
                line = (1.0 / (high - low), 0.5 - low / (high - low));
            }
            (slope[decade + 1], offset[decade + 1]) = (line.0 as f32, line.1 as f32);
            last[decade + 1] = highest as f32;
            ends[decade + 1] = map.borders[zero + highest].to_bits();
            decade += 1;
        }
        (offset[decade + 1], last[decade + 1]) = (top as f32, top as f32);
        start[(127 + (top + more).ilog2() as usize) % LANES] = 1.0;
        let (segment, end) = Self::segments(&ends);
        Self { rise, start, rise_rest, start_rest, segment, end, slope, offset, last }
    }

    /// Segments and their ends by bits 24 to 27 of a magnitude from [`FLOOR`] to 1.
    const fn segments(ends: &[u32; 8]) -> ([f32; LANES], [f32; LANES]) {
        let (mut segment, mut end) = ([0.0; LANES], [0.0; LANES]);
        let (mut upper, mut passed) = (FLOOR >> 24, 0);
        while upper <= 1f32.to_bits() >> 24 {
            while passed < ends.len() && ends[passed] >> 24 < upper {
                passed += 1;
            }
            let at = (upper % LANES as u32) as usize;
            segment[at] = f32::from_bits(passed as u32);
            end[at] = f32::from_bits(if passed < ends.len() { ends[passed] } else { i32::MAX as u32 });
            upper += 1;
        }
        (segment, end)
    }
}

/// Decodes whole lanes of a block.
///
/// # Safety
/// The processor must have the features of `V`; both slices must hold as many elements, a multiple of 16.
#[inline(always)]
unsafe fn decode_on_lines<V: Lanes, const SIGN: bool>(codes: &[u8], largest: f32, values: &mut [f32]) {
    let lines = if SIGN { &SIGNED_LINES } else { &UNSIGNED_LINES };
    // SAFETY: as the caller promises.
    unsafe {
        let (rise, start) = (V::load(lines.rise.as_ptr()), V::load(lines.start.as_ptr()));
        let (rise_rest, start_rest) = (V::load(lines.rise_rest.as_ptr()), V::load(lines.start_rest.as_ptr()));
        let largest = V::splat(largest);
        for i in (0..codes.len()).step_by(LANES) {
            let code = V::load_u8(codes.as_ptr().add(i));
            let number = V::to_f(V::sub_i(code, V::splat_i(if SIGN { i32::from(SIGNED.zero) } else { -1 })));
            let n = if SIGN { V::abs(number) } else { number };
            // The half changes the exponent of 0 alone, whose line is 0.
            let index = V::shr(V::bits(if SIGN { V::add(n, V::splat(0.5)) } else { n }), 23);
            let rest = V::fma(n, V::lookup(rise_rest, index), V::lookup(start_rest, index));
            let level = V::add(V::fma(n, V::lookup(rise, index), V::lookup(start, index)), rest);
            let level = if SIGN { V::with_sign(level, number) } else { level };
            V::store(values.as_mut_ptr().add(i), V::mul(level, largest));
        }
    }
}

/// Encodes whole lanes of a block with a finite largest magnitude.
///
/// # Safety
/// The processor must have the features of `V`; both slices must hold as many elements, a multiple of 16.
#[inline(always)]
unsafe fn encode_on_lines<V: Lanes, const SIGN: bool>(values: &[f32], largest: f32, codes: &mut [u8]) {
    let lines = if SIGN { &SIGNED_LINES } else { &UNSIGNED_LINES };
    // SAFETY: as the caller promises.
    unsafe {
        let over = V::splat(divisor(largest));
        let (segment, end) = (V::load(lines.segment.as_ptr()), V::load(lines.end.as_ptr()));
        let (slope, offset) = (V::load(lines.slope.as_ptr()), V::load(lines.offset.as_ptr()));
        let last = V::load(lines.last.as_ptr());
        for i in (0..values.len()).step_by(LANES) {
            let value = V::load(values.as_ptr().add(i));
            let magnitude = magnitude_bits::<V, SIGN>(V::div(value, over));
            let upper = V::shr(magnitude, 24);
            let above = V::sar(V::sub_i(V::bits(V::lookup(end, upper)), magnitude), 31);
            let index = V::sub_i(V::bits(V::lookup(segment, upper)), above);
            let line = V::fma(V::from_bits(magnitude), V::lookup(slope, index), V::lookup(offset, index));
            let line = V::min(line, V::lookup(last, index));
            let number = V::round(line);
            if V::any(V::lt(V::splat(0.5 - DOUBT), V::abs(V::sub(line, number)))) {
                code_each(map::<SIGN>(), &values[i..i + LANES], largest, &mut codes[i..i + LANES]);
                continue;
            }
            let code = if SIGN {
                let code = V::add(V::with_sign(number, value), V::splat(f32::from(SIGNED.zero)));
                // There is no level -1.
                V::max(code, V::splat(0.0))
            } else {
                number
            };
            V::store_u8(codes.as_mut_ptr().add(i), V::to_i(code));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::Scalar;

    /// Both directions on lines, with instructions that would read tables, too.
    struct OnLines<'a, const SIGN: bool>(&'a [f32], &'a [u8]);

    impl<V: Lanes, const SIGN: bool> Job<V> for OnLines<'_, SIGN> {
        type Output = (Vec<u8>, Vec<f32>);
        #[inline(always)]
        fn run(self, _: V) -> Self::Output {
            let (mut codes, mut values) = (vec![0; self.0.len()], vec![0.0; self.1.len()]);
            // SAFETY: the lanes prove the instructions; both tests give whole lanes.
            unsafe {
                encode_on_lines::<V, SIGN>(self.0, 1.0, &mut codes);
                decode_on_lines::<V, SIGN>(self.1, 0.75, &mut values);
            }
            (codes, values)
        }
    }

    /// The borders and what lies around them, and values of every binade, up to 1.
    fn units(map: &Map) -> Vec<f32> {
        let around =
            map.borders.iter().chain(&map.levels).flat_map(|v| (-40..=40).map(|i| v.to_bits().wrapping_add_signed(i)));
        let all = (0..0x3f80u32).map(|upper| upper << 16 | upper.wrapping_mul(0x9e37) & 0xffff);
        let mut units: Vec<f32> = around.chain(all).map(f32::from_bits).filter(|unit| unit.abs() <= 1.0).collect();
        if map.zero > 0 {
            units.extend(units.clone().iter().map(|unit| -unit));
        }
        units.retain(|unit| map.zero > 0 || unit.is_sign_positive());
        units.resize(units.len().next_multiple_of(BLOCK), 0.0);
        units
    }

    #[test]
    fn codes_and_levels_are_those_of_the_map_on_lines_with_all_instructions() {
        let all: Vec<u8> = (0..=255).collect();
        for map in [&SIGNED, &UNSIGNED] {
            let units = units(map);
            let (mut codes, mut values) = (vec![0; units.len()], vec![0.0; 256]);
            code_each(map, &units, 1.0, &mut codes);
            map.decode(&all, 0.75, &mut values);
            let mut found = vec![if map.zero > 0 {
                OnLines::<true>(&units, &all).run(Scalar)
            } else {
                OnLines::<false>(&units, &all).run(Scalar)
            }];
            for level in Level::available() {
                found.extend(if map.zero > 0 {
                    fast(level, OnLines::<true>(&units, &all)).ok()
                } else {
                    fast(level, OnLines::<false>(&units, &all)).ok()
                });
            }
            for (found_codes, found_values) in found {
                let wrong = (0..units.len()).find(|&i| found_codes[i] != codes[i]);
                assert!(wrong.is_none(), "{:?}", wrong.map(|i| (units[i], found_codes[i], codes[i])));
                assert!(values.iter().zip(&found_values).all(|(a, b)| a.to_bits() == b.to_bits()));
            }
        }
    }

    #[test]
    fn a_quarter_of_the_doubt_covers_the_errors_of_a_line() {
        for (map, lines) in [(&SIGNED, &SIGNED_LINES), (&UNSIGNED, &UNSIGNED_LINES)] {
            let borders = &map.borders[usize::from(map.zero)..];
            for (number, &border) in borders.iter().enumerate() {
                let at = (border.to_bits() >> 24) as usize % LANES;
                let (end, segment) = (lines.end[at].to_bits(), lines.segment[at].to_bits() as usize);
                let segment = segment + usize::from(border.to_bits() > end);
                if border.to_bits() == end {
                    continue; // Compared exactly.
                }
                let line = border.mul_add(lines.slope[segment], lines.offset[segment]);
                let wanted = number as f32 + 0.5;
                assert!((line - wanted).abs() < DOUBT / 4.0, "{border}: {line}, {wanted}");
            }
        }
    }

    #[test]
    fn blocks_of_all_kinds_have_the_codes_of_the_map_at_every_level() {
        let kinds: [fn(usize) -> f32; 12] = [
            |_| 0.0,
            |i| if i == 3 { -0.0 } else { 0.0 },
            |i| i as f32 - 100.0,
            |i| (i as f32 - 100.0) * 1e-40,
            |i| (i as f32 - 100.0) * 3e36,
            |i| (i as f32 * 0.37).sin() * 10f32.powi(-(i as i32 % 9)),
            |i| f32::from_bits(i as u32),
            |_| -7.5,
            |i| if i == 0 { f32::MAX } else { f32::MIN_POSITIVE },
            |i| if i % 77 == 5 { f32::INFINITY } else { 1.0 },
            |i| if i % 77 == 5 { f32::NAN } else { -1.0 },
            |i| [f32::NAN, f32::NEG_INFINITY, 0.5][i % 3],
        ];
        for (signed, map) in [(true, &SIGNED), (false, &UNSIGNED)] {
            for (kind, value) in kinds.iter().enumerate() {
                for count in [1, 7, 16, 255, 256, 257, 300, 1024] {
                    let values: Vec<f32> = (0..count).map(|i| if signed { value(i) } else { value(i).abs() }).collect();
                    let blocks = count.div_ceil(BLOCK);
                    let (mut wanted, mut largest) = (vec![0; count], vec![0.0; blocks]);
                    for ((x, codes), largest) in values.chunks(BLOCK).zip(wanted.chunks_mut(BLOCK)).zip(&mut largest) {
                        *largest = map.encode(x, codes);
                    }
                    let largest: Vec<u8> = largest.iter().flat_map(|v| v.to_le_bytes()).collect();
                    for level in Level::available() {
                        let (mut codes, mut scales) = (vec![1; count], vec![1; 4 * blocks]);
                        encode(level, signed, &mut codes, &mut scales, &values);
                        assert!(codes == wanted && scales == largest, "{kind}, {count}, {level:?}");
                        let (mut back, mut reference) = (vec![1.0; count], vec![1.0; count]);
                        decode(level, signed, &codes, &scales, &mut back);
                        decode(Level::Scalar, signed, &codes, &scales, &mut reference);
                        let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
                        assert!(back.iter().zip(&reference).all(same), "{kind}, {count}, {level:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn values_that_are_not_finite_take_their_block_along_and_no_other() {
        for (signed, zero) in [(true, SIGNED.zero), (false, UNSIGNED.zero)] {
            for (bad, kept) in
                [(f32::INFINITY, f32::INFINITY), (f32::NEG_INFINITY, f32::INFINITY), (f32::NAN, f32::NAN)]
            {
                let mut values = vec![0.5; 2 * BLOCK];
                values[BLOCK - 1] = bad;
                let (mut codes, mut scales, mut back) = (vec![0; 2 * BLOCK], vec![0; 8], vec![0.0; 2 * BLOCK]);
                encode(Level::current(), signed, &mut codes, &mut scales, &values);
                decode(Level::current(), signed, &codes, &scales, &mut back);
                assert!(codes[..BLOCK].iter().all(|&code| code == zero) && scales[..4] == kept.to_le_bytes());
                assert!(back[..BLOCK].iter().all(|v| v.is_nan()) && back[BLOCK..].iter().all(|&v| v == 0.5));
            }
        }
    }
}
