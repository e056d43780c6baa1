//! Products for a few rows of inputs: codes unpacked as they are read, rows of weights a few at a time.
//!
//! A block is 64 columns; 4-bit codes take 128 columns, even columns first and then odd ones, which is the order in which
//! masks unpack nibbles. Each lane of an accumulator sums columns of one group only, so that one multiplication scales all
//! lanes. Weights are stored as unsigned bytes, offset by their minimum; accumulators start at minus offset times the sum
//! of inputs.

use std::arch::x86_64::*;
use std::cell::RefCell;
use std::ops::Range;

use super::CHUNK;
use super::arrange::{Input, Weights};
use super::inputs::{FixedInputs, largest};
use super::plan::{Plan, Scale};
use super::scales::{MIN_HALF, Scales, is_moderate, zeros_vbmi};
use super::sum::{BYTES, NARROW, NIBBLES, NO_ZEROS, OFFSETS, POINTS, Stored, Sum, Sums, WIDE};
use crate::codec::rows::Rows;
use crate::codec::set_len;
use crate::error::Result;
use crate::linear::output::Biased;
use crate::pool;
use crate::simd::amx::LINE;

/// Rows of weights multiplied at a time: they share loads of inputs and hide each other's latency.
pub(super) const UNROLL_ROWS: usize = 4;
/// Rows of inputs multiplied with weights while those are in registers.
pub(super) const UNROLL_INPUTS: usize = 4;
/// Rows of weights in one unit of work, at most, and at least.
const MAX_UNIT_ROWS: usize = 32;
const MIN_UNIT_ROWS: usize = 16;
/// Bytes of codes in one unit of work, about: threads that come late, or are slow, leave some to the others.
const UNIT_BYTES: usize = 64 << 10;

thread_local! {
    /// Memory that is new takes longer to get than some rows are multiplied.
    static SCRATCH: RefCell<[Scratch; 2]> = RefCell::default();
    /// Products of a unit of work, by row of inputs.
    static PRODUCTS: RefCell<Vec<f32>> = RefCell::default();
}

/// The product of packed weights with some rows of inputs.
pub(in crate::linear) struct Dot<'a> {
    pub(super) plan: &'a Plan,
    pub(super) rows: &'a Rows<'a>,
    scales: Scales<'a>,
    /// Columns of a block: 64, or 128 of nibbles.
    pub(super) block: usize,
    /// Columns of a group: 16, 32 or 64. A longer stored group is several of these.
    pub(super) group: usize,
    /// Each row of inputs that has a fixed-point form, those of as many limbs side by side.
    inputs: Vec<(usize, Input)>,
    /// All rows of inputs, a bit each, and those that have no fixed-point form.
    all: u32,
    without: u32,
    /// The code of zeros is 0.
    clear_zeros: bool,
    /// Sums of the products of a lane with inputs of three limbs are int32: those of four columns, or eight of nibbles.
    whole: bool,
    /// Scales, and offsets behind them, are float16, at most eight numbers of a block, which are read where they are.
    halves: bool,
}

/// Scratch memory of one thread, for the rows that are multiplied together.
#[derive(Default)]
pub(super) struct Scratch {
    /// Scales of rows by group.
    pub(super) scales: Vec<f32>,
    /// Zero points, or offsets, of rows by group.
    pub(super) zeros: Vec<f32>,
}

/// What [`Dot::prepare`] finds of some rows of weights.
struct Prepared {
    /// Factors of the rows.
    steps: [f32; UNROLL_ROWS],
    /// Smallest magnitude of a scale but 0.
    least: f32,
}

