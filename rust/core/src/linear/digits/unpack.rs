//! Packed codes to digits in the cache: 64 codes at a time, whatever their width.

use std::arch::x86_64::*;

use super::plan::{MOST_DIGITS, Plan};
use crate::linear::tiles::{LINE, ROWS};

/// Bytes of a tile of digits.
pub(super) const TILE: usize = ROWS * LINE;

/// In which order codes lie in a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// 64 columns after the other.
    Natural,
    /// The even ones of 128 columns, then the odd ones: the nibbles as they come.
    Split,
}

impl Order {
    /// The column that lies at a place of the tiles.
    pub(super) const fn column(self, place: usize) -> usize {
        match self {
            Self::Natural => place,
            Self::Split => place / 128 * 128 + place % 64 * 2 + place / 64 % 2,
        }
    }
}

/// The registers that turn codes into digits.
pub(super) struct Unpacker<'a> {
    plan: &'a Plan,
    /// Bytes of packed codes in 64.
    step: usize,
}

impl<'a> Unpacker<'a> {
    pub(super) const fn new(plan: &'a Plan) -> Self {
        Self { plan, step: plan.width as usize * 8 }
    }

    /// Writes the digits of 16 rows of weights as tiles: by digit (`most` tiles apart), then 64 columns.
    ///
    /// `rows` point at the first code; `bytes` are what is left of a row, and no more is read. Whole tiles are written;
    /// digits beyond the row have no meaning.
    ///
    /// # Safety
    /// The processor must have AVX-512 F, BW and VBMI; each row must have `bytes` bytes, and `to` room for the tiles.
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
    pub(super) unsafe fn run(
        &self,
        order: Order,
        rows: &[*const u8; ROWS],
        bytes: usize,
        tiles: usize,
        most: usize,
        to: *mut u8,
    ) {
        // SAFETY: as the caller promises.
        unsafe {
            match (order, self.plan.width) {
                (Order::Split, _) => self.nibbles(rows, bytes, tiles, most, to),
                (_, 1..=6) if self.plan.digits == 1 => self.narrow::<1>(rows, bytes, tiles, most, to),
                (_, 1..=6) if self.plan.digits == 2 => self.narrow::<2>(rows, bytes, tiles, most, to),
                (_, 1..=6) if self.plan.digits == 3 => self.narrow::<3>(rows, bytes, tiles, most, to),
                (_, 1..=6) => self.narrow::<4>(rows, bytes, tiles, most, to),
                _ if self.plan.bytes => self.copy(rows, bytes, tiles, to),
                _ => self.wide(rows, bytes, tiles, most, to),
            }
        }
    }

