//! Dense packing: codes of W bits as a little-endian bit stream per row, each row from a byte boundary. FORMATS.md section 5.

use crate::error::{Result, ShapeError};
use crate::format::packed_bytes;
use crate::simd::Level;

/// An unpacked code: u8 up to 8 bits, u16 up to 16, u32 above.
pub(crate) trait Code: Copy + Default + Send + Sync {
    fn from_u32(code: u32) -> Self;
    fn to_u32(self) -> u32;
}

macro_rules! impl_code {
    ($($t:ty),*) => {$(
        impl Code for $t {
            #[inline(always)]
            fn from_u32(code: u32) -> Self {
                code as Self
            }
            #[inline(always)]
            fn to_u32(self) -> u32 {
                self as u32
            }
        }
    )*};
}
impl_code!(u8, u16, u32);

fn check(rows: usize, k: usize, width: u32, codes: usize, bytes: usize) -> Result<usize> {
    if !(1..=32).contains(&width) {
        return Err(ShapeError::CodeWidth { width }.into());
    }
    let row = packed_bytes(k, width)?;
    if rows.checked_mul(k) != Some(codes) || rows.checked_mul(row) != Some(bytes) {
        return Err(ShapeError::PackedRows { rows, columns: k, width, row_bytes: row, codes, bytes }.into());
    }
    Ok(row)
}

/// Packs rows of `k` codes of `width` bits, each row from a byte boundary; higher bits of a code are dropped.
///
/// # Errors
/// [`crate::Error::Shape`] where a length does not fit or `width` is outside 1..32.
pub fn pack_rows(codes: &[u32], rows: usize, k: usize, width: u32, out: &mut [u8]) -> Result<()> {
    let row = check(rows, k, width, codes.len(), out.len())?;
    if k == 0 {
        return Ok(());
    }
    let mask = u32::MAX >> (32 - width);
    for (codes, out) in codes.chunks(k).zip(out.chunks_mut(row)) {
        let masked: Vec<u32> = codes.iter().map(|code| code & mask).collect();
        pack(Level::current(), &masked, width, out);
    }
    Ok(())
}

/// Unpacks rows of `k` codes of `width` bits.
///
/// # Errors
/// As for [`pack_rows`].
pub fn unpack_rows(packed: &[u8], rows: usize, k: usize, width: u32, codes: &mut [u32]) -> Result<()> {
    let row = check(rows, k, width, codes.len(), packed.len())?;
    if k == 0 {
        return Ok(());
    }
    for (codes, packed) in codes.chunks_mut(k).zip(packed.chunks(row)) {
        unpack(Level::current(), packed, width, codes);
    }
    Ok(())
}

/// Packs `codes` of `width` bits into `out`, which holds `ceil(len * width / 8)` bytes; the padding bits become zero.
/// `level` is one that this processor has, as [`Level::current`]'s is.
pub(crate) fn pack<C: Code>(level: Level, codes: &[C], width: u32, out: &mut [u8]) {
    if cfg!(target_endian = "little") && width as usize == 8 * size_of::<C>() {
        out[..size_of_val(codes)].copy_from_slice(as_bytes(codes));
        return;
    }
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the level is one of this processor.
    let done = if level >= Level::Avx2 && width <= 16 { unsafe { avx2::pack(codes, width, out) } } else { 0 };
    #[cfg(not(target_arch = "x86_64"))]
    let (done, _) = (0, level);
    pack_reference(&codes[done..], width, &mut out[done * width as usize / 8..]);
}

/// The bytes of codes that fill their type.
fn as_bytes<C: Code>(codes: &[C]) -> &[u8] {
    // SAFETY: codes are u8, u16 or u32, without padding, and the length is that of the slice in bytes.
    unsafe { std::slice::from_raw_parts(codes.as_ptr().cast(), size_of_val(codes)) }
}

fn pack_reference<C: Code>(codes: &[C], width: u32, out: &mut [u8]) {
    let (mut bits, mut held, mut at) = (0u64, 0, 0);
    for &code in codes {
        bits |= u64::from(code.to_u32()) << held;
        held += width;
        while held >= 8 {
            out[at] = bits as u8;
            at += 1;
            bits >>= 8;
            held -= 8;
        }
    }
    if held > 0 {
        out[at] = bits as u8;
    }
}