impl<'a> Dot<'a> {
    /// Arranges the rows of `x`, at most [`super::run::MAX_CHUNK_ROWS`].
    ///
    /// # Safety
    /// The processor must have BMI2, AVX-512 F and VNNI; `plan` must be that of the rows' format, and `x` of as many columns as they.
    pub(in crate::linear) unsafe fn new(plan: &'a Plan, rows: &'a Rows<'a>, x: &FixedInputs) -> Result<Self> {
        let block = if plan.width == 4 { 2 * LINE } else { LINE };
        let scales = Scales::new(plan.scale, rows);
        let raised = crate::float::exp2(-plan.shift - scales.raised()) as f32;
        let (mut inputs, mut without) = (Vec::new(), 0);
        for row in 0..x.rows {
            // SAFETY: as the caller promises.
            match unsafe { Input::new(x, row, &Weights { plan, block, raised })? } {
                Some(input) => inputs.push((row, input)),
                None => without |= 1 << row,
            }
        }
        inputs.sort_by_key(|(_, input)| input.count);
        let group = plan.group.min(LINE);
        let numbers = block / group * if plan.offsets { 2 } else { 1 };
        let all = (0..x.rows).fold(0, |all, row| all | 1 << row);
        Ok(Self {
            plan,
            rows,
            scales,
            block,
            group,
            inputs,
            all,
            without,
            clear_zeros: !plan.zeros && !plan.offsets && plan.zero_is_zero,
            whole: i64::from(plan.most) * i64::from(largest(3)) * (block / 16) as i64 <= i64::from(i32::MAX),
            halves: plan.scale == Scale::Half
                && plan.group == group
                && numbers <= 8
                && plan.limbs == 1
                && !plan.zeros
                && match way(plan) {
                    NIBBLES | NARROW => true,
                    BYTES => !plan.offsets,
                    _ => false,
                },
        })
    }

    /// Writes all products with `n` rows of weights, whose work counts as `bytes`. `plain` computes those that are left: of
    /// a row of inputs, or of all, with some rows of weights of one unit of work.
    ///
    /// # Errors
    /// Where memory is short or threads cannot be started, or those of `plain`.
    ///
    /// # Safety
    /// The processor must have AVX-512 F, BW, VL, VBMI and VNNI; the matrix must have `n` rows.
    pub(in crate::linear) unsafe fn multiply(
        &self,
        n: usize,
        bytes: usize,
        out: &Biased<'_>,
        plain: impl Fn(Option<usize>, usize, usize) -> Result<()> + Sync,
    ) -> Result<()> {
        let (_, row_bytes) = self.rows.codes();
        let unit_rows =
            (UNIT_BYTES / row_bytes.max(1) / MIN_UNIT_ROWS * MIN_UNIT_ROWS).clamp(MIN_UNIT_ROWS, MAX_UNIT_ROWS);
        pool::try_for_each(n.div_ceil(unit_rows), bytes, |unit| {
            let (start, end) = (unit * unit_rows, n.min((unit + 1) * unit_rows));
            if self.inputs.is_empty() {
                return plain(None, start, end - start);
            }
            let [mut scratch, mut ahead] = SCRATCH.take();
            self.clear(&mut scratch)?;
            self.clear(&mut ahead)?;
            let mut products = PRODUCTS.take();
            set_len(&mut products, self.all.count_ones() as usize * unit_rows)?;
            let mut left = Vec::new();
            let mut keep = |row: usize, first: usize, values: &Sum| {
                let count = UNROLL_ROWS.min(end - first);
                let to = &mut products[row * unit_rows + first - start..][..count];
                match to.as_mut_array() {
                    Some(all) => *all = *values, // of fixed length: no call
                    None => to.copy_from_slice(&values[..count]),
                }
            };
            if self.halves {
                let prepared = Prepared { steps: [1.0; UNROLL_ROWS], least: MIN_HALF };
                // SAFETY: as the caller promises, here and below.
                unsafe { self.run(start..end, &scratch, &prepared, &mut keep, &mut left) };
            } else {
                // Scales are read one pass ahead: loads of what was just stored in other pieces wait for the cache.
                // SAFETY: as above.
                let mut next = unsafe { self.prepare(start, UNROLL_ROWS.min(end - start), &mut ahead) };
                for first in (start..end).step_by(UNROLL_ROWS) {
                    let rows = first..end.min(first + UNROLL_ROWS);
                    std::mem::swap(&mut scratch, &mut ahead);
                    let prepared = next.take();
                    if rows.end < end {
                        // SAFETY: as above.
                        next = unsafe { self.prepare(rows.end, UNROLL_ROWS.min(end - rows.end), &mut ahead) };
                    }
                    match prepared {
                        // SAFETY: as above.
                        Some(prepared) => unsafe { self.run(rows, &scratch, &prepared, &mut keep, &mut left) },
                        None => left.push((self.all, rows)),
                    }
                }
            }
            for (row, _) in &self.inputs {
                // SAFETY: every unit writes its own columns.
                unsafe { out.write(*row, start, &mut products[*row * unit_rows..][..end - start]) };
            }
            PRODUCTS.set(products);
            SCRATCH.set([scratch, ahead]);
            for (of_inputs, rows) in left {
                for row in (0..u32::BITS as usize).filter(|row| of_inputs >> row & 1 == 1) {
                    plain(Some(row), rows.start, rows.len())?;
                }
            }
            Ok(())
        })
    }

