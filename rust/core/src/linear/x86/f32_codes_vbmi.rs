//! Float32 products for a few rows of inputs: codes become weights in registers, which are multiplied with all rows at once.
//!
//! Decoded weights and the order of summation are those of [`reference`], and so are the bits.

use std::arch::x86_64::*;

use super::code_tables;
use super::int8_limbs_vnni::{self, Plan, Scale, Scales, grouping, is_moderate};
use crate::codec::grid::{Grid, GroupScale, Integers, decode_element};
use crate::codec::rows::Rows;
use crate::codec::zeroed;
use crate::error::Result;
use crate::format::Format;
use crate::linear::f32_fma::Panel;
use crate::linear::float::FloatProduct;
use crate::linear::output::{Biased, Inputs};
use crate::linear::problem::Problem;
use crate::linear::{ran, reference};
use crate::pool;
use crate::simd::{LANES, Line};

/// Rows of weights multiplied at a time: with [`INPUTS`] rows of inputs their sums take half of the registers.
const UNROLL_ROWS: usize = 4;
/// Rows of inputs multiplied with weights while those are in registers. More take turns.
const INPUTS: usize = 4;
/// Rows of weights in one unit of work.
const UNIT: usize = 64;
/// Columns whose codes are loaded together.
const BLOCK: usize = 64;
/// Vectors of weights in a block.
const VECTORS: usize = BLOCK / LANES;
/// Columns that share a scale here: a longer group is several of these.
const GROUP: usize = 32;
/// Bits of a code up to which a register holds the numbers of all codes as float32, and as bytes.
const FLOAT_BITS: u32 = 4;
const BYTE_BITS: u32 = 6;

/// How codes become numbers. Float32, looked up.
const FLOATS: u8 = 0;
/// Bytes, looked up and then converted.
const BYTES: u8 = 1;
/// The codes are the bytes.
const CODES: u8 = 2;

/// The numbers of a format by code, where registers hold them.
#[derive(Debug)]
pub(super) struct Numbers {
    width: u32,
    way: u8,
    floats: Line<f32, LANES>,
    bytes: Line<u8, BLOCK>,
    /// Fraction bits of bytes.
    shift: i32,
    /// Columns that share a stored scale; all of a row where that is `usize::MAX`.
    group: usize,
    scale: Scale,
    /// Codes are numbers plus a zero point.
    zeros: bool,
}

impl Numbers {
    /// The numbers of a format; `None` where registers do not hold them.
    pub(super) fn new(format: Format) -> Option<Self> {
        let width = format.width();
        let (group, scale) = grouping(format).filter(|_| !format.has_offsets())?;
        let grid = Grid::of(format);
        if width <= FLOAT_BITS {
            if matches!(grid, Grid::Levels(2..)) {
                return None; // several scales a number
            }
            let one = GroupScale { step: 1.0, zero: 0, offset: 0.0, levels: [1.0; 4] };
            let number = |code: usize| decode_element(&grid, width, code as u32 & ((1 << width) - 1), &one);
            let floats = Line(std::array::from_fn(number));
            let zeros = matches!(grid, Grid::Integer { layout: Integers::Offset, .. });
            let bytes = Line([0; BLOCK]);
            let finite = floats.0.iter().all(|number| number.is_finite());
            return finite.then_some(Self { width, way: FLOATS, floats, bytes, shift: 0, group, scale, zeros });
        }
        let plan = Plan::new(format).filter(|plan| plan.has_codes() && (plan.bytes || width <= BYTE_BITS))?;
        let (way, shift) = (if plan.bytes { CODES } else { BYTES }, plan.shift);
        let bytes = Line(std::array::from_fn(|code| plan.tables[0][code]));
        let floats = Line([0.0; LANES]);
        Some(Self { width, way, floats, bytes, shift, group, scale, zeros: false })
    }
}

/// True for weights whose numbers registers hold, for rows enough to be faster than sums in fixed point of formats of one limb:
/// weights of four bits need three, since scaling a register of numbers takes as long as multiplying them.
pub(in crate::linear) fn takes(problem: &Problem) -> bool {
    code_tables::numbers(problem.weight)
        .is_some_and(|numbers| problem.batch_rows() > if numbers.way == FLOATS { 2 } else { 1 })
}