/// Unpacks `codes.len()` codes of `width` bits from `packed`. `level` is one that this processor has.
pub(crate) fn unpack<C: Code>(level: Level, packed: &[u8], width: u32, codes: &mut [C]) {
    if cfg!(target_endian = "little") && width as usize == 8 * size_of::<C>() {
        let bytes = size_of_val(codes);
        // SAFETY: codes are u8, u16 or u32, which any bits are one of, and the slice covers exactly their bytes.
        unsafe { std::slice::from_raw_parts_mut(codes.as_mut_ptr().cast::<u8>(), bytes) }
            .copy_from_slice(&packed[..bytes]);
        return;
    }
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the level is one of this processor.
    let done = if level >= Level::Avx2 && width <= 16 { unsafe { avx2::unpack(packed, width, codes) } } else { 0 };
    #[cfg(not(target_arch = "x86_64"))]
    let (done, _) = (0, level);
    unpack_reference(&packed[done * width as usize / 8..], width, &mut codes[done..]);
}

/// Unpacks two's complement codes of at most 8 bits. `level` is one that this processor has.
pub(crate) fn unpack_signed(level: Level, packed: &[u8], width: u32, codes: &mut [i8]) {
    let bytes = bytes_mut(codes);
    #[cfg(target_arch = "x86_64")]
    if level >= Level::Avx2 && width < 8 {
        // SAFETY: the level is one of this processor.
        return unsafe { avx2::unpack_bytes::<true>(packed, width, bytes) };
    }
    unpack(level, packed, width, bytes);
    let sign = 1i8 << (width - 1);
    codes.iter_mut().for_each(|code| *code = (*code ^ sign).wrapping_sub(sign));
}

/// Codes as the bytes they are.
pub(crate) fn bytes_mut(codes: &mut [i8]) -> &mut [u8] {
    // SAFETY: i8 and u8 have the same size and alignment, and every bit pattern is one of both.
    unsafe { std::slice::from_raw_parts_mut(codes.as_mut_ptr().cast::<u8>(), codes.len()) }
}

