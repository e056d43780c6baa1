//! Products of codes for many rows of inputs by VNNI: sums of a group exact in int32, scaled with both scales in float32.
//!
//! Sixteen rows of inputs are the lanes of a register, four columns of a row of weights are broadcast to all of them.
//! Weights are stored as unsigned bytes, 128 too large; accumulators start at minus 128 times the sum of inputs.
//! `y = sum over groups, in order, of fma(sum of the group * scale of inputs, scale of weights, y)`.

use std::arch::x86_64::*;

use super::float::Biased;
use super::int8_limbs_vnni::{FixedInputs, Plan, Scale, Scales, is_moderate};
use super::int8_tiles::Tiled;
use crate::codec::rows::Rows;
use crate::codec::zeroed;
use crate::error::Result;
use crate::pool;
use crate::simd::tiles::{LINE, ROWS};
use crate::simd::transpose::transpose;
use crate::simd::{Floats, Line};

/// Rows of weights in one unit of work: unpacked, they stay in the L2 cache while rows of inputs take turns.
const UNIT: usize = 64;
/// Rows of weights whose products and sums are in registers together.
const HALF: usize = ROWS / 2;
/// Columns that share scales here, at most: a longer group is several of these.
const GROUP: usize = 32;
/// Columns in a lane.
const FOUR: usize = 4;
/// Bits of a code up to which a register holds the numbers of all codes.
const LOOKED_UP: u32 = 6;

/// The product of packed weights with the codes of rows of inputs.
pub(super) struct Product<'a> {
    plan: &'a Plan,
    rows: &'a Rows<'a>,
    scales: Scales<'a>,
    /// What scales are to be multiplied with.
    raised: f32,
    x: Tiled,
    m: usize,
    /// Whether a row of inputs has no codes.
    left: Vec<bool>,
    /// Columns that share scales: [`GROUP`] or 16; and how many groups of these a row has.
    group: usize,
    groups: usize,
    /// By sixteen rows of inputs, then group: initial values of the accumulators, and scales.
    starts: Vec<Line<i32, 16>>,
    input_scales: Vec<Floats>,
    /// Numbers by code, as stored.
    table: Line<u8, LINE>,
    /// Byte permutation: for each run of eight codes, the bytes of packed codes that hold it.
    gather: Line<u8, LINE>,
    /// First bit of each code inside its run.
    shifts: Line<u8, LINE>,
}

/// Scratch memory of one thread.
struct Scratch {
    weights: Vec<Line<u8, LINE>>,
    /// By row, then group.
    scales: Vec<f32>,
}

impl<'a> Product<'a> {
    /// True for weights, or inputs, that are multiplied here.
    pub(super) const fn takes(plan: &Plan) -> bool {
        plan.has_codes() && (plan.bytes || plan.width <= LOOKED_UP)
    }

    /// Arranges the codes of rows of inputs with groups of `input_group` columns; weights are those of the plan.
    ///
    /// # Errors
    /// Where memory is short or threads cannot be started.
    ///
    /// # Safety
    /// The processor must have AVX-512 F, BW and VNNI; inputs must be of as many columns as the rows, and of one limb.
    pub(super) unsafe fn new(plan: &'a Plan, rows: &'a Rows<'a>, x: &FixedInputs, input_group: usize) -> Result<Self> {
        let scales = Scales::new(plan.scale, rows);
        let (m, columns, group) = (x.rows, x.columns, plan.group.min(input_group).min(GROUP));
        let (tiles, groups) = (m.div_ceil(ROWS), columns / group);
        // SAFETY: as the caller promises.
        let tiled = unsafe { Tiled::with(x.planes(), m, columns, 1)? };
        let mut starts = zeroed::<Line<i32, 16>>(tiles * groups)?;
        pool::for_each_chunk(&mut starts, groups.max(1), |tile, starts| {
            for (start, lines) in starts.iter_mut().zip(tiled.pass(tile).chunks(group / FOUR)) {
                // SAFETY: as the caller promises.
                *start = unsafe { start_of(lines) };
            }
        })?;
        let mut input_scales = zeroed::<Floats>(tiles * groups)?;
        pool::for_each_chunk(&mut input_scales, groups.max(1), |tile, scales| {
            for (at, scales) in scales.iter_mut().enumerate() {
                let rows = tile * ROWS..m.min((tile + 1) * ROWS);
                scales.0.iter_mut().zip(rows).for_each(|(scale, row)| *scale = x.unit(row, at * group));
            }
        })?;
        let width = plan.width as usize;
        Ok(Self {
            raised: crate::float::exp2(-plan.shift - scales.raised()) as f32,
            left: (0..m).map(|row| x.limbs(row) == 0).collect(),
            table: Line(std::array::from_fn(|code| plan.tables[0][code] ^ 0x80)),
            gather: Line(std::array::from_fn(|i| (i / 8 * width + i % 8) as u8 & 63)),
            shifts: Line(std::array::from_fn(|i| (i % 8 * width) as u8)),
            plan,
            rows,
            scales,
            x: tiled,
            m,
            group,
            groups,
            starts,
            input_scales,
        })
    }

