//! Weights as tiles of bfloat16 limbs: looked up by code where the format has a table, otherwise decoded.

use std::arch::x86_64::*;
use std::ops::Range;

use super::inputs::input_limbs;
use super::{FOLD, STEP, UNIT, inside, upper, upper_halves};
use crate::codec::rows::{Rows, Unpacked};
use crate::codec::{DType, set_len};
use crate::error::Result;
use crate::format::Format;
use crate::linear::limbs::{MAX_LIMBS, decoded_limbs};
use crate::linear::x86::bf16_codes_vbmi::{Codes, Groups, Place, Table};
use crate::linear::x86::int8_limbs_vnni::is_moderate;
use crate::simd::Line;
use crate::simd::tiles::{LINE, ROWS, TILE, Tiles};

/// Columns decoded at a time by the codec, about.
const COLUMNS: usize = 512;
/// Columns looked up at a time.
const FEW_COLUMNS: usize = 64;
/// Columns whose weights, and those of a tile of inputs, stay in the L1 cache.
const SOME_COLUMNS: usize = 256;
/// Bytes of limbs of 32 rows of weights and of inputs that stay in the L1 cache, and beside sums that are not scaled yet. The
/// more columns, the more seldom AMX loads and stores tiles of sums.
const CACHED: usize = 40 << 10;
const CACHED_BESIDE_SUMS: usize = 24 << 10;
/// Largest magnitudes of a chunk of decoded weights, as the bits of float32, which neither overflow nor vanish when
/// multiplied with those of inputs.
const MODERATE: Range<u32> = (127 - 36) << 23..(127 + 60) << 23;

/// Limbs of the weights that are written.
fn weight_limbs(format: Format, table: Option<&Table>) -> usize {
    let decoded = decoded_limbs(format);
    table.map_or(decoded, |table| table.limbs(decoded))
}

/// Products of limbs for each product of a weight and an input of a dtype.
pub(in crate::linear) fn multiplications(format: Format, table: Option<&Table>, inputs: DType) -> usize {
    (0..weight_limbs(format, table)).map(|limb| input_limbs(inputs).min(MAX_LIMBS - limb)).sum()
}

/// The weights of a matrix, to be written as tiles.
pub(in crate::linear) struct Weights<'a> {
    scaled: &'a Rows<'a>,
    /// The same rows without the factor that is common to a whole row.
    rows: Rows<'a>,
    /// Table lookup of the same values, where the format has a table.
    codes: Option<Codes<'a>>,
    /// Rows.
    pub(in crate::linear) n: usize,
    /// Columns.
    pub(super) k: usize,
    pub(in crate::linear) limbs: usize,
    /// Columns written at a time.
    pub(super) chunk_columns: usize,
}

/// Scratch memory of one thread, for [`UNIT`] rows.
#[derive(Default)]
pub(super) struct Scratch {
    decoded: Vec<f32>,
    unpacked: Unpacked,
    pub(super) groups: Groups,
}

/// How sums of products are scaled before they are added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pieces {
    /// Not at all; a piece of so many columns is summed on its own.
    Plain(usize),
    /// A piece of so many columns is multiplied with the scale of its group, which has `group` columns.
    Scaled { columns: usize, group: usize },
}

impl Default for Pieces {
    fn default() -> Self {
        Self::Plain(FOLD)
    }
}

impl Pieces {
    /// Scales of a row of `k` columns.
    pub(super) const fn groups(self, k: usize) -> usize {
        match self {
            Self::Plain(_) => 0,
            Self::Scaled { group, .. } => k.div_ceil(group),
        }
    }
}

/// Most columns that fill groups of both lengths.
pub(super) const fn shared(a: usize, b: usize) -> usize {
    if b == 0 { a } else { shared(b, a % b) }
}

impl<'a> Weights<'a> {
    /// `n` rows of weights, for products with inputs of a dtype.
    pub(in crate::linear) fn new(
        format: Format,
        table: Option<&'a Table>,
        rows: &'a Rows<'a>,
        n: usize,
        tiles: Tiles,
        inputs: DType,
    ) -> Self {
        let codes = table.map(|table| Codes::new(table, rows));
        let limbs = weight_limbs(format, table);
        let chunk_columns = match tiles {
            _ if codes.is_none() => rows.cut(COLUMNS),
            Tiles::Amx => {
                let scaled = codes.as_ref().is_some_and(|codes| codes.table.scaled_after());
                let column = 2 * UNIT * (limbs + input_limbs(inputs));
                let fit = if scaled { CACHED_BESIDE_SUMS } else { CACHED } / column;
                if fit < 2 * FEW_COLUMNS { FEW_COLUMNS } else { SOME_COLUMNS.min(1 << fit.ilog2()) }
            }
            Tiles::Vectors => SOME_COLUMNS,
        };
        Self { scaled: rows, rows: rows.unscaled(), codes, n, k: rows.k, limbs, chunk_columns }
    }

