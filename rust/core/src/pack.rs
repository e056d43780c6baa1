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
    let mut done = 0;
    #[cfg(target_arch = "x86_64")]
    if level >= Level::Avx2 && width <= 16 {
        // SAFETY: the level, which this processor has, comes with BMI2.
        done = unsafe { bmi2::pack(codes, width, out) };
    }
    let _ = level;
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
    let mut done = 0;
    #[cfg(target_arch = "x86_64")]
    if level >= Level::Avx2 && width <= 16 {
        // SAFETY: the level, which this processor has, comes with BMI2.
        done = unsafe { bmi2::unpack(packed, width, codes) };
    }
    let _ = level;
    unpack_reference(&packed[done * width as usize / 8..], width, &mut codes[done..]);
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
mod bmi2 {
    //! Eight codes at a time with `pext` and `pdep`. Whole groups of eight only, and never past the end of a buffer.
    use super::Code;
    use std::arch::x86_64::{_pdep_u64, _pext_u64};

    /// Number of leading codes in whole groups of eight whose 8-byte accesses stay inside `bytes`.
    fn safe_count(len: usize, width: usize, bytes: usize) -> usize {
        let groups = len / 8;
        // Group g touches bytes g*width .. g*width + 8 (or + 16 for two words).
        let reach = if width <= 8 { 8 } else { width + 8 };
        if bytes < reach { 0 } else { groups.min((bytes - reach) / width + 1) * 8 }
    }

    /// Packs a prefix of `codes`; returns how many.
    ///
    /// # Safety
    /// The processor must have BMI2 and AVX2.
    #[target_feature(enable = "bmi2,avx2")]
    pub(super) fn pack<C: Code>(codes: &[C], width: u32, out: &mut [u8]) -> usize {
        let w = width as usize;
        let count = safe_count(codes.len(), w, out.len());
        if size_of::<C>() == 1 && w == 4 {
            // The common case as plain arithmetic on pairs, which the compiler vectorizes well.
            let (pairs, _) = codes[..count].as_chunks::<2>();
            for (byte, pair) in out.iter_mut().zip(pairs) {
                *byte = (pair[0].to_u32() | pair[1].to_u32() << 4) as u8;
            }
            return count;
        }
        let field = u64::MAX >> (64 - width);
        if size_of::<C>() == 1 {
            let mask = field * 0x0101_0101_0101_0101;
            for g in 0..count / 8 {
                // SAFETY: 8 one-byte codes at g*8 exist, and `safe_count` keeps the 8-byte store inside `out`.
                unsafe {
                    let word = codes.as_ptr().add(g * 8).cast::<u64>().read_unaligned();
                    out.as_mut_ptr().add(g * w).cast::<u64>().write_unaligned(_pext_u64(word, mask));
                }
            }
        } else if size_of::<C>() == 2 {
            let mask = field * 0x0001_0001_0001_0001;
            for g in 0..count / 8 {
                // SAFETY: 8 two-byte codes at g*8 exist, and `safe_count` keeps both stores inside `out`.
                unsafe {
                    let at = codes.as_ptr().add(g * 8).cast::<u64>();
                    let low = u128::from(_pext_u64(at.read_unaligned(), mask));
                    let high = u128::from(_pext_u64(at.add(1).read_unaligned(), mask));
                    let all = low | high << (4 * w);
                    let to = out.as_mut_ptr().add(g * w);
                    to.cast::<u64>().write_unaligned(all as u64);
                    // Bytes 8..width of the group; for width <= 8 the first word has it all.
                    if w > 8 {
                        to.add(8).cast::<u64>().write_unaligned((all >> 64) as u64);
                    }
                }
            }
        } else {
            return 0;
        }
        count
    }

    /// Unpacks a prefix of `codes`; returns how many.
    ///
    /// # Safety
    /// The processor must have BMI2 and AVX2.
    #[target_feature(enable = "bmi2,avx2")]
    pub(super) fn unpack<C: Code>(packed: &[u8], width: u32, codes: &mut [C]) -> usize {
        let w = width as usize;
        let count = safe_count(codes.len(), w, packed.len());
        if size_of::<C>() == 1 && w == 4 {
            let (pairs, _) = codes[..count].as_chunks_mut::<2>();
            for (pair, &byte) in pairs.iter_mut().zip(packed) {
                *pair = [C::from_u32(u32::from(byte & 15)), C::from_u32(u32::from(byte >> 4))];
            }
            return count;
        }
        let field = u64::MAX >> (64 - width);
        if size_of::<C>() == 1 {
            let mask = field * 0x0101_0101_0101_0101;
            for g in 0..count / 8 {
                // SAFETY: `safe_count` keeps the 8-byte load inside `packed`; 8 one-byte codes at g*8 exist.
                unsafe {
                    let word = packed.as_ptr().add(g * w).cast::<u64>().read_unaligned();
                    codes.as_mut_ptr().add(g * 8).cast::<u64>().write_unaligned(_pdep_u64(word, mask));
                }
            }
        } else if size_of::<C>() == 2 {
            let mask = field * 0x0001_0001_0001_0001;
            for g in 0..count / 8 {
                // SAFETY: `safe_count` keeps both loads inside `packed`; 8 two-byte codes at g*8 exist.
                unsafe {
                    let from = packed.as_ptr().add(g * w);
                    let mut all = u128::from(from.cast::<u64>().read_unaligned());
                    if w > 8 {
                        all |= u128::from(from.add(8).cast::<u64>().read_unaligned()) << 64;
                    }
                    let to = codes.as_mut_ptr().add(g * 8).cast::<u64>();
                    to.write_unaligned(_pdep_u64(all as u64, mask));
                    to.add(1).write_unaligned(_pdep_u64((all >> (4 * w)) as u64, mask));
                }
            }
        } else {
            return 0;
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
    fn the_first_element_takes_the_low_bits() {
        let mut out = [0u8; 2];
        pack(Level::Scalar, &[0x1u8, 0x2, 0x3, 0x4], 4, &mut out);
        assert_eq!(out, [0x21, 0x43]);
        let mut out = [0u8; 3];
        pack(Level::Scalar, &[0b1u8, 0b10, 0b100], 6, &mut out);
        assert_eq!(out, [0b1000_0001, 0b0100_0000, 0]);
    }
}