    /// Writes all products with `n` rows of weights. `plain` computes those that are left: of a row of inputs, or of all,
    /// with some rows of weights of one unit of work.
    ///
    /// # Errors
    /// Where memory is short or threads cannot be started, or those of `plain`.
    ///
    /// # Safety
    /// The processor must have AVX-512 F, BW, VL, VBMI and VNNI; the matrix must have `n` rows.
    pub(super) unsafe fn multiply(
        &self,
        n: usize,
        out: &Biased<'_>,
        plain: impl Fn(Option<usize>, usize, usize) -> Result<()> + Sync,
    ) -> Result<()> {
        let work = self.m.saturating_mul(n).saturating_mul(self.rows.k);
        pool::try_for_each(n.div_ceil(UNIT), work, |unit| {
            let (first, count) = (unit * UNIT, UNIT.min(n - unit * UNIT));
            let (weights, scales) = (zeroed(UNIT * self.stride())?, zeroed(UNIT * self.groups)?);
            let mut scratch = Scratch { weights, scales };
            // SAFETY: as the caller promises.
            if !unsafe { self.read(first, count, &mut scratch) } {
                return plain(None, first, count);
            }
            for (tile, panel) in (0..self.m.div_ceil(ROWS)).flat_map(|t| (0..count).step_by(ROWS).map(move |p| (t, p)))
            {
                // SAFETY: as the caller promises.
                let values = unsafe { self.tile(&scratch, panel, tile) };
                for (values, row) in values.iter().zip(tile * ROWS..self.m).filter(|(_, row)| !self.left[*row]) {
                    let mut values = values.0;
                    let some = &mut values[..ROWS.min(count - panel)];
                    // SAFETY: every unit writes its own columns.
                    unsafe { out.write(row, first + panel, some) };
                }
            }
            let left = (0..self.m).filter(|row| self.left[*row]);
            { left }.try_for_each(|row| plain(Some(row), first, count))
        })
    }

    /// Lines from one row of weights to the next: an odd number, so that rows do not meet in a few sets of the L1 cache.
    const fn stride(&self) -> usize {
        self.groups * self.group / LINE + 1
    }

    /// Unpacks `count` rows of weights from `first` on, and reads their scales; false where one is out of range.
    ///
    /// # Safety
    /// The processor must have AVX-512 F, BW, VL and VBMI; the rows must be the matrix's, at most [`UNIT`].
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi")]
    unsafe fn read(&self, first: usize, count: usize, to: &mut Scratch) -> bool {
        let (codes, row_bytes) = self.rows.codes();
        let bytes = LINE / 8 * self.plan.width as usize;
        let rows = to.weights.chunks_mut(self.stride()).zip(to.scales.chunks_mut(self.groups.max(1)));
        for (row, (weights, scales)) in (first..first + count).zip(rows) {
            let packed = codes[row * row_bytes..][..row_bytes].chunks(bytes);
            for (packed, line) in packed.zip(weights) {
                // SAFETY: the mask keeps inside the codes, of which there are 1 to 64 bytes; lines are aligned.
                unsafe {
                    let load = |line: &Line<u8, LINE>| _mm512_load_si512(line.0.as_ptr().cast());
                    let packed = _mm512_maskz_loadu_epi8(u64::MAX >> (LINE - packed.len()), packed.as_ptr().cast());
                    let numbers = if self.plan.bytes {
                        _mm512_xor_si512(packed, _mm512_set1_epi8(-128))
                    } else {
                        let runs = _mm512_permutexvar_epi8(load(&self.gather), packed);
                        let codes = _mm512_multishift_epi64_epi8(load(&self.shifts), runs);
                        _mm512_permutexvar_epi8(codes, load(&self.table))
                    };
                    _mm512_store_si512(line.0.as_mut_ptr().cast(), numbers);
                }
            }
            if self.plan.scale == Scale::Row {
                let step = self.rows.row_step(row) as f32;
                if !is_moderate(step) {
                    return false;
                }
                scales.fill(step * self.raised);
                continue;
            }
            // SAFETY: as the caller promises; there is room for all groups.
            if !unsafe { self.scales.read_each(row, self.plan.group / self.group, scales, &mut _mm512_setzero_ps()) } {
                return false;
            }
            scales.iter_mut().for_each(|scale| *scale *= self.raised);
        }
        true
    }