    /// Makes room for one thread's work, with a scale of 1 and a zero point of 0 where rows have none.
    fn clear(&self, scratch: &mut Scratch) -> Result<()> {
        if self.halves {
            return Ok(());
        }
        // Groups are loaded eight at a time.
        let places = UNROLL_ROWS * self.groups() + 8;
        set_len(&mut scratch.scales, places)?;
        scratch.scales.fill(if self.plan.scale == Scale::Row { 1.0 } else { 0.0 });
        set_len(&mut scratch.zeros, if self.plan.zeros || self.plan.offsets { places } else { 0 })?;
        scratch.zeros.fill(0.0);
        Ok(())
    }

    /// Groups in a row that are stored.
    pub(super) const fn stored_groups(&self) -> usize {
        self.scales.groups
    }

    /// Groups of ours in a row.
    pub(super) fn groups(&self) -> usize {
        self.rows.k.div_ceil(CHUNK) * (CHUNK / self.group)
    }

    /// Reads the scales of `count` rows of weights from `first` on, at most [`UNROLL_ROWS`], to `scratch`; none where they are
    /// out of range.
    ///
    /// # Safety
    /// As for [`Self::run`].
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vnni")]
    unsafe fn prepare(&self, first: usize, count: usize, scratch: &mut Scratch) -> Option<Prepared> {
        let (groups, each) = (self.groups(), self.plan.group / self.group);
        // Rows beyond the last repeat it.
        let row_of = |r: usize| first + r.min(count - 1);
        let (mut steps, mut least) = ([1.0; UNROLL_ROWS], _mm512_set1_ps(f32::INFINITY));
        if self.plan.scale == Scale::Row {
            for (r, step) in steps.iter_mut().enumerate() {
                *step = self.rows.row_step(row_of(r)) as f32;
                if !is_moderate(*step) {
                    return None;
                }
            }
        } else if self.plan.offsets {
            for r in 0..UNROLL_ROWS {
                let places = r * groups..(r + 1) * groups;
                let (scales, offsets) = (&mut scratch.scales[places.clone()], &mut scratch.zeros[places]);
                // SAFETY: as the caller promises.
                let fits = unsafe {
                    match self.plan.scale {
                        Scale::Nested(kind) => self.scales.read_nested(kind, row_of(r), scales, offsets, &mut least),
                        _ => self.scales.read_pairs(row_of(r), each, scales, offsets, &mut least),
                    }
                };
                if !fits {
                    return None;
                }
            }
        } else if each == 1 && count == UNROLL_ROWS && self.scales.groups == groups {
            // The scales of all rows follow each other.
            // SAFETY: as the caller promises.
            if !unsafe { self.scales.read(first, 0, &mut scratch.scales[..UNROLL_ROWS * groups], &mut least) } {
                return None;
            }
        } else {
            for r in 0..UNROLL_ROWS {
                let to = &mut scratch.scales[r * groups..][..groups];
                // SAFETY: as the caller promises.
                if !unsafe { self.scales.read_each(row_of(r), each, to, &mut least) } {
                    return None;
                }
            }
        }
        if self.plan.zeros {
            let unpack = (self.plan.width, &self.plan.gather, &self.plan.shifts);
            for r in 0..UNROLL_ROWS {
                let to = &mut scratch.zeros[r * groups..][..groups];
                // SAFETY: as the caller promises.
                unsafe { zeros_vbmi(self.rows, unpack, row_of(r), each, to) };
            }
        }
        let (codes, row_bytes) = self.rows.codes();
        let mut least = _mm512_reduce_min_ps(least);
        if self.clear_zeros && self.scales.low(least) {
            // Scales of blocks of zeros become 0, so that they do not look like weights that would vanish.
            least = f32::INFINITY;
            for (r, scales) in scratch.scales.chunks_mut(groups.max(1)).enumerate().take(UNROLL_ROWS) {
                let codes = &codes[row_of(r) * row_bytes..][..row_bytes];
                // SAFETY: as the caller promises.
                least = least.min(unsafe { Scales::clear(scales, codes, self.group / 8 * self.plan.width as usize) });
            }
        }
        Some(Prepared { steps, least })
    }

