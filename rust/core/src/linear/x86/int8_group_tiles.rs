//! Products of codes for many rows of inputs: sums of a group exact in int32, scaled with both scales in float32.
//!
//! `y = sum over groups, in order, of fma(sum of the group * scale of inputs, scale of weights, y)`.
//!
//! Inputs are codes, or, on AMX, the limbs of numbers in fixed point: sums of each limb are exact. Zero points are taken off
//! the codes of weights.
//!
//! AMX multiplies sixteen rows of weights with sixteen of inputs, a group at a time. On VNNI, rows of inputs are the lanes of
//! a register, and four columns of a row of weights are broadcast to all of them; weights are stored as unsigned bytes, 128
//! too large, and accumulators start at minus 128 times the sum of inputs.

use std::arch::x86_64::*;
use std::cell::RefCell;
use std::ops::Range;

use super::bf16_limbs;
use super::code_tables::{plan, require};
use super::int8_limbs_vnni::{FixedInputs, Plan, Scale, Scales, is_moderate};
use super::int8_tiles::arrange;
use crate::codec::DType;
use crate::codec::rows::Rows;
use crate::codec::{set_len, zeroed};
use crate::error::Result;
use crate::format::Granularity;
use crate::linear::fallback::Fallback;
use crate::linear::float::{FloatProduct, rows_at_a_time};
use crate::linear::output::Biased;
use crate::linear::problem::{Input, Problem};
use crate::linear::ran;
use crate::linear::rounded::CodesProduct;
use crate::pool;
use crate::simd::tiles::groups::{FOUR, GroupSession, Groups};
use crate::simd::tiles::{LINE, ROWS, Tiles};
use crate::simd::transpose::transpose;
use crate::simd::{Floats, Line};

/// Rows of weights in one unit of work: unpacked, they stay in the L2 cache while rows of inputs take turns.
const UNIT: usize = 64;
/// Bytes of inputs that are multiplied before the next panel of weights takes its turn, about: they stay in the L1 cache
/// beside its weights.
const CHUNK: usize = 24 << 10;
/// Tiles of inputs whose sums are kept while chunks of groups take turns: those of a unit fit the L2 cache beside its weights.
const CACHED_TILES: usize = 8;
/// Bytes of weights that a thread keeps room for, at most.
const MAX_CACHED_BYTES: usize = 1 << 20;
/// Largest zero point whose differences to codes are bytes with a sign.
const MAX_ZERO: u16 = 127;
/// Bits of a code up to which a register holds the numbers of all codes.
const LOOKED_UP: u32 = 6;

/// Columns that share a scale in groups of weights, or parts of these: a power of two.
const fn part(plan: &Plan) -> usize {
    if plan.group == usize::MAX { 1 << (usize::BITS - 1) } else { 1 << plan.group.trailing_zeros() }
}

/// Weights from which on limbs of int8 are faster than those of bfloat16.
pub(in crate::linear) const MIN_LIMB_WEIGHTS: usize = 1 << 20;

/// True for weights of which several tiles of columns share a scale, and inputs of float32: three products of int8 take AMX half
/// as long as three of bfloat16, but scaling their sums takes longer where groups are short.
pub(in crate::linear) fn takes(problem: &Problem) -> bool {
    problem.dtype() == DType::F32
        && plan(problem.weight).is_some_and(|plan| Product::takes(&plan) && part(&plan) > LINE)
}

/// Multiplies numbers in fixed point, on AMX.
///
/// # Errors
/// Where memory is short or threads cannot be started.
pub(in crate::linear) fn run(product: &FloatProduct<'_>) -> Result<()> {
    ran::note("int8 limbs amx");
    let Problem { weight, columns: n, depth: k, .. } = product.problem;
    let (plan, rows) = (require(plan(weight), weight)?, &product.rows);
    product.in_chunks(usize::MAX, |x, m, out| {
        // SAFETY: the table asks for the instructions.
        unsafe {
            let fixed = FixedInputs::new(x.values(), m, x.stride, k)?;
            let product = Product::new(&plan, rows, &fixed, Tiles::Amx)?;
            product.multiply(n, out, &Fallback::new(rows, x, m, out))
        }
    })
}