/// Multiplies with codes that become weights in registers.
///
/// # Errors
/// Where memory is short or threads cannot be started.
pub(in crate::linear) fn run(product: &FloatProduct<'_>) -> Result<()> {
    ran::note("fma codes avx512");
    let format = product.problem.weight;
    let numbers = code_tables::require(code_tables::numbers(format), format)?;
    product.in_chunks(usize::MAX, |x, m, out| {
        // SAFETY: the table asks for the instructions.
        unsafe { Product::new(&numbers, &product.rows, x, m).multiply(product.problem.columns, out) }
    })
}

/// The product of packed weights with some rows of inputs.
struct Product<'a> {
    numbers: &'a Numbers,
    rows: &'a Rows<'a>,
    x: &'a Inputs<'a>,
    m: usize,
    scales: Scales<'a>,
    /// What scales are to be multiplied with.
    raised: f32,
    /// Columns that share a scale: [`GROUP`], or 16.
    group: usize,
    /// Byte permutation: for each run of eight codes, the bytes of packed codes that hold it.
    gather: Line<u8, BLOCK>,
    /// First bit of each code inside its run.
    shifts: Line<u8, BLOCK>,
    /// Byte permutations: code `16 v + i` to the highest byte of lane `i`, or to the lowest where higher bits do not matter.
    spread: [Line<u8, BLOCK>; VECTORS],
}

/// Scratch memory of one thread: by row of weights, then group.
struct Scratch {
    scales: Vec<f32>,
    zeros: Vec<f32>,
}

/// Partial sums by row of weights and row of inputs.
type Sums<const M: usize> = [[Line<f32, LANES>; M]; UNROLL_ROWS];

impl<'a> Product<'a> {
    /// The product of rows whose format has these numbers with `m` rows of as many inputs, filled with zeros to whole vectors.
    fn new(numbers: &'a Numbers, rows: &'a Rows<'a>, x: &'a Inputs<'a>, m: usize) -> Self {
        let scales = Scales::new(numbers.scale, rows);
        let width = numbers.width as usize;
        let place = if numbers.way == FLOATS { 0 } else { 3 };
        Self {
            raised: crate::float::exp2(-numbers.shift - scales.raised()) as f32,
            group: numbers.group.min(GROUP),
            gather: Line(std::array::from_fn(|i| (i / 8 * width + i % 8) as u8 & 63)),
            shifts: Line(std::array::from_fn(|i| (i % 8 * width) as u8)),
            spread: std::array::from_fn(|v| {
                Line(std::array::from_fn(|i| if i % 4 == place { (LANES * v + i / 4) as u8 } else { 0 }))
            }),
            numbers,
            rows,
            x,
            m,
            scales,
        }
    }

    /// Writes all products with `n` rows of weights.
    ///
    /// # Errors
    /// Where memory is short or threads cannot be started.
    ///
    /// # Safety
    /// The processor must have AVX-512 F, BW, VL and VBMI; the matrix must have `n` rows.
    unsafe fn multiply(&self, n: usize, out: &Biased<'_>) -> Result<()> {
        let work = self.m.saturating_mul(n).saturating_mul(self.rows.k);
        pool::try_for_each(n.div_ceil(UNIT), work, |unit| {
            let (start, end) = (unit * UNIT, n.min((unit + 1) * UNIT));
            let places = UNROLL_ROWS * self.groups();
            let mut scratch = Scratch { scales: zeroed(places)?, zeros: zeroed(places)? };
            for first in (start..end).step_by(UNROLL_ROWS) {
                let count = UNROLL_ROWS.min(end - first);
                // SAFETY: as the caller promises; every unit writes its own columns.
                unsafe {
                    if self.read(first, count, &mut scratch) {
                        self.run(first, count, &scratch, |row, values| out.write(row, first, values));
                    } else {
                        let panel = Panel { rows: self.rows, x: self.x.values(), stride: self.x.stride, first, count };
                        panel.run(self.m, |row, values| out.write(row, first, values))?;
                    }
                }
            }
            Ok(())
        })
    }