    /// Calls `write` with each row of inputs, the first of up to [`UNROLL_ROWS`] rows of weights, and its products with them.
    /// Adds a bit for each row of inputs that is left to others, with the rows of weights, to `left`: those without a
    /// fixed-point form, and those so small that their products with the scales would vanish.
    ///
    /// # Safety
    /// The processor must have AVX-512 F, BW, VL, VBMI and VNNI; the rows must be the matrix's, one at least. But for
    /// [`Self::halves`] they must be at most [`UNROLL_ROWS`], and `scratch` filled by [`Self::prepare`] for them.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vnni")]
    unsafe fn run(
        &self,
        rows: Range<usize>,
        scratch: &Scratch,
        prepared: &Prepared,
        mut write: impl FnMut(usize, usize, &Sum),
        left: &mut Vec<(u32, Range<usize>)>,
    ) {
        let groups = self.groups();
        let &Prepared { steps, least } = prepared;
        if self.without != 0 {
            left.push((self.without, rows.clone()));
        }
        let mut rest = self.inputs.as_slice();
        while let Some((_, next)) = rest.first() {
            let alike = rest.iter().take_while(|(_, input)| input.count == next.count).count();
            let together = match (next.count, alike) {
                (4, _) | (_, 1) => 1, // outliers are rare
                (_, 2 | 3) => 2,
                _ => UNROLL_INPUTS,
            };
            let (chunk, after) = rest.split_at(together);
            rest = after;
            let finish = |first: usize, mut values: Sums| {
                for ((row, input), values) in chunk.iter().zip(&mut values) {
                    // Rare: each scale is then checked alone.
                    let vanish = least * input.least < f32::MIN_POSITIVE
                        && (self.plan.offsets
                            || self.halves
                            || (0..UNROLL_ROWS).any(|r| {
                                input.vanishes(&scratch.scales[r * groups..][..groups], self.block / self.group)
                            }));
                    // Scales that were not looked at may be infinite or NaN.
                    if vanish || self.halves && !values.iter().fold(true, |all, value| all & value.is_finite()) {
                        left.push((1 << row, first..rows.end.min(first + UNROLL_ROWS)));
                        continue;
                    }
                    values.iter_mut().zip(steps).for_each(|(value, step)| *value *= step);
                    write(*row, first, values);
                }
            };
            let rows = rows.clone();
            // SAFETY: as the caller promises; scales and zero points are there for all groups of the rows.
            unsafe {
                match (next.count, together) {
                    (1, 1) => self.product::<1, 1>(rows, chunk, scratch, finish),
                    (1, 2) => self.product::<1, 2>(rows, chunk, scratch, finish),
                    (1, _) => self.product::<1, 4>(rows, chunk, scratch, finish),
                    (3, 1) => self.product::<3, 1>(rows, chunk, scratch, finish),
                    (3, 2) => self.product::<3, 2>(rows, chunk, scratch, finish),
                    (3, _) => self.product::<3, 4>(rows, chunk, scratch, finish),
                    _ => self.product::<4, 1>(rows, chunk, scratch, finish),
                }
            }
        }
    }