    /// Products by row of inputs of a tile, then row of weights, sixteen of them from `panel` of the unit on.
    ///
    /// # Safety
    /// The processor must have AVX-512 F and VNNI; the tile and the panel must be there.
    #[target_feature(enable = "avx512f,avx512vnni")]
    unsafe fn tile(&self, scratch: &Scratch, panel: usize, tile: usize) -> [Floats; ROWS] {
        let mut values = [_mm512_setzero_ps(); ROWS];
        for (half, values) in values.as_chunks_mut::<HALF>().0.iter_mut().enumerate() {
            let row = panel + half * HALF;
            // SAFETY: as the caller promises.
            *values = unsafe {
                if self.group == GROUP {
                    self.half::<{ GROUP / FOUR }>(scratch, row, tile)
                } else {
                    self.half::<{ GROUP / FOUR / 2 }>(scratch, row, tile)
                }
            };
        }
        let mut all = [Line([0.0; 16]); ROWS];
        // SAFETY: lines are aligned and hold sixteen values.
        unsafe {
            for (line, values) in all.iter_mut().zip(transpose(values)) {
                _mm512_store_ps(line.0.as_mut_ptr(), values);
            }
        }
        all
    }

    /// Products of eight rows of weights from `row` of the unit on with sixteen rows of inputs, the groups of which have so
    /// many `LINES`.
    ///
    /// # Safety
    /// As for [`Self::tile`].
    #[target_feature(enable = "avx512f,avx512vnni")]
    #[expect(clippy::needless_range_loop, reason = "loops over constants are unrolled, iterators are not")]
    unsafe fn half<const LINES: usize>(&self, scratch: &Scratch, row: usize, tile: usize) -> [__m512; HALF] {
        let (groups, stride) = (self.groups, self.stride() * LINE);
        let (lines, starts) = (self.x.pass(tile), &self.starts[tile * groups..][..groups]);
        let input_scales = &self.input_scales[tile * groups..][..groups];
        let weights = scratch.weights[row * self.stride()..][..HALF * self.stride()].as_ptr().cast::<u8>();
        let scales = scratch.scales[row * groups..][..HALF * groups].as_ptr();
        assert!(lines.len() >= groups * LINES && stride >= groups * LINES * FOUR);
        let mut all = [_mm512_setzero_ps(); HALF];
        // SAFETY: there are lines, starts and scales for all groups, and weights of as many columns.
        unsafe {
            for group in 0..groups {
                let mut sums = [_mm512_load_si512(starts.as_ptr().add(group).cast()); HALF];
                for line in 0..LINES {
                    let at = group * LINES + line;
                    let inputs = _mm512_load_si512(lines.as_ptr().add(at).cast());
                    for r in 0..HALF {
                        let four = weights.add(r * stride + at * FOUR).cast::<i32>().read_unaligned();
                        sums[r] = _mm512_dpbusd_epi32(sums[r], _mm512_set1_epi32(four), inputs);
                    }
                }
                let input_scale = _mm512_load_ps(input_scales.as_ptr().add(group).cast());
                for r in 0..HALF {
                    let scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(sums[r]), input_scale);
                    all[r] = _mm512_fmadd_ps(scaled, _mm512_set1_ps(*scales.add(r * groups + group)), all[r]);
                }
            }
        }
        all
    }
}