    /// Groups of ours in a row, filled up to whole blocks.
    fn groups(&self) -> usize {
        self.rows.k.next_multiple_of(BLOCK) / self.group
    }

    /// Reads scales and zero points of `count` rows of weights from `first` on, the last of which stands in for those beyond;
    /// false where a scale is so large or so small that decoded weights may not be a number times it.
    ///
    /// # Safety
    /// The processor must have AVX-512 F, BW, VL and VBMI; the rows must be the matrix's, `count` at least 1.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi")]
    unsafe fn read(&self, first: usize, count: usize, to: &mut Scratch) -> bool {
        let (groups, each) = (self.groups(), self.numbers.group / self.group);
        let rows = to.scales.chunks_mut(groups.max(1)).zip(to.zeros.chunks_mut(groups.max(1)));
        for (r, (scales, zeros)) in rows.enumerate() {
            let row = first + r.min(count - 1);
            if self.numbers.scale == Scale::Row {
                let step = self.rows.row_step(row) as f32;
                if !is_moderate(step) {
                    return false;
                }
                scales.fill(step * self.raised);
            } else {
                // SAFETY: as the caller promises; there is room for all groups.
                if !unsafe { self.scales.read_each(row, each, scales, &mut _mm512_setzero_ps()) } {
                    return false;
                }
                scales.iter_mut().for_each(|scale| *scale *= self.raised);
            }
            if self.numbers.zeros {
                let unpack = (self.numbers.width, &self.gather, &self.shifts);
                // SAFETY: as the caller promises.
                unsafe { int8_limbs_vnni::zeros_vbmi(self.rows, unpack, row, each, zeros) };
            }
        }
        true
    }

    /// Calls `write` with each row of inputs and its products with `count` rows of weights from `first` on.
    ///
    /// # Safety
    /// The processor must have AVX-512 F, BW, VL and VBMI; the rows must be the matrix's, and their groups read.
    unsafe fn run(&self, first: usize, count: usize, scratch: &Scratch, mut write: impl FnMut(usize, &mut [f32])) {
        for row in (0..self.m).step_by(INPUTS) {
            // SAFETY: as the caller promises; so many rows of inputs are left.
            unsafe {
                match self.m - row {
                    1 => self.run_rows::<1>(first, count, row, scratch, &mut write),
                    2 => self.run_rows::<2>(first, count, row, scratch, &mut write),
                    3 => self.run_rows::<3>(first, count, row, scratch, &mut write),
                    _ => self.run_rows::<INPUTS>(first, count, row, scratch, &mut write),
                }
            }
        }
    }

    /// [`Self::run`] for `M` rows of inputs from `row` on.
    ///
    /// # Safety
    /// As there; there must be as many rows.
    unsafe fn run_rows<const M: usize>(
        &self,
        first: usize,
        count: usize,
        row: usize,
        scratch: &Scratch,
        write: &mut impl FnMut(usize, &mut [f32]),
    ) {
        let (codes, row_bytes) = self.rows.codes();
        let rows = std::array::from_fn(|r| codes[(first + r.min(count - 1)) * row_bytes..][..row_bytes].as_ptr());
        let x = std::array::from_fn(|i| self.x.row(row + i).as_ptr());
        // SAFETY: as the caller promises.
        let sums = unsafe {
            match (self.numbers.way, self.group == GROUP) {
                (FLOATS, true) => self.sums::<M, FLOATS, 2>(rows, x, scratch),
                (FLOATS, false) => self.sums::<M, FLOATS, 1>(rows, x, scratch),
                (BYTES, true) => self.sums::<M, BYTES, 2>(rows, x, scratch),
                (BYTES, false) => self.sums::<M, BYTES, 1>(rows, x, scratch),
                (_, true) => self.sums::<M, CODES, 2>(rows, x, scratch),
                (_, false) => self.sums::<M, CODES, 1>(rows, x, scratch),
            }
        };
        for (i, row) in (row..row + M).enumerate() {
            let mut values = sums.map(|sums| reference::product(sums[i].0));
            write(row, &mut values[..count]);
        }
    }