fn unpack_reference<C: Code>(packed: &[u8], width: u32, codes: &mut [C]) {
    let mask = u64::from(u32::MAX >> (32 - width));
    let (mut bits, mut held, mut at) = (0u64, 0, 0);
    for code in codes {
        while held < width {
            bits |= u64::from(packed[at]) << held;
            at += 1;
            held += 8;
        }
        *code = C::from_u32((bits & mask) as u32);
        bits >>= width;
        held -= width;
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    //! Runs of eight codes, which are W bytes: 32 codes of bytes, or 16 of two bytes, at a time. Codes that become bytes are
    //! each cut out of a window of 16 bits; else halves of what a lane holds move apart, or together, in two or three steps.
    //! Never past the end of a buffer.
    //!
    //! `pdep` and `pext` take all steps at once, but some 300 cycles for it on Zen 1 and Zen 2.
    use std::arch::x86_64::*;

    use super::Code;

    /// Codes of a run.
    const RUN: usize = 8;
    /// Bytes that are read or written together.
    const HALF: usize = 16;
    /// Codes of bytes that are packed or unpacked together.
    const BYTES: usize = 4 * RUN;

    /// Number of leading codes, `each` together, two parts of whose packed bytes are accessed [`HALF`] at a time inside
    /// `bytes`.
    fn safe_count(len: usize, width: usize, bytes: usize, each: usize) -> usize {
        let packed = each / RUN * width;
        let reach = packed / 2 + HALF;
        if bytes < reach { 0 } else { (len / each).min((bytes - reach) / packed + 1) * each }
    }

    /// Codes of one type that are packed together; 0 for types that are not packed here.
    const fn together<C>() -> usize {
        match size_of::<C>() {
            1 => BYTES,
            2 => 2 * RUN,
            _ => 0,
        }
    }

    /// `low` bits of each field of `size` bits.
    ///
    /// # Safety
    /// The processor must have AVX2.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn fields(low: u32, size: u32) -> __m256i {
        let one = (1u64 << low) - 1;
        _mm256_set1_epi64x((0..64 / size).fold(0, |all, field| all | one << (field * size)) as i64)
    }

    /// A step: in fields of `size` bits, the upper of two numbers of `width` bits moves to the upper half.
    ///
    /// # Safety
    /// The processor must have AVX2.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn apart(v: __m256i, width: u32, size: u32) -> __m256i {
        let (low, by) = (fields(width, size), |count: u32| _mm_cvtsi32_si128(count as i32));
        let moved = _mm256_sll_epi64(v, by(size / 2 - width));
        _mm256_or_si256(_mm256_and_si256(v, low), _mm256_and_si256(moved, _mm256_sll_epi64(low, by(size / 2))))
    }

    /// The reverse of [`apart`]; what is beyond the numbers is dropped.
    ///
    /// # Safety
    /// The processor must have AVX2.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn joined(v: __m256i, width: u32, size: u32) -> __m256i {
        let (low, by) = (fields(width, size), |count: u32| _mm_cvtsi32_si128(count as i32));
        let moved = _mm256_srl_epi64(v, by(size / 2 - width));
        _mm256_or_si256(_mm256_and_si256(v, low), _mm256_and_si256(moved, _mm256_sll_epi64(low, by(width))))
    }

    /// Byte shuffle of both halves of a register, by a function of the byte: which byte comes there, if any.
    ///
    /// # Safety
    /// The processor must have AVX2.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn shuffle(from: impl Fn(usize) -> Option<usize>) -> __m256i {
        let half: [u8; HALF] = std::array::from_fn(|i| from(i).map_or(0x80, |byte| byte as u8));
        // SAFETY: sixteen bytes are read.
        unsafe { _mm256_broadcastsi128_si256(_mm_loadu_si128(half.as_ptr().cast())) }
    }

    /// Packs a prefix of `codes`; returns how many.
    ///
    /// # Safety
    /// The processor must have AVX2.
    #[target_feature(enable = "avx2")]
    pub(super) fn pack<C: Code>(codes: &[C], width: u32, out: &mut [u8]) -> usize {
        let (w, each) = (width as usize, together::<C>());
        if each == 0 || w >= 8 * size_of::<C>() {
            return 0;
        }
        let count = safe_count(codes.len(), w, out.len(), each);
        if size_of::<C>() == 1 && w == 4 {
            // The common case as plain arithmetic on pairs, which the compiler vectorizes well.
            let (pairs, _) = codes[..count].as_chunks::<2>();
            for (byte, pair) in out.iter_mut().zip(pairs) {
                *byte = (pair[0].to_u32() & 15 | pair[1].to_u32() << 4) as u8;
            }
            return count;
        }
        // Two lanes of a half follow each other, after so many bytes, and half a byte of codes of two bytes.
        let (lane, odd) = if size_of::<C>() == 1 { (w, 0) } else { (w / 2, 4 * (w as i64 & 1)) };
        let first = shuffle(|i| (i < 8).then_some(i));
        let second = shuffle(|i| (lane..lane + 8).contains(&i).then(|| 8 + i - lane));
        let odd = _mm256_set_epi64x(odd, 0, odd, 0);
        for (at, codes) in codes[..count].chunks_exact(each).enumerate() {
            // SAFETY: the codes are 32 bytes, and `safe_count` keeps both stores inside `out`.
            unsafe {
                let mut v = _mm256_loadu_si256(codes.as_ptr().cast());
                if size_of::<C>() == 1 {
                    v = joined(v, width, 16);
                    v = joined(v, 2 * width, 32);
                    v = joined(v, 4 * width, 64);
                } else {
                    v = joined(v, width, 32);
                    v = joined(v, 2 * width, 64);
                }
                let v = _mm256_sllv_epi64(v, odd);
                let v = _mm256_or_si256(_mm256_shuffle_epi8(v, first), _mm256_shuffle_epi8(v, second));
                let to = out.as_mut_ptr().add(at * each / RUN * w);
                _mm_storeu_si128(to.cast(), _mm256_castsi256_si128(v));
                _mm_storeu_si128(to.add(each / RUN * w / 2).cast(), _mm256_extracti128_si256::<1>(v));
            }
        }
        count
    }

    /// Cuts [`BYTES`] codes of fewer than 8 bits out of their packed bytes.
    struct Cutter {
        /// Bytes of a lane that hold each of its first eight codes, two for a code, and of the others.
        windows: [__m256i; 2],
        /// By code: a power of two that moves it to the upper end of its window.
        up: __m256i,
        down: __m128i,
        /// Bytes from the first half of the codes to the second one.
        half: usize,
    }

    impl Cutter {
        /// # Safety
        /// The processor must have AVX2.
        #[target_feature(enable = "avx2")]
        fn new(width: u32) -> Self {
            let w = width as usize;
            let window = |run: usize| shuffle(|i| Some(run * w + i / 2 * w / 8 + i % 2));
            let up: [u16; RUN] = std::array::from_fn(|code| 1 << (16 - w - code * w % 8));
            // SAFETY: sixteen bytes are read.
            let up = unsafe { _mm256_broadcastsi128_si256(_mm_loadu_si128(up.as_ptr().cast())) };
            Self { windows: [window(0), window(1)], up, down: _mm_cvtsi32_si128(16 - width as i32), half: 2 * w }
        }

        /// The codes from a byte on; with `SIGNED`, two's complement.
        ///
        /// # Safety
        /// The processor must have AVX2. `from`, and what is `half` bytes behind it, must have [`HALF`] bytes.
        #[inline]
        #[target_feature(enable = "avx2")]
        unsafe fn cut<const SIGNED: bool>(&self, from: *const u8) -> __m256i {
            // SAFETY: as the caller promises.
            let [first, second] = unsafe { [from, from.add(self.half)].map(|half| _mm_loadu_si128(half.cast())) };
            let both = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(first), second);
            let [a, b] = self.windows.map(|window| _mm256_mullo_epi16(_mm256_shuffle_epi8(both, window), self.up));
            if SIGNED {
                _mm256_packs_epi16(_mm256_sra_epi16(a, self.down), _mm256_sra_epi16(b, self.down))
            } else {
                _mm256_packus_epi16(_mm256_srl_epi16(a, self.down), _mm256_srl_epi16(b, self.down))
            }
        }
    }

    /// Unpacks codes of fewer than 8 bits; with `SIGNED`, two's complement.
    ///
    /// # Safety
    /// The processor must have AVX2.
    #[target_feature(enable = "avx2")]
    pub(super) fn unpack_bytes<const SIGNED: bool>(packed: &[u8], width: u32, codes: &mut [u8]) {
        let (w, cutter) = (width as usize, Cutter::new(width));
        let count = safe_count(codes.len(), w, packed.len(), BYTES);
        let (whole, rest) = codes.split_at_mut(count);
        for (at, codes) in whole.as_chunks_mut::<BYTES>().0.iter_mut().enumerate() {
            // SAFETY: `safe_count` keeps both loads inside `packed`; the codes are 32 bytes.
            unsafe {
                let all = cutter.cut::<SIGNED>(packed.as_ptr().add(at * BYTES / RUN * w));
                _mm256_storeu_si256(codes.as_mut_ptr().cast(), all);
            }
        }
        for (codes, from) in rest.chunks_mut(BYTES).zip(packed[count / RUN * w..].chunks(BYTES / RUN * w)) {
            let (mut bytes, mut all) = ([0; BYTES / RUN * 8 + HALF], [0; BYTES]);
            bytes[..from.len()].copy_from_slice(from);
            // SAFETY: there are as many bytes as two loads read, and the codes are 32 bytes.
            unsafe { _mm256_storeu_si256(all.as_mut_ptr().cast(), cutter.cut::<SIGNED>(bytes.as_ptr())) };
            codes.copy_from_slice(&all[..codes.len()]);
        }
    }

    /// Unpacks a prefix of `codes`; returns how many.
    ///
    /// # Safety
    /// The processor must have AVX2.
    #[target_feature(enable = "avx2")]
    pub(super) fn unpack<C: Code>(packed: &[u8], width: u32, codes: &mut [C]) -> usize {
        let (w, each) = (width as usize, together::<C>());
        if each == 0 || w >= 8 * size_of::<C>() {
            return 0;
        }
        if size_of::<C>() == 1 {
            // SAFETY: codes of one byte are u8.
            let bytes = unsafe { std::slice::from_raw_parts_mut(codes.as_mut_ptr().cast(), codes.len()) };
            unpack_bytes::<false>(packed, width, bytes);
            return codes.len();
        }
        let count = safe_count(codes.len(), w, packed.len(), each);
        let (lane, odd) = (w / 2, 4 * (w as i64 & 1));
        let lanes = shuffle(|i| Some(if i < 8 { i } else { lane + i - 8 }));
        let odd = _mm256_set_epi64x(odd, 0, odd, 0);
        for (at, codes) in codes[..count].chunks_exact_mut(each).enumerate() {
            // SAFETY: `safe_count` keeps both loads inside `packed`; the codes are 32 bytes.
            unsafe {
                let from = packed.as_ptr().add(at * each / RUN * w);
                let second = _mm_loadu_si128(from.add(each / RUN * w / 2).cast());
                let v = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(_mm_loadu_si128(from.cast())), second);
                let mut v = _mm256_srlv_epi64(_mm256_shuffle_epi8(v, lanes), odd);
                v = apart(v, 2 * width, 64);
                v = apart(v, width, 32);
                _mm256_storeu_si256(codes.as_mut_ptr().cast(), v);
            }
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip<C: Code + PartialEq + std::fmt::Debug>(width: u32, len: usize) {
        let mask = u32::MAX >> (32 - width);
        let codes: Vec<C> =
            (0..len as u32).map(|i| C::from_u32(i.wrapping_mul(0x9e37_79b9).rotate_left(7) & mask)).collect();
        let bytes = packed_bytes(len, width).unwrap();
        let mut reference = vec![0u8; bytes];
        pack_reference(&codes, width, &mut reference);
        let mut packed = vec![0xffu8; bytes];
        pack(Level::detect(), &codes, width, &mut packed);
        assert_eq!(packed, reference, "width {width}, {len} codes");
        let mut back = vec![C::default(); len];
        unpack_reference(&reference, width, &mut back);
        assert_eq!(back, codes, "width {width}, {len} codes");
        back.fill(C::default());
        unpack(Level::detect(), &reference, width, &mut back);
        assert_eq!(back, codes, "width {width}, {len} codes");
    }

    #[test]
    fn packing_and_unpacking_are_inverse_for_all_widths_and_lengths() {
        for len in (0..70).chain([255, 256, 1000]) {
            for width in 1..=8 {
                round_trip::<u8>(width, len);
            }
            for width in 9..=16 {
                round_trip::<u16>(width, len);
            }
            for width in 17..=32 {
                round_trip::<u32>(width, len);
            }
        }
    }

    #[test]
    fn codes_with_a_sign_unpack_to_numbers_with_it() {
        for len in (0..70).chain([255, 1000]) {
            for width in 1..=8 {
                let codes: Vec<u8> = (0..len as u32).map(|i| (i.wrapping_mul(0x9e37_79b9) >> 13) as u8).collect();
                let mut packed = vec![0; packed_bytes(len, width).unwrap()];
                pack_rows(&codes.iter().map(|&c| c.into()).collect::<Vec<_>>(), 1, len, width, &mut packed).unwrap();
                let number = |&code: &u8| (code as i8) << (8 - width) >> (8 - width);
                let wanted: Vec<i8> = codes.iter().map(number).collect();
                for level in [Level::Scalar, Level::detect()] {
                    let mut found = vec![0; len];
                    unpack_signed(level, &packed, width, &mut found);
                    assert_eq!(found, wanted, "{width} bits, {len} codes, {level:?}");
                }
            }
        }
    }

    #[test]
    fn the_first_element_takes_the_low_bits() {
        let mut out = [0u8; 2];
        pack(Level::Scalar, &[0x1u8, 0x2, 0x3, 0x4], 4, &mut out);
        assert_eq!(out, [0x21, 0x43]);
        let mut out = [0u8; 3];
        pack(Level::Scalar, &[0b1u8, 0b10, 0b100], 6, &mut out);
        assert_eq!(out, [0b1000_0001, 0b0100_0000, 0]);
    }
}