/// What the sums of four columns by line begin with: -128 times the inputs, by lane.
///
/// # Safety
/// The processor must have AVX-512 F and VNNI.
#[target_feature(enable = "avx512f,avx512vnni")]
unsafe fn start_of(lines: &[Line<i8, LINE>]) -> Line<i32, 16> {
    let mut sums = _mm512_setzero_si512();
    for line in lines {
        // SAFETY: a line is a whole aligned vector.
        let inputs = unsafe { _mm512_load_si512(line.0.as_ptr().cast()) };
        sums = _mm512_dpbusd_epi32(sums, _mm512_set1_epi8(-128), inputs);
    }
    let mut start = Line([0; 16]);
    // SAFETY: as above.
    unsafe {
        _mm512_store_si512(start.0.as_mut_ptr().cast(), _mm512_sub_epi32(_mm512_setzero_si512(), sums));
    }
    start
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::ValuesMut;
    use crate::format::Format;
    use crate::linear::encoded_sample::{Sample, noise};
    use crate::linear::output::Outputs;
    use crate::simd::Level;

    #[test]
    fn groups_are_summed_exactly_and_scaled_in_order() {
        let bytes = is_x86_feature_detected!("avx512vbmi") && is_x86_feature_detected!("avx512vnni");
        if Level::detect() < Level::Avx512 || !bytes {
            return;
        }
        let (m, n, k) = (37, 70, 300);
        let mut weights: Vec<f32> = (0..n * k).map(noise).collect();
        weights[5 * k..][..64].fill(0.0);
        let mut inputs: Vec<f32> = (0..m * k).map(|i| noise(i + 77_777) * 3.0).collect();
        inputs[4 * k..][..100].fill(0.0);
        let formats = ["int8:g32", "mxint8", "int4:g32", "mxfp4", "nvfp4", "mxint6", "int8:channel", "int4:g128"];
        for (text, input) in formats.iter().flat_map(|text| [(text, "int8:g32"), (text, "mxint8"), (text, "nvfp4")]) {
            let formats = [text, input].map(|text| Format::parse(text).unwrap());
            let [plan, input_plan] = formats.map(|format| Plan::new(format).unwrap());
            let (w, x) = (Sample::new(&weights, k, formats[0]), Sample::new(&inputs, k, formats[1]));
            let (rows, encoded) = (w.rows(Level::Avx512), x.rows(Level::Avx512));
            let mut found = vec![0.0f32; m * n];
            let mut values = ValuesMut::F32(&mut found);
            let out = Biased::new(Outputs::new(&mut values, n, Level::Avx512), &[]);
            // SAFETY: the instructions were detected; the last row is left out.
            let (fixed, product) = unsafe {
                let fixed = FixedInputs::encoded(&input_plan, &encoded, m, |row| row == m - 1).unwrap();
                let product = Product::new(&plan, &rows, &fixed, input_plan.group).unwrap();
                let left = |row, _, _| {
                    assert_eq!(row, Some(m - 1));
                    Ok(())
                };
                product.multiply(n, &out, left).unwrap();
                (fixed, product)
            };
            let mut decoded = vec![0.0f32; k];
            let group = product.group;
            for (row, weight) in (0..m - 1).flat_map(|row| [0, 5, 69].map(|weight| (row, weight))) {
                rows.decode(weight, 0..k, &mut decoded, &mut Default::default());
                let mut wanted = 0.0f32;
                for first in (0..k).step_by(group) {
                    let columns = first..k.min(first + group);
                    // The step of the group: what decoded weights are whole multiples of.
                    let step = product.step(weight, first);
                    let number = |column: usize| if step == 0.0 { 0 } else { (decoded[column] / step).round() as i32 };
                    let sum: i32 = columns.map(|c| number(c) * i32::from(fixed.plane(row, 0)[c])).sum();
                    wanted = (sum as f32 * fixed.unit(row, first)).mul_add(step, wanted);
                }
                assert_eq!(found[row * n + weight].to_bits(), wanted.to_bits(), "{text} x {input}: {row}, {weight}");
            }
        }
    }

    impl Product<'_> {
        /// What 1 counts in a column of a row of weights.
        fn step(&self, row: usize, column: usize) -> f32 {
            let (stride, groups) = (UNIT * self.stride(), UNIT * self.groups);
            let mut scratch = Scratch { weights: vec![Line([0; LINE]); stride], scales: vec![0.0; groups] };
            // SAFETY: the caller has detected the instructions.
            assert!(unsafe { self.read(row, 1, &mut scratch) });
            scratch.scales[column / self.group]
        }
    }
}
