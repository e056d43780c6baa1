//! Products of float32 with AMX, of factors as limbs, sums of bfloat16 numbers: almost float32.
//!
//! A float32 is the sum of two bfloat16 up to a relative error of 2^-17: its upper half, and the rounded remainder. Weights
//! of at most 16 significant bits, such as mxint16, lose nothing. Two such sums have four products; the one of both lower
//! halves, at most 2^-16 of the largest, is left out. Accumulators are float32.

use std::arch::asm;
use std::arch::x86_64::*;
use std::marker::PhantomData;
use std::ops::Range;

use octavo_core::simd::amx::Session;

use super::int8::ByteProducts;
use super::tiles_amx::{Amx, Place, SUMS, TILE, tiles};
use super::{Arithmetic, Block, Factors, Input, Matrix, PANELS, ROWS, Row, Weights};
use crate::fused::lanes::{Avx512, Floats, Halves, Job, LANES, Proven};

/// Inputs that one step of AMX takes.
const STEP: usize = 32;
/// The upper and the lower half.
const PARTS: usize = 2;

/// Float32 as limbs of bfloat16 on AMX.
#[derive(Clone, Copy, Debug)]
pub(in crate::fused) struct Limbs(Amx);

impl Limbs {
    /// The instructions, if machine and system allow them.
    pub(in crate::fused) fn new() -> Option<Self> {
        Amx::new().map(Self)
    }
}

/// Weights by block, then step of 32 inputs, then half, then panel, then pair of inputs: a line holds a panel's weights
/// of a pair of inputs, by column. Sixteen lines are a tile.
#[derive(Debug)]
pub(in crate::fused) struct LimbsWeights;

/// Nearest bfloat16, ties to even, of a finite number that is not close to infinity.
pub(super) fn nearest(v: f32) -> u16 {
    let bits = v.to_bits();
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

/// Upper and lower half.
pub(super) fn halves(v: f32) -> [u16; PARTS] {
    let upper = nearest(v);
    [upper, nearest(v - f32::from_bits(u32::from(upper) << 16))]
}

impl Weights for LimbsWeights {
    type Code = f32;
    type Number = f32;
    type Line = Halves;

    fn depth(columns: usize) -> usize {
        columns.div_ceil(STEP) * PARTS * TILE
    }

    fn pack(matrix: &Matrix<f32>, panels: Range<usize>, lines: &mut Vec<Halves>) {
        for step in 0..matrix.columns.div_ceil(STEP) {
            for part in 0..PARTS {
                for panel in panels.clone() {
                    lines.extend((0..TILE).map(|pair| line(matrix, panel, step * STEP + 2 * pair, part)));
                }
            }
        }
    }

    fn correction(_row: &[f32]) -> f32 {
        0.0
    }
}

/// The upper or lower halves of a panel's weights of two inputs.
fn line(matrix: &Matrix<f32>, panel: usize, column: usize, part: usize) -> Halves {
    let mut line = Halves::default();
    for (i, to) in line.0.iter_mut().enumerate() {
        *to = halves(matrix.at(panel * LANES + i / 2, column + i % 2))[part];
    }
    line
}

/// Rows of bfloat16: for each step 32 upper halves, then 32 lower ones.
#[derive(Debug)]
pub(in crate::fused) struct LimbsRows {
    steps: usize,
    lines: Vec<Halves>,
}

/// A row of [`LimbsRows`], in vectors of 16 halves.
#[derive(Debug)]
pub(in crate::fused) struct LimbsRow<'a> {
    first: *mut [u16; LANES],
    steps: usize,
    row: PhantomData<&'a mut [Halves]>,
}

impl Input<Avx512> for LimbsRows {
    type Row<'a> = LimbsRow<'a>;

    fn new(rows: usize, lines: usize) -> Self {
        let steps = (lines * LANES).div_ceil(STEP);
        Self { steps, lines: vec![Halves::default(); rows.next_multiple_of(ROWS) * steps * PARTS] }
    }
    #[inline(always)]
    fn row(&mut self, row: usize) -> LimbsRow<'_> {
        let row = &mut self.lines[row * self.steps * PARTS..][..self.steps * PARTS];
        LimbsRow { first: row.as_mut_ptr().cast(), steps: self.steps, row: PhantomData }
    }
    fn copy(&mut self, from: usize, to: usize) {
        let stride = self.steps * PARTS;
        self.lines.copy_within(from * stride..(from + 1) * stride, to * stride);
    }
}