    /// Mask of the bytes of one step that lie before the end of the row.
    fn mask(&self, step: usize, each: usize, bytes: usize) -> u64 {
        let left = bytes.saturating_sub(step * each).min(each);
        if left == 0 { 0 } else { u64::MAX >> (64 - left) }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
    unsafe fn copy(&self, rows: &[*const u8; ROWS], bytes: usize, tiles: usize, to: *mut u8) {
        for tile in 0..tiles {
            let mask = self.mask(tile, LINE, bytes);
            for (r, row) in rows.iter().enumerate() {
                // SAFETY: as `run`; the mask keeps inside the row.
                unsafe {
                    let codes = _mm512_maskz_loadu_epi8(mask, row.add(tile * LINE).cast());
                    _mm512_store_si512(to.add(tile * TILE + r * LINE).cast(), codes);
                }
            }
        }
    }

    /// Nibbles in the order [`Order::Split`]; `tiles` is even.
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
    unsafe fn nibbles(&self, rows: &[*const u8; ROWS], bytes: usize, tiles: usize, most: usize, to: *mut u8) {
        // SAFETY: as `run`; masks keep inside the rows.
        unsafe {
            let tables = self.tables();
            for span in 0..tiles / 2 {
                let mask = self.mask(span, LINE, bytes);
                for (r, row) in rows.iter().enumerate() {
                    let even = _mm512_maskz_loadu_epi8(mask, row.add(span * LINE).cast());
                    let odd = _mm512_srli_epi16::<4>(even);
                    for (digit, table) in tables.iter().enumerate().take(self.plan.digits) {
                        let to = to.add((digit * most + 2 * span) * TILE + r * LINE);
                        // Tables repeat every 16 entries: higher bits of an index do not matter.
                        _mm512_store_si512(to.cast(), _mm512_permutexvar_epi8(even, *table));
                        _mm512_store_si512(to.add(TILE).cast(), _mm512_permutexvar_epi8(odd, *table));
                    }
                }
            }
        }
    }

    /// Digits of codes of at most six bits.
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
    unsafe fn narrow<const DIGITS: usize>(
        &self,
        rows: &[*const u8; ROWS],
        bytes: usize,
        tiles: usize,
        most: usize,
        to: *mut u8,
    ) {
        // SAFETY: as `run`; masks keep inside the rows.
        unsafe {
            let (gather, shifts) = self.fields();
            let tables = self.tables();
            for tile in 0..tiles {
                let mask = self.mask(tile, self.step, bytes);
                for (r, row) in rows.iter().enumerate() {
                    let packed = _mm512_maskz_loadu_epi8(mask, row.add(tile * self.step).cast());
                    let codes = _mm512_multishift_epi64_epi8(shifts, _mm512_permutexvar_epi8(gather, packed));
                    for (digit, table) in tables.iter().enumerate().take(DIGITS) {
                        let to = to.add((digit * most + tile) * TILE + r * LINE);
                        _mm512_store_si512(to.cast(), _mm512_permutexvar_epi8(codes, *table));
                    }
                }
            }
        }
    }

    /// Digits of codes of seven and eight bits.
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
    unsafe fn wide(&self, rows: &[*const u8; ROWS], bytes: usize, tiles: usize, most: usize, to: *mut u8) {
        // SAFETY: as `run`; masks keep inside the rows; tables hold 256 bytes.
        unsafe {
            let (gather, shifts) = self.fields();
            for tile in 0..tiles {
                let mask = self.mask(tile, self.step, bytes);
                for (r, row) in rows.iter().enumerate() {
                    let mut codes = _mm512_maskz_loadu_epi8(mask, row.add(tile * self.step).cast());
                    if self.plan.width < 8 {
                        codes = _mm512_multishift_epi64_epi8(shifts, _mm512_permutexvar_epi8(gather, codes));
                    }
                    let high = _mm512_movepi8_mask(codes);
                    for (digit, table) in self.plan.tables.iter().enumerate().take(self.plan.digits) {
                        let quarter = |i: usize| _mm512_loadu_si512(table.as_ptr().add(64 * i).cast());
                        let below = _mm512_permutex2var_epi8(quarter(0), codes, quarter(1));
                        let above = _mm512_permutex2var_epi8(quarter(2), codes, quarter(3));
                        let to = to.add((digit * most + tile) * TILE + r * LINE);
                        _mm512_store_si512(to.cast(), _mm512_mask_blend_epi8(high, below, above));
                    }
                }
            }
        }
    }

    /// Which bytes hold each eight codes, and where in them each code begins.
    #[target_feature(enable = "avx512f")]
    unsafe fn fields(&self) -> (__m512i, __m512i) {
        let (mut gather, mut shifts) = ([0u8; 64], [0u8; 64]);
        let width = self.plan.width as usize;
        for i in 0..64 {
            gather[i] = (i / 8 * width + i % 8) as u8 & 63;
            shifts[i] = (i % 8 * width) as u8;
        }
        // SAFETY: both arrays hold 64 bytes.
        unsafe { (_mm512_loadu_si512(gather.as_ptr().cast()), _mm512_loadu_si512(shifts.as_ptr().cast())) }
    }

    #[target_feature(enable = "avx512f")]
    unsafe fn tables(&self) -> [__m512i; MOST_DIGITS] {
        let mut tables = [_mm512_setzero_si512(); MOST_DIGITS];
        for (to, table) in tables.iter_mut().zip(&self.plan.tables) {
            // SAFETY: tables hold 256 bytes, and repeat with the width.
            *to = unsafe { _mm512_loadu_si512(table.as_ptr().cast()) };
        }
        tables
    }
}