    /// Where up to [`UNROLL_ROWS`] rows before `end` are stored; those beyond repeat the last.
    pub(super) fn stored(&self, first: usize, end: usize) -> Stored {
        let row_of = |r: usize| (first + r).min(end - 1);
        let ((codes, row_bytes), scales) = (self.rows.codes(), self.scales.bytes());
        let scale_bytes = self.scales.row_bytes(self.plan.offsets);
        Stored {
            codes: std::array::from_fn(|r| codes[row_of(r) * row_bytes..].as_ptr()),
            scales: std::array::from_fn(|r| scales.as_ptr().wrapping_add(row_of(r) * scale_bytes).cast()),
        }
    }

    /// [`Self::sum`] for the weights' own way, number of limbs and scales.
    ///
    /// # Safety
    /// As for [`Self::sum`].
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vnni")]
    unsafe fn product<const LIMBS: usize, const INPUTS: usize>(
        &self,
        rows: Range<usize>,
        chunk: &[(usize, Input)],
        scratch: &Scratch,
        write: impl FnMut(usize, Sums),
    ) {
        let x: [&Input; INPUTS] = std::array::from_fn(|i| &chunk[i].1);
        let whole = self.whole && LIMBS == 3;
        macro_rules! sum {
            ($way:ident, $each:literal, $zeros:ident, $whole:literal, $halves:literal) => {
                self.sum::<LIMBS, INPUTS, $way, $each, $zeros, $whole, $halves>(rows, x, scratch, write)
            };
        }
        let (way, limbs) = (way(self.plan), self.plan.limbs);
        // SAFETY: as the caller promises.
        unsafe {
            if self.plan.offsets {
                return match (way, limbs, self.halves) {
                    (NIBBLES, _, true) if whole => sum!(NIBBLES, 1, OFFSETS, true, true),
                    (NIBBLES, _, true) => sum!(NIBBLES, 1, OFFSETS, false, true),
                    (NIBBLES, _, false) if whole => sum!(NIBBLES, 1, OFFSETS, true, false),
                    (NIBBLES, _, false) => sum!(NIBBLES, 1, OFFSETS, false, false),
                    (NARROW, _, true) => sum!(NARROW, 1, OFFSETS, false, true),
                    (NARROW, _, false) => sum!(NARROW, 1, OFFSETS, false, false),
                    (_, 1, _) => sum!(WIDE, 1, OFFSETS, false, false),
                    _ => sum!(WIDE, 2, OFFSETS, false, false),
                };
            }
            if self.plan.zeros {
                return match (way, limbs) {
                    (NIBBLES, _) => sum!(NIBBLES, 1, POINTS, false, false),
                    (NARROW, _) => sum!(NARROW, 1, POINTS, false, false),
                    (_, 1) => sum!(WIDE, 1, POINTS, false, false),
                    _ => sum!(WIDE, 2, POINTS, false, false),
                };
            }
            match (way, limbs, self.halves) {
                (NIBBLES, 1, true) if whole => sum!(NIBBLES, 1, NO_ZEROS, true, true),
                (NIBBLES, 1, true) => sum!(NIBBLES, 1, NO_ZEROS, false, true),
                (NIBBLES, 1, false) if whole => sum!(NIBBLES, 1, NO_ZEROS, true, false),
                (NIBBLES, 1, false) => sum!(NIBBLES, 1, NO_ZEROS, false, false),
                (NIBBLES, 2, _) => sum!(NIBBLES, 2, NO_ZEROS, false, false),
                (NIBBLES, ..) => sum!(NIBBLES, 3, NO_ZEROS, false, false),
                (NARROW, 1, true) if whole => sum!(NARROW, 1, NO_ZEROS, true, true),
                (NARROW, 1, true) => sum!(NARROW, 1, NO_ZEROS, false, true),
                (NARROW, 1, false) if whole => sum!(NARROW, 1, NO_ZEROS, true, false),
                (NARROW, 1, false) => sum!(NARROW, 1, NO_ZEROS, false, false),
                (NARROW, 2, _) => sum!(NARROW, 2, NO_ZEROS, false, false),
                (NARROW, ..) => sum!(NARROW, 3, NO_ZEROS, false, false),
                (WIDE, 1, _) => sum!(WIDE, 1, NO_ZEROS, false, false),
                (WIDE, 2, _) => sum!(WIDE, 2, NO_ZEROS, false, false),
                (WIDE, ..) => sum!(WIDE, 3, NO_ZEROS, false, false),
                (_, _, true) => sum!(BYTES, 1, NO_ZEROS, false, true),
                (_, _, false) => sum!(BYTES, 1, NO_ZEROS, false, false),
            }
        }
    }
}