impl Row<Avx512> for LimbsRow<'_> {
    #[inline(always)]
    fn put(&mut self, l: Avx512, line: usize, v: __m512, _inverse: __m512) {
        let (step, half) = (line / 2, line % 2);
        assert!(step < self.steps);
        // SAFETY: the row, borrowed for as long as `self` lives, holds four vectors for each step. Rows are made for
        // `Limbs` alone, which exists only where the instructions do.
        unsafe {
            let upper = _mm512_cvtneps_pbh(v);
            let lower = _mm512_cvtneps_pbh(l.sub(v, _mm512_cvtpbh_ps(upper)));
            let to = self.first.add(step * 2 * PARTS + half);
            to.cast::<__m256bh>().write_unaligned(upper);
            to.add(2).cast::<__m256bh>().write_unaligned(lower);
        }
    }
}

/// # Safety
/// The processor must have the features of [`octavo_core::Level::Avx512`] and AVX-512 BF16.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512cd,avx512bf16,avx2,fma,f16c,bmi2,popcnt")]
pub(super) fn compiled<J: Job<Avx512>>(lanes: Avx512, job: J) -> J::Output {
    job.run(lanes)
}

impl Arithmetic for Limbs {
    type Lanes = Avx512;
    type Weights = LimbsWeights;
    type Input = LimbsRows;
    type Kept = Floats;
    type Added = __m512;
    type Session = Session;
    const TOGETHER: usize = TILE;

    #[inline(always)]
    fn lanes(self) -> Avx512 {
        self.0.lanes()
    }
    fn run<J: Job<Avx512>>(self, job: J) -> J::Output {
        // SAFETY: `self` exists only where the instructions do, those for bfloat16 included.
        unsafe { compiled(self.lanes(), job) }
    }
    #[inline(always)]
    fn session(self) -> Session {
        self.0.session()
    }
    fn multiply(self, factors: Factors<'_, LimbsWeights, LimbsRows>, sums: &mut Block<f32>) {
        let Factors { weights, panels, input, rows } = factors;
        let (steps, tiles) = (input.steps, rows.len().div_ceil(TILE));
        assert!(steps > 0 && panels <= PANELS && rows.len() <= ROWS);
        assert!((rows.start + tiles * TILE) * steps * PARTS <= input.lines.len());
        assert!(weights.len() == steps * PARTS * TILE * panels);
        let input = input.lines[rows.start * steps * PARTS..].as_ptr().cast();
        let place = Place { weights: weights.as_ptr().cast(), panels, input, steps };
        let sums = sums.as_mut_ptr().cast();
        // SAFETY: as in the products of int8: the instructions exist, and whole tiles lie in their buffers, as asserted.
        unsafe {
            match (tiles, panels) {
                (1, PANELS) => halves_1x4(&place, sums),
                (2, PANELS) => {
                    halves_2x2(&place, sums, 0);
                    halves_2x2(&place, sums, 2);
                }
                _ => {
                    for tile in 0..tiles {
                        for panel in 0..panels {
                            halves_1x1(&place, sums, tile, panel);
                        }
                    }
                }
            }
        }
    }
    #[inline(always)]
    fn added(self, line: &Floats) -> __m512 {
        self.lanes().load(line)
    }
    #[inline(always)]
    fn scale(self, _scales: &[Floats], _panel: usize) -> __m512 {
        self.lanes().splat(1.0)
    }
    #[inline(always)]
    fn value(self, sums: &Floats, added: __m512, _scale: __m512) -> __m512 {
        self.lanes().add(self.lanes().load(sums), added)
    }
}

/// Sums of 16 rows, from tile `tile`, and one panel.
///
/// # Safety
/// The processor must have the instructions; the place must hold what it says, at least one step, in two parts, with 16
/// rows for each tile; `sums` must be a [`Block`], `tile` 0 or 1, and `panel` one of the place's panels.
unsafe fn halves_1x1(place: &Place, sums: *mut u8, tile: usize, panel: usize) {
    let Place { weights, panels, input, steps } = *place;
    // SAFETY: as the caller promises.
    unsafe {
        tiles!(
            "tilezero tmm0",
            "2:",
            "tileloadd tmm4, [{a} + {across}]",
            "tileloadd tmm5, [{a} + {across} + 64]",
            "tileloadd tmm6, [{b} + {line}]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm0, tmm5, tmm6",
            "add {b}, {part}",
            "tileloadd tmm7, [{b} + {line}]",
            "tdpbf16ps tmm0, tmm4, tmm7",
            "add {b}, {part}",
            "add {a}, 128",
            "dec {n}",
            "jnz 2b",
            "tilestored [{c} + {sums}], tmm0";
            a = inout(reg) input.add(tile * TILE * steps * 128) => _,
            b = inout(reg) weights.add(panel * 1024) => _, n = inout(reg) steps => _,
            c = in(reg) sums.add(tile * TILE * SUMS + panel * 64),
            across = in(reg) steps * 128, line = in(reg) 64usize, part = in(reg) panels * 1024, sums = in(reg) SUMS
        );
    }
}