/// True for weights and inputs of small codes, whose scales do not belong to several rows of inputs.
pub(in crate::linear) fn takes_codes(problem: &Problem) -> bool {
    let Input::Rounded(input) = problem.input else { return false };
    let apart = input.granularity() != Granularity::Tensor && !input.has_levels();
    apart
        && plan(input).is_some_and(|plan| plan.has_codes())
        && plan(problem.weight).is_some_and(|plan| Product::takes(&plan))
}

/// The same on AMX, where limbs of bfloat16 of rounded inputs are not faster: they take longer to make than codes, and pay where
/// many weights share them, or where they are few.
pub(in crate::linear) fn takes_codes_amx(problem: &Problem) -> bool {
    let shared = problem.columns >= problem.depth && problem.weights() < MIN_LIMB_WEIGHTS;
    !shared && !bf16_limbs::is_cheap(problem.weight, problem.dtype()) && takes_codes(problem)
}

/// Multiplies codes, rows of inputs a chunk at a time.
///
/// # Errors
/// Where memory is short or threads cannot be started.
pub(in crate::linear) fn run_codes(product: &CodesProduct<'_>) -> Result<()> {
    let Problem { weight, columns: n, depth: k, processor, .. } = product.problem;
    let tiles = Tiles::of(processor);
    ran::note(if tiles == Tiles::Amx { "int8 groups amx" } else { "int8 group tiles vnni" });
    let input = product.x.format;
    let (plan, inputs) = (require(plan(weight), weight)?, require(plan(input), input)?);
    product.in_chunks(rows_at_a_time(k), |chunk| {
        // SAFETY: the table asks for the instructions; `takes_codes` found inputs of one limb without zero points.
        unsafe {
            let fixed = FixedInputs::encoded(&inputs, chunk.codes, chunk.m, |row| chunk.overflows(row))?;
            let tiled = Product::new(&plan, &product.rows, &fixed, tiles)?;
            tiled.multiply(n, chunk.out, chunk.fallback)
        }
    })
}

/// The product of packed weights with the codes of rows of inputs.
struct Product<'a> {
    plan: &'a Plan,
    rows: &'a Rows<'a>,
    scales: Scales<'a>,
    /// What scales are to be multiplied with.
    raised: f32,
    x: TiledInputs,
    tiles: Tiles,
    m: usize,
    /// Whether a row of inputs has no codes.
    left: Vec<bool>,
    /// Columns that share scales here, a longer group being several of these; and how many of these a row has.
    group: usize,
    groups: usize,
    /// By sixteen rows of inputs, then group: initial values of the accumulators where weights have an offset, and scales.
    starts: Vec<Line<i32, 16>>,
    input_scales: Vec<Floats>,
    /// Numbers by code, as stored.
    table: Line<u8, LINE>,
    /// Byte permutation: for each run of eight codes, the bytes of packed codes that hold it.
    gather: Line<u8, LINE>,
    /// First bit of each code inside its run.
    shifts: Line<u8, LINE>,
    /// Of up to four zero points of 64 columns, that of each.
    zero_of: Line<u8, LINE>,
}

/// Rows of inputs, sixteen by sixteen: by group, then limb, four columns of all rows a line.
struct TiledInputs {
    lines: Vec<Line<i8, LINE>>,
    /// Limbs of each tile, and where its lines begin, and end.
    limbs: Vec<usize>,
    ends: Vec<usize>,
}

impl TiledInputs {
    /// Arranges so many columns, whole lines of them, for groups of some of these.
    ///
    /// # Safety
    /// The processor must have AVX-512 F and BW.
    unsafe fn new(x: &FixedInputs, columns: usize, group: usize) -> Result<Self> {
        let rows_of = |tile: usize| tile * ROWS..x.rows.min((tile + 1) * ROWS);
        let limbs_of = |tile: usize| rows_of(tile).map(|row| x.limbs(row)).fold(1, usize::max);
        let limbs: Vec<usize> = (0..x.rows.div_ceil(ROWS)).map(limbs_of).collect();
        let mut ends = vec![0];
        for limbs in &limbs {
            ends.push(ends[ends.len() - 1] + limbs * columns / FOUR);
        }
        let (mut lines, each) = (zeroed::<Line<i8, LINE>>(ends[limbs.len()])?, group / FOUR);
        let mut rest = lines.as_mut_slice();
        let parts = limbs.iter().enumerate().map(|(tile, limbs)| {
            let (part, after) = std::mem::take(&mut rest).split_at_mut(limbs * columns / FOUR);
            rest = after;
            (tile, *limbs, part)
        });
        pool::consume(parts.collect(), x.rows * columns, |(tile, limbs, lines)| {
            for (step, limb) in (0..columns / LINE).flat_map(|step| (0..limbs).map(move |limb| (step, limb))) {
                let mut turned = [Line([0; LINE]); ROWS];
                let columns = step * LINE..(step + 1) * LINE;
                // SAFETY: as the caller promises.
                unsafe { arrange(rows_of(tile).map(|row| &x.plane(row, limb)[columns.clone()]), &mut turned) };
                for (part, turned) in turned.chunks(each).enumerate() {
                    let line = step * ROWS + part * each;
                    let to = (line / each * limbs + limb) * each + line % each;
                    lines[to..to + turned.len()].copy_from_slice(turned);
                }
            }
        })?;
        Ok(Self { lines, limbs, ends })
    }