/// How the codes of a plan become bytes.
const fn way(plan: &Plan) -> u8 {
    match plan.width {
        4 => NIBBLES,
        1..=6 => NARROW,
        _ if plan.bytes => BYTES,
        _ => WIDE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::ValuesMut;
    use crate::format::Format;
    use crate::linear::encoded_sample::{Sample, noise};
    use crate::linear::output::Outputs;
    use crate::linear::x86::code_tables::{plan_or_offsets, require};
    use crate::simd::Level;

    #[test]
    fn scales_read_where_they_are_stored_change_no_bit() {
        if Level::detect() < Level::Avx512
            || !is_x86_feature_detected!("avx512vbmi")
            || !is_x86_feature_detected!("avx512vnni")
        {
            return;
        }
        let formats = ["int8:g32", "int8:g16", "int5:g32", "int4:g32", "int4:g16", "int4:g64", "int3:g32,full"];
        for text in formats.into_iter().chain(["uint4:g32,offset", "uint4:g64,offset", "uint5:g32,offset"]) {
            for (n, k, m) in [(66, 577, 1), (5, 33, 3), (70, 1024, 1), (33, 320, 7), (4, 2048, 16)] {
                let format = Format::parse(text).unwrap();
                let weights: Vec<f32> = (0..n * k).map(|i| noise(i) + (i / 16 % 5) as f32 * 0.1).collect();
                let sample = Sample::new(&weights, k, format);
                let (rows, plan) = (sample.rows(Level::Avx512), require(plan_or_offsets(format), format).unwrap());
                let stride = k.next_multiple_of(16);
                let x: Vec<f32> = (0..m * stride).map(|i| if i % stride < k { noise(i + 9) } else { 0.0 }).collect();
                // SAFETY: the instructions were detected.
                let fixed = unsafe { FixedInputs::new(&x, m, stride, k).unwrap() };
                // SAFETY: as above; the plan is that of the rows.
                let mut dot = unsafe { Dot::new(&plan, &rows, &fixed).unwrap() };
                assert!(dot.halves, "{text}");
                let [stored, copied] = [true, false].map(|halves| {
                    dot.halves = halves;
                    let mut out = vec![f32::NAN; m * n];
                    let outputs = Outputs::new(&mut ValuesMut::F32(&mut out), n, Level::Avx512);
                    let left = |_, _, _| Err(crate::error::Error::format("left".to_owned()));
                    // SAFETY: as above; the matrix has these rows.
                    unsafe { dot.multiply(n, n * k, &Biased::new(outputs, &[]), left).unwrap() };
                    out.into_iter().map(f32::to_bits).collect::<Vec<_>>()
                });
                assert_eq!(stored, copied, "{text} {m}x{n}x{k}");
            }
        }
    }
}