    /// Sums of products, `SHARE` vectors of weights to a scale.
    ///
    /// # Safety
    /// The processor must have AVX-512 F, BW, VL and VBMI; the rows must be those of the matrix and of the inputs, and the
    /// groups of the former read.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi")]
    #[expect(clippy::needless_range_loop, reason = "loops over constants are unrolled, iterators are not")]
    unsafe fn sums<const M: usize, const WAY: u8, const SHARE: usize>(
        &self,
        rows: [*const u8; UNROLL_ROWS],
        x: [*const f32; M],
        scratch: &Scratch,
    ) -> Sums<M> {
        let (groups, k, width) = (self.groups(), self.rows.k, self.numbers.width as usize);
        let bytes = BLOCK / 8 * width;
        // Prefetch the same columns of the next rows into L2: the pass over the current rows hides the latency.
        let ahead = UNROLL_ROWS * self.rows.codes().1;
        assert!(scratch.scales.len() >= UNROLL_ROWS * groups && scratch.zeros.len() >= UNROLL_ROWS * groups);
        let mut all = [[_mm512_setzero_ps(); M]; UNROLL_ROWS];
        // SAFETY: masks keep inside the codes of the rows; inputs are whole vectors; there is a scale for each group.
        unsafe {
            let load = |line: &Line<u8, BLOCK>| _mm512_load_si512(line.0.as_ptr().cast());
            let (gather, shifts, table) = (load(&self.gather), load(&self.shifts), load(&self.numbers.bytes));
            let spread = [0, 1, 2, 3].map(|v| load(&self.spread[v]));
            let floats = _mm512_load_ps(self.numbers.floats.0.as_ptr());
            for start in (0..k).step_by(BLOCK) {
                let left = k - start;
                let (whole, inside) = (left >= BLOCK, u64::MAX >> (BLOCK - left.min(BLOCK)));
                let at = start / BLOCK * bytes;
                let mut codes = [_mm512_setzero_si512(); UNROLL_ROWS];
                for r in 0..UNROLL_ROWS {
                    _mm_prefetch::<_MM_HINT_T1>(rows[r].wrapping_add(at + ahead).cast());
                    if WAY != CODES {
                        let mask = u64::MAX >> (BLOCK - (left * width).div_ceil(8).min(bytes));
                        let packed = _mm512_maskz_loadu_epi8(mask, rows[r].add(at).cast());
                        codes[r] = _mm512_multishift_epi64_epi8(shifts, _mm512_permutexvar_epi8(gather, packed));
                    }
                    if WAY == BYTES {
                        codes[r] = _mm512_permutexvar_epi8(codes[r], table);
                    }
                }
                let mut scales = [_mm512_setzero_ps(); UNROLL_ROWS];
                for v in 0..VECTORS {
                    if v * LANES >= left {
                        break;
                    }
                    if v % SHARE == 0 {
                        for r in 0..UNROLL_ROWS {
                            let group = r * groups + (start / LANES + v) / SHARE;
                            scales[r] = _mm512_set1_ps(*scratch.scales.as_ptr().add(group));
                            if WAY == FLOATS {
                                let zero = _mm512_set1_ps(*scratch.zeros.as_ptr().add(group));
                                scales[r] = _mm512_mul_ps(_mm512_sub_ps(floats, zero), scales[r]);
                            }
                        }
                    }
                    let mut inputs = [_mm512_setzero_ps(); M];
                    for i in 0..M {
                        inputs[i] = _mm512_loadu_ps(x[i].add(start + v * LANES));
                    }
                    let lanes = (inside >> (v * LANES)) as u16;
                    for r in 0..UNROLL_ROWS {
                        let spread = |codes| _mm512_permutexvar_epi8(spread[v], codes);
                        let numbers = match WAY {
                            FLOATS => spread(codes[r]),
                            BYTES => _mm512_srai_epi32::<24>(spread(codes[r])),
                            _ => {
                                let at = rows[r].add(at + v * LANES);
                                _mm512_cvtepi8_epi32(match whole {
                                    true => _mm_loadu_si128(at.cast()),
                                    false => _mm_maskz_loadu_epi8(lanes, at.cast()),
                                })
                            }
                        };
                        let weights = match WAY {
                            // The register of numbers is looked up with the lowest bits alone.
                            FLOATS => _mm512_maskz_permutexvar_ps(lanes, numbers, scales[r]),
                            _ => _mm512_maskz_mul_ps(lanes, _mm512_cvtepi32_ps(numbers), scales[r]),
                        };
                        for i in 0..M {
                            all[r][i] = _mm512_fmadd_ps(weights, inputs[i], all[r][i]);
                        }
                    }
                }
            }
            let mut sums = [[Line([0.0; LANES]); M]; UNROLL_ROWS];
            for r in 0..UNROLL_ROWS {
                for i in 0..M {
                    _mm512_store_ps(sums[r][i].0.as_mut_ptr(), all[r][i]);
                }
            }
            sums
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{Values, ValuesMut};
    use crate::format::catalogue;
    use crate::linear::encoded_sample::{Sample, noise};
    use crate::linear::output::Outputs;
    use crate::simd::Level;

    #[test]
    fn products_have_the_bits_of_decoded_weights() {
        if Level::detect() < Level::Avx512 || !is_x86_feature_detected!("avx512vbmi") {
            return;
        }
        let (n, most) = (7, 6);
        let formats =
            catalogue().iter().copied().chain(["int4:g64", "uint4:g128", "int5:g32", "bfp6/16", "int2:tensor"]);
        for (text, k) in formats.flat_map(|text| [(text, 200), (text, 67)]) {
            let format = Format::parse(text).unwrap();
            let Some(numbers) = Numbers::new(format) else { continue };
            let mut weights: Vec<f32> = (0..n * k).map(noise).collect();
            weights[2 * k..][..40].fill(0.0);
            weights[5 * k] = 1e20; // a scale that is left to others
            let sample = Sample::new(&weights, k, format);
            let rows = sample.rows(Level::Avx512);
            for m in 1..=most {
                let mut x: Vec<f32> = (0..m * k).map(noise).collect();
                x[k - 1] = 1e-42;
                let x = Inputs::new(Values::F32(&x), m, k, LANES, Level::Avx512).unwrap();
                let (mut found, mut wanted) = (vec![0.0f32; m * n], vec![1.0f32; m * n]);
                let mut values = ValuesMut::F32(&mut found);
                let out = Biased::new(Outputs::new(&mut values, n, Level::Avx512), &[]);
                // SAFETY: the instructions were detected.
                unsafe { Product::new(&numbers, &rows, &x, m).multiply(n, &out).unwrap() };
                let panel = Panel { rows: &rows, x: x.values(), stride: x.stride, first: 0, count: n };
                panel.run(m, |row, values| wanted[row * n..][..n].copy_from_slice(values)).unwrap();
                let bits = |all: &[f32]| all.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(&found), bits(&wanted), "{text}: {m} rows of {k}");
            }
        }
    }

    #[test]
    fn numbers_in_registers_are_those_of_the_format() {
        for text in
            ["int8", "mxint8", "mxint6", "mxfp6e2m3", "int4:g32", "uint4:g32", "mxfp4", "nvfp4", "nf4", "ternary"]
        {
            let format = Format::parse(text).unwrap();
            let numbers = Numbers::new(format).unwrap();
            let one = GroupScale { step: 1.0, zero: 0, offset: 0.0, levels: [1.0; 4] };
            for code in 0..1u32 << numbers.width {
                let found = match numbers.way {
                    FLOATS => f64::from(numbers.floats.0[code as usize]),
                    BYTES => f64::from(numbers.bytes.0[code as usize].cast_signed()),
                    _ => f64::from((code as u8).cast_signed()),
                } * crate::float::exp2(-numbers.shift);
                let wanted = decode_element(&Grid::of(format), numbers.width, code, &one);
                assert_eq!(found, f64::from(wanted), "{text}, code {code}");
            }
        }
        for text in ["int12", "uint8", "mxfp8e4m3", "mxfp6e3m2", "binary2", "int4:g7", "mxfp4/12"] {
            assert!(Numbers::new(Format::parse(text).unwrap()).is_none(), "{text}");
        }
    }
}