    /// How the products of pieces of columns become one sum.
    pub(super) fn pieces(&self) -> Pieces {
        match self.codes.as_ref().map(|codes| codes.table).filter(|table| table.scaled_after()) {
            Some(table) => Pieces::Scaled { columns: shared(table.group, self.chunk_columns), group: table.group },
            // Where both a call of `put` and a fold end.
            None => Pieces::Plain(
                (1..).map(|i| i * self.chunk_columns).find(|end| end.is_multiple_of(FOLD)).unwrap_or(FOLD),
            ),
        }
    }

    /// Lines of the tiles of [`Self::each`] columns.
    pub(super) fn lines(&self) -> usize {
        self.chunk_columns.min(self.k).div_ceil(STEP) * UNIT * self.limbs
    }

    /// Reads the scales of `count` rows from `first` on, at most [`UNIT`]; the factors of their sums, or `None` where a
    /// magnitude is extreme.
    ///
    /// # Errors
    /// Where memory is short.
    ///
    /// # Safety
    /// The processor must have AVX-512 F, BW and VL.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    pub(super) unsafe fn begin(
        &self,
        first: usize,
        count: usize,
        scratch: &mut Scratch,
    ) -> Result<Option<[f32; UNIT]>> {
        if self.codes.is_none() {
            set_len(&mut scratch.decoded, self.chunk_columns.min(self.k).next_multiple_of(STEP))?;
        }
        let mut factors = [0.0f32; UNIT];
        for (r, factor) in factors.iter_mut().enumerate().take(count) {
            *factor = match &self.codes {
                Some(codes) => codes.factor(first + r),
                None => self.scaled.row_factor(first + r),
            };
            if !is_moderate(*factor) {
                return Ok(None);
            }
        }
        let fits = match &self.codes {
            // SAFETY: as the caller promises.
            Some(codes) => unsafe { codes.read(first, count, UNIT, &mut scratch.groups)? },
            None => true,
        };
        Ok(fits.then_some(factors))
    }

    /// Writes the tiles of `columns`, which begin at a multiple of `each` and end there or at the last, of the rows of
    /// [`Self::begin`], by panel, then 32 columns, then limb; false where a magnitude is extreme.
    ///
    /// # Safety
    /// The processor must have AVX-512 F, BW, VL and VBMI; [`Self::begin`] must have read the scales of the same rows into
    /// the same `scratch`.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi")]
    pub(super) unsafe fn put(
        &self,
        first: usize,
        count: usize,
        columns: Range<usize>,
        scratch: &mut Scratch,
        tiles: &mut [Line<u8, LINE>],
    ) -> bool {
        let Scratch { decoded, unpacked, groups } = scratch;
        let padded = columns.len().next_multiple_of(STEP);
        let panel = padded / STEP * self.limbs * TILE;
        assert!(tiles.len() * LINE >= UNIT / ROWS * panel);
        let base = tiles.as_mut_ptr().cast::<u8>();
        if let Some(codes) = &self.codes {
            let mut fits = true;
            for start in columns.clone().step_by(FEW_COLUMNS) {
                let tiles = (start - columns.start) / STEP * self.limbs;
                let columns = start..columns.end.min(start + FEW_COLUMNS);
                let place = Place { first, count, stride: UNIT, columns, limbs: self.limbs, panel };
                // SAFETY: as the caller promises; there are tiles for all panels.
                fits &= unsafe { codes.put(&place, groups, base.add(tiles * TILE)) };
            }
            return fits;
        }
        for r in 0..count {
            self.rows.decode(first + r, columns.clone(), decoded, unpacked);
            decoded[columns.len()..padded].fill(0.0);
            // SAFETY: as above.
            unsafe {
                if !inside(&decoded[..padded], &MODERATE) {
                    return false;
                }
                self.put_row(&decoded[..padded], base.add(r / ROWS * panel + r % ROWS * LINE));
            }
        }
        true
    }

    /// Writes the limbs of a row of weights to a row of its tiles.
    ///
    /// # Safety
    /// The processor must have AVX-512 F and BW; `to` must be a row of the first of as many tiles as the row has limbs of 32
    /// columns, which begin a cache line.
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn put_row(&self, row: &[f32], mut to: *mut u8) {
        // SAFETY: as the caller promises.
        unsafe {
            for columns in row.as_chunks::<STEP>().0 {
                let mut low = _mm512_loadu_ps(columns.as_ptr());
                let mut high = _mm512_loadu_ps(columns.as_ptr().add(16));
                for _ in 0..self.limbs {
                    _mm512_store_si512(to.cast(), upper_halves(low, high));
                    low = _mm512_sub_ps(low, upper(low));
                    high = _mm512_sub_ps(high, upper(high));
                    to = to.wrapping_add(TILE); // after the last, behind the tiles
                }
            }
        }
    }
}