/// Sums of 16 rows and four panels.
///
/// # Safety
/// As [`halves_1x1`]; the place must have four panels.
unsafe fn halves_1x4(place: &Place, sums: *mut u8) {
    let Place { weights, input, steps, .. } = *place;
    // SAFETY: as the caller promises.
    unsafe {
        tiles!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "2:",
            "tileloadd tmm4, [{a} + {across}]",
            "tileloadd tmm6, [{b} + {line}]",
            "tileloadd tmm7, [{b} + {line} + 1024]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm5, [{a} + {across} + 64]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm0, tmm5, tmm6",
            "tileloadd tmm6, [{b} + {line} + 2048]",
            "tdpbf16ps tmm1, tmm5, tmm7",
            "tileloadd tmm7, [{b} + {line} + 3072]",
            "tdpbf16ps tmm2, tmm4, tmm6",
            "tdpbf16ps tmm3, tmm4, tmm7",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tileloadd tmm6, [{b} + {line} + 4096]",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "tileloadd tmm7, [{b} + {line} + 5120]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm6, [{b} + {line} + 6144]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tileloadd tmm7, [{b} + {line} + 7168]",
            "tdpbf16ps tmm2, tmm4, tmm6",
            "tdpbf16ps tmm3, tmm4, tmm7",
            "add {a}, 128",
            "add {b}, 8192",
            "dec {n}",
            "jnz 2b",
            "tilestored [{c} + {sums}], tmm0",
            "tilestored [{c} + {sums} + 64], tmm1",
            "tilestored [{c} + {sums} + 128], tmm2",
            "tilestored [{c} + {sums} + 192], tmm3";
            a = inout(reg) input => _, b = inout(reg) weights => _, n = inout(reg) steps => _, c = in(reg) sums,
            across = in(reg) steps * 128, line = in(reg) 64usize, sums = in(reg) SUMS
        );
    }
}

/// Sums of 32 rows and two panels of four, from `panel`.
///
/// # Safety
/// As [`halves_1x1`]; the place must have two tiles of rows and four panels, `panel` be 0 or 2.
unsafe fn halves_2x2(place: &Place, sums: *mut u8, panel: usize) {
    let Place { weights, input, steps, .. } = *place;
    // SAFETY: as the caller promises.
    unsafe {
        tiles!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "2:",
            "tileloadd tmm4, [{a} + {across}]",
            "tileloadd tmm6, [{b} + {line}]",
            "tileloadd tmm5, [{d} + {across}]",
            "tileloadd tmm7, [{b} + {line} + 1024]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tileloadd tmm4, [{a} + {across} + 64]",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "tileloadd tmm5, [{d} + {across} + 64]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tileloadd tmm6, [{b} + {line} + 4096]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tileloadd tmm4, [{a} + {across}]",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "tileloadd tmm5, [{d} + {across}]",
            "tileloadd tmm7, [{b} + {line} + 5120]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "add {a}, 128",
            "add {d}, 128",
            "add {b}, 8192",
            "dec {n}",
            "jnz 2b",
            "tilestored [{c} + {sums}], tmm0",
            "tilestored [{c} + {sums} + 64], tmm1",
            "tilestored [{e} + {sums}], tmm2",
            "tilestored [{e} + {sums} + 64], tmm3";
            a = inout(reg) input => _, d = inout(reg) input.add(TILE * steps * 128) => _,
            b = inout(reg) weights.add(panel * 1024) => _, n = inout(reg) steps => _,
            c = in(reg) sums.add(panel * 64), e = in(reg) sums.add(TILE * SUMS + panel * 64),
            across = in(reg) steps * 128, line = in(reg) 64usize, sums = in(reg) SUMS
        );
    }
}