    /// The lines of a tile.
    fn tile(&self, tile: usize) -> &[Line<i8, LINE>] {
        &self.lines[self.ends[tile]..self.ends[tile + 1]]
    }
}

thread_local! {
    /// Memory that is new takes longer to get than a small product.
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Scratch memory of one thread.
#[derive(Default)]
struct Scratch {
    weights: Vec<Line<u8, LINE>>,
    /// By row, then group.
    row_scales: Vec<f32>,
    /// By panel of sixteen rows of weights, then group.
    scales: Vec<Floats>,
    /// Zero points of a row by group, and as they are stored.
    zeros: Vec<u8>,
    stored_zeros: Vec<u16>,
    /// By tile of inputs, then panel of sixteen rows of weights: by row of weights, sums of each row of inputs.
    sums: Vec<[Floats; ROWS]>,
    /// Outputs of sixteen rows of inputs, by row.
    values: Vec<f32>,
}

impl<'a> Product<'a> {
    /// True for weights that are multiplied here.
    const fn takes(plan: &Plan) -> bool {
        plan.is_bytes() && (plan.bytes || plan.width <= LOOKED_UP)
    }

    /// Arranges rows of inputs; weights are those of the plan.
    ///
    /// # Errors
    /// Where memory is short or threads cannot be started.
    ///
    /// # Safety
    /// The processor must have AVX-512 F, BW and VNNI; inputs must be of as many columns as the rows, and of one limb but for
    /// AMX; `tiles` must be what [`Tiles::of_bytes`] said.
    unsafe fn new(plan: &'a Plan, rows: &'a Rows<'a>, x: &FixedInputs, tiles: Tiles) -> Result<Self> {
        let scales = Scales::new(plan.scale, rows);
        let (m, group) = (x.rows, part(plan).min(x.group()).min(GroupSession::most_columns(tiles)));
        let (columns, offset) = (rows.k.next_multiple_of(group.max(LINE)), GroupSession::offset(tiles));
        let (across, groups) = (m.div_ceil(ROWS), columns / group);
        // SAFETY: as the caller promises.
        let tiled = unsafe { TiledInputs::new(x, columns, group)? };
        let mut starts = zeroed::<Line<i32, 16>>(if offset == 0 { 0 } else { across * groups })?;
        pool::for_each_chunk(&mut starts, groups.max(1), |tile, starts| {
            for (start, lines) in starts.iter_mut().zip(tiled.tile(tile).chunks(group / FOUR)) {
                // SAFETY: as the caller promises.
                *start = unsafe { start_of(lines) };
            }
        })?;
        let mut input_scales = zeroed::<Floats>(across * groups)?;
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
            table: Line(std::array::from_fn(|code| plan.tables[0][code].wrapping_add(offset))),
            gather: Line(std::array::from_fn(|i| (i / 8 * width + i % 8) as u8 & 63)),
            shifts: Line(std::array::from_fn(|i| (i % 8 * width) as u8)),
            zero_of: Line(std::array::from_fn(|i| (i / group) as u8)),
            plan,
            rows,
            scales,
            x: tiled,
            tiles,
            m,
            group,
            groups,
            starts,
            input_scales,
        })
    }

    /// The rows of inputs that have no codes, which are left to others.
    fn left(&self) -> impl Iterator<Item = usize> + Clone {
        (0..self.m).filter(|&row| self.left[row])
    }

    /// Writes all products with `n` rows of weights, unit by unit. The fallback writes those of the rows of inputs that this
    /// leaves, and those of all where weights are extreme.
    ///
    /// # Errors
    /// Where memory is short or threads cannot be started.
    ///
    /// # Safety
    /// The processor must have AVX-512 F, BW, VL, VBMI and VNNI; the matrix must have `n` rows.
    unsafe fn multiply(&self, n: usize, out: &Biased<'_>, fallback: &Fallback<'_>) -> Result<()> {
        let work = self.m.saturating_mul(n).saturating_mul(self.rows.k);
        let across = self.m.div_ceil(ROWS);
        pool::try_for_each(n.div_ceil(UNIT), work, |unit| {
            let (first, count) = (unit * UNIT, UNIT.min(n - unit * UNIT));
            let panels = count.div_ceil(ROWS);
            let mut scratch = self.scratch(CACHED_TILES.min(across) * panels)?;
            // SAFETY: as the caller promises.
            if !unsafe { self.read(first, count, &mut scratch) } {
                return fallback.run(None, first, count);
            }
            // SAFETY: the tiles were there.
            let mut session = unsafe { GroupSession::new(self.tiles, self.group) };
            for first_tile in (0..across).step_by(CACHED_TILES) {
                let tiles = first_tile..across.min(first_tile + CACHED_TILES);
                // SAFETY: as the caller promises.
                unsafe { self.sum(&mut session, &mut scratch, tiles.clone(), panels) };
                let Scratch { sums, values, .. } = &mut scratch;
                for (tile, sums) in tiles.zip(sums.chunks(panels)) {
                    for (panel, sums) in sums.iter().enumerate() {
                        // SAFETY: as the caller promises.
                        let turned = unsafe { turned(sums) };
                        for (values, turned) in values.chunks_mut(UNIT).zip(&turned) {
                            values[panel * ROWS..][..ROWS].copy_from_slice(&turned.0);
                        }
                    }
                    let rows = values.chunks_mut(UNIT).zip(tile * ROWS..self.m);
                    for (values, row) in rows.filter(|(_, row)| !self.left[*row]) {
                        // SAFETY: every unit writes its own columns.
                        unsafe { out.write(row, first, &mut values[..count]) };
                    }
                }
            }
            if size_of_val(&*scratch.weights) <= MAX_CACHED_BYTES {
                SCRATCH.set(scratch);
            }
            fallback.run_rows(self.left(), first, count)
        })
    }

    /// Scratch memory for a unit of work, with room for some tiles of sums: what the thread had.
    fn scratch(&self, tiles: usize) -> Result<Scratch> {
        let mut scratch = SCRATCH.take();
        set_len(&mut scratch.weights, UNIT * self.stride())?;
        set_len(&mut scratch.row_scales, UNIT * self.groups)?;
        set_len(&mut scratch.scales, UNIT / ROWS * self.groups)?;
        // Some beyond the last, which are read with it.
        set_len(&mut scratch.zeros, if self.plan.zeros { self.groups + 3 } else { 0 })?;
        set_len(&mut scratch.sums, tiles)?;
        set_len(&mut scratch.values, ROWS * UNIT)?;
        Ok(scratch)
    }

    /// Lines from one row of weights to the next: an odd number, so that rows do not meet in a few sets of the L1 cache.
    const fn stride(&self) -> usize {
        (self.groups * self.group / LINE) | 1
    }

    /// Unpacks `count` rows of weights from `first` on, and reads their scales; false where one is out of range.
    ///
    /// # Safety
    /// The processor must have AVX-512 F, BW, VL and VBMI; the rows must be the matrix's, at most [`UNIT`].
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi")]
    unsafe fn read(&self, first: usize, count: usize, to: &mut Scratch) -> bool {
        let (codes, row_bytes) = self.rows.codes();
        let (bytes, offset) = (LINE / 8 * self.plan.width as usize, GroupSession::offset(self.tiles).cast_signed());
        // Those of columns beyond the last.
        to.row_scales.fill(0.0);
        let rows = to.weights.chunks_mut(self.stride()).zip(to.row_scales.chunks_mut(self.groups.max(1)));
        for (row, (weights, scales)) in (first..first + count).zip(rows) {
            if self.plan.zeros && !self.read_zeros(row, &mut to.zeros, &mut to.stored_zeros) {
                return false;
            }
            let packed = codes[row * row_bytes..][..row_bytes].chunks(bytes);
            for (step, (packed, line)) in packed.zip(weights).enumerate() {
                // SAFETY: the mask keeps inside the codes, of which there are 1 to 64 bytes; lines are aligned.
                unsafe {
                    let load = |line: &Line<u8, LINE>| _mm512_load_si512(line.0.as_ptr().cast());
                    let packed = _mm512_maskz_loadu_epi8(u64::MAX >> (LINE - packed.len()), packed.as_ptr().cast());
                    let mut numbers = if self.plan.bytes {
                        _mm512_add_epi8(packed, _mm512_set1_epi8(offset))
                    } else {
                        let runs = _mm512_permutexvar_epi8(load(&self.gather), packed);
                        let codes = _mm512_multishift_epi64_epi8(load(&self.shifts), runs);
                        _mm512_permutexvar_epi8(codes, load(&self.table))
                    };
                    if self.plan.zeros {
                        let four = to.zeros.as_ptr().add(step * LINE / self.group).cast::<i32>().read_unaligned();
                        let zeros = _mm512_permutexvar_epi8(load(&self.zero_of), _mm512_set1_epi32(four));
                        numbers = _mm512_sub_epi8(numbers, zeros);
                    }
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
        let panels = to.row_scales.chunks(ROWS * self.groups.max(1)).zip(to.scales.chunks_mut(self.groups.max(1)));
        for (rows, lines) in panels.take(count.div_ceil(ROWS)) {
            // SAFETY: as the caller promises.
            unsafe { turn_scales(rows, lines) };
        }
        true
    }

    /// Reads the zero points of a row, by group; false where one is too large.
    fn read_zeros(&self, row: usize, each: &mut [u8], stored: &mut Vec<u16>) -> bool {
        self.rows.zeros(row, stored);
        let times = self.plan.group / self.group;
        if times == 1 {
            each.iter_mut().zip(&*stored).for_each(|(each, zero)| *each = *zero as u8);
        } else {
            each.chunks_mut(times).zip(&*stored).for_each(|(each, zero)| each.fill(*zero as u8));
        }
        stored.iter().fold(0, |most, zero| *zero.max(&most)) <= MAX_ZERO
    }

    /// Writes the sums of so many `panels` of weights and some tiles of inputs.
    ///
    /// # Safety
    /// The session must be one for the tiles and the group; panels and tiles must be there, and room for their sums.
    unsafe fn sum(&self, session: &mut GroupSession, scratch: &mut Scratch, tiles: Range<usize>, panels: usize) {
        let Scratch { weights, scales, sums, .. } = scratch;
        let limbs = self.x.limbs[tiles.clone()].iter().copied().max().unwrap_or(1);
        let chunk = (CHUNK / (limbs * self.group * ROWS)).max(1);
        sums.fill([Line([0.0; 16]); ROWS]);
        for first in (0..self.groups).step_by(chunk) {
            let groups = first..self.groups.min(first + chunk);
            for (tile, sums) in tiles.clone().zip(sums.chunks_mut(panels)) {
                let of_tile = tile * self.groups + groups.start..tile * self.groups + groups.end;
                let lines = self.x.limbs[tile] * self.group / FOUR;
                let inputs = &self.x.tile(tile)[groups.start * lines..groups.end * lines];
                for (panel, sums) in sums.iter_mut().enumerate() {
                    let row = panel * ROWS;
                    let factors = Groups {
                        weights: weights[row * self.stride()..].as_ptr().cast::<u8>().wrapping_add(first * self.group),
                        stride: self.stride() * LINE,
                        scales: &scales[panel * self.groups..][groups.clone()],
                        inputs,
                        limbs: self.x.limbs[tile],
                        input_scales: &self.input_scales[of_tile.clone()],
                        starts: self.starts.get(of_tile.clone()).unwrap_or_default(),
                    };
                    // SAFETY: there are weights of sixteen rows, for all groups.
                    unsafe { session.add(&factors, sums) };
                }
            }
        }
    }
}

/// Sums by row of weights, then row of inputs, by row of inputs.
///
/// # Safety
/// The processor must have AVX-512 F.
#[target_feature(enable = "avx512f")]
unsafe fn turned(sums: &[Floats; ROWS]) -> [Floats; ROWS] {
    let (mut values, mut all) = ([_mm512_setzero_ps(); ROWS], [Line([0.0; 16]); ROWS]);
    // SAFETY: lines are aligned and hold sixteen values.
    unsafe {
        values.iter_mut().zip(sums).for_each(|(values, sums)| *values = _mm512_load_ps(sums.0.as_ptr()));
        all.iter_mut().zip(&transpose(values)).for_each(|(line, values)| _mm512_store_ps(line.0.as_mut_ptr(), *values));
    }
    all
}

/// Scales of sixteen rows, by row and then group, by group.
///
/// # Safety
/// The processor must have AVX-512 F.
#[target_feature(enable = "avx512f")]
unsafe fn turn_scales(rows: &[f32], lines: &mut [Floats]) {
    let groups = lines.len();
    for (at, lines) in lines.chunks_mut(ROWS).enumerate() {
        let mut scales = [_mm512_setzero_ps(); ROWS];
        for (row, scales) in rows.chunks(groups).zip(&mut scales) {
            let chunk = &row[at * ROWS..][..lines.len()];
            // SAFETY: the mask keeps inside the scales, of which there are 1 to 16.
            *scales = unsafe { _mm512_maskz_loadu_ps(u16::MAX >> (ROWS - chunk.len()), chunk.as_ptr()) };
        }
        // SAFETY: as the caller promises; lines are aligned and hold sixteen values.
        unsafe {
            let turned = transpose(scales);
            lines.iter_mut().zip(&turned).for_each(|(line, scales)| _mm512_store_ps(line.0.as_mut_ptr(), *scales));
        }
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
    use crate::codec::{Values, ValuesMut};
    use crate::format::Format;
    use crate::linear::encoded_sample::{Sample, noise};
    use crate::linear::output::{Inputs, Outputs};
    use crate::simd::{LANES, Level, Processor};

    #[test]
    fn groups_are_summed_exactly_and_scaled_in_order() {
        if Processor::detect() < Processor::Avx512Vnni {
            return;
        }
        let mut tiles = vec![Tiles::Vectors];
        tiles.extend((Processor::detect() == Processor::Amx).then_some(Tiles::Amx));
        let (m, n, k) = (37, 70, 300);
        let mut weights: Vec<f32> = (0..n * k).map(noise).collect();
        weights[5 * k..][..64].fill(0.0);
        let mut inputs: Vec<f32> = (0..m * k).map(|i| noise(i + 77_777) * 3.0).collect();
        inputs[4 * k..][..100].fill(0.0);
        let formats = ["int8:g32", "mxint8", "int4:g32", "mxfp4", "nvfp4", "mxint6", "int8:channel", "int4:g128"];
        let cases = formats.iter().flat_map(|text| [(text, "int8:g32"), (text, "mxint8"), (text, "nvfp4")]);
        for (text, input, tiles) in cases.flat_map(|(text, input)| tiles.iter().map(move |tiles| (text, input, *tiles)))
        {
            let formats = [text, input].map(|text| Format::parse(text).unwrap());
            let [plan, input_plan] = formats.map(|format| Plan::new(format).unwrap());
            let (w, x) = (Sample::new(&weights, k, formats[0]), Sample::new(&inputs, k, formats[1]));
            let (rows, encoded) = (w.rows(Level::Avx512), x.rows(Level::Avx512));
            let mut outputs = vec![0.0f32; m * n];
            let mut values = ValuesMut::F32(&mut outputs);
            let out = Biased::new(Outputs::new(&mut values, n, Level::Avx512), &[]);
            let wide = Inputs::new(Values::F32(&inputs), m, k, LANES, Level::Avx512).unwrap();
            let fallback = Fallback::new(&rows, &wide, m, &out);
            // SAFETY: the instructions were detected; the last row is left out.
            let (fixed, product) = unsafe {
                let fixed = FixedInputs::encoded(&input_plan, &encoded, m, |row| row == m - 1).unwrap();
                let product = Product::new(&plan, &rows, &fixed, tiles).unwrap();
                assert!(product.left().eq([m - 1]));
                product.multiply(n, &out, &fallback).unwrap();
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
                let output = outputs[row * n + weight];
                assert_eq!(output.to_bits(), wanted.to_bits(), "{text} x {input}, {tiles:?}: {row}, {weight}");
            }
        }
    }

    impl Product<'_> {
        /// What 1 counts in a column of a row of weights.
        fn step(&self, row: usize, column: usize) -> f32 {
            let mut scratch = self.scratch(0).unwrap();
            // SAFETY: the caller has detected the instructions.
            assert!(unsafe { self.read(row, 1, &mut scratch) });
            scratch.scales[column / self.group].0[0]
        }
    }
}
