//! Inputs in the order in which the kernel reads them, and what its sums of them start from.

use std::arch::x86_64::*;

use super::inputs::FixedInputs;
use super::plan::Plan;
use crate::codec::zeroed;
use crate::error::Result;
use crate::simd::Line;
use crate::simd::amx::LINE;

/// One row of inputs.
pub(super) struct Input {
    /// Limbs of a number.
    pub(super) count: usize,
    /// By block and limb, one line, or two of nibbles.
    pub(super) limbs: Vec<Line<i8, LINE>>,
    /// By block and limb of the products, initial values of the accumulators.
    pub(super) starts: Vec<Line<i32, 16>>,
    /// By block and limb, sums of inputs, which zero points multiply.
    pub(super) sums: Vec<Line<f32, 16>>,
    /// By block, sums of inputs over all limbs times their units, which offsets multiply.
    pub(super) totals: Vec<Line<f32, 16>>,
    /// By block, the scale of the accumulators, where all lanes have one.
    pub(super) units: Vec<f32>,
    /// By block and lane, where groups of codes have each their own.
    pub(super) unit_lines: Vec<Line<f32, 16>>,
    /// The smallest of these but 0.
    pub(super) least: f32,
}

/// What inputs are arranged for.
pub(super) struct Weights<'a> {
    pub(super) plan: &'a Plan,
    /// Columns of a block: 64, or 128 of nibbles.
    pub(super) block: usize,
    /// What scales are to be multiplied with.
    pub(super) raised: f32,
}

impl Input {
    /// Arranges a row; `None` where it has no fixed-point form, or where its smallest numbers would vanish.
    ///
    /// # Safety
    /// The processor must have BMI2, AVX-512 F and VNNI.
    pub(super) unsafe fn new(x: &FixedInputs, row: usize, to: &Weights<'_>) -> Result<Option<Self>> {
        let &Weights { plan, block, raised } = to;
        let (count, blocks, lines) = (x.limbs(row), x.columns / block, block / LINE);
        if count == 0 {
            return Ok(None);
        }
        let mut input = Self {
            count,
            limbs: zeroed(blocks * count * lines)?,
            starts: zeroed(blocks * (count + plan.limbs - 1))?,
            sums: zeroed(if plan.zeros { blocks * count } else { 0 })?,
            totals: zeroed(if plan.offsets { blocks } else { 0 })?,
            units: zeroed(if count > 1 { blocks } else { 0 })?,
            unit_lines: zeroed(if count > 1 { 0 } else { blocks })?,
            least: f32::INFINITY,
        };
        let each = block / input.lanes();
        for at in 0..blocks * input.lanes() {
            let given = x.unit(row, at * each);
            let unit = given * raised;
            if given != 0.0 {
                if unit.abs() < f32::MIN_POSITIVE {
                    return Ok(None);
                }
                input.least = input.least.min(unit.abs());
            }
            if count > 1 { input.units[at] = unit } else { input.unit_lines[at / 16].0[at % 16] = unit }
        }
        for limb in 0..count {
            let plane = x.plane(row, limb).chunks_exact(block);
            let to = input.limbs.chunks_exact_mut(lines).skip(limb).step_by(count);
            for (columns, to) in plane.zip(to) {
                // SAFETY: as the caller promises.
                unsafe { if lines == 2 { split(columns, to) } else { to[0].0.copy_from_slice(columns) } }
            }
        }
        let places = count + plan.limbs - 1;
        for (block, starts) in input.starts.chunks_exact_mut(places).enumerate() {
            for limb in (0..count).rev() {
                let lines = &input.limbs[(block * count + limb) * lines..][..lines];
                // SAFETY: as the caller promises.
                let all = unsafe { lane_sums(lines) };
                for place in 0..plan.limbs {
                    let offset = plan.offset >> (8 * place) & 255;
                    let start = &mut starts[limb + place].0;
                    start.iter_mut().zip(&all.0).for_each(|(start, sum)| *start -= offset * sum);
                }
                if let Some(sums) = input.sums.get_mut(block * count + limb) {
                    sums.0 = all.0.map(|sum| sum as f32);
                }
                if let Some(totals) = input.totals.get_mut(block) {
                    let units = match limb {
                        0 if count > 1 => Line([input.units[block]; 16]),
                        0 => input.unit_lines[block],
                        _ => Line([1.0; 16]),
                    };
                    // SAFETY: as the caller promises.
                    unsafe { add_limb(totals, &all, &units) };
                }
            }
        }
        Ok(Some(input))
    }

    /// Units of a block.
    const fn lanes(&self) -> usize {
        if self.count > 1 { 1 } else { 16 }
    }

    /// True where the product of a scale, `per_block` to a block, and a unit, neither of which is 0, is no normal number.
    pub(super) fn vanishes(&self, scales: &[f32], per_block: usize) -> bool {
        let least = |s: f32, u: f32| s != 0.0 && u != 0.0 && (s * u).abs() < f32::MIN_POSITIVE;
        scales.chunks(per_block).enumerate().any(|(block, scales)| {
            let unit = |lane: usize| match self.count {
                1 => self.unit_lines[block].0[lane],
                _ => self.units[block],
            };
            (0..16).any(|lane| scales.get(lane * per_block / 16).is_some_and(|&scale| least(scale, unit(lane))))
        })
    }
}

/// Sums of the four columns of each lane, over lines.
///
/// # Safety
/// The processor must have AVX-512 F and VNNI.
#[target_feature(enable = "avx512f,avx512vnni")]
unsafe fn lane_sums(lines: &[Line<i8, LINE>]) -> Line<i32, 16> {
    let mut sums = _mm512_setzero_si512();
    for line in lines {
        // SAFETY: a line is a whole aligned vector.
        let columns = unsafe { _mm512_load_si512(line.0.as_ptr().cast()) };
        sums = _mm512_dpbusd_epi32(sums, _mm512_set1_epi8(1), columns);
    }
    let mut all = Line([0; 16]);
    // SAFETY: as above.
    unsafe { _mm512_store_si512(all.0.as_mut_ptr().cast(), sums) };
    all
}

/// Makes totals `(256 * totals + sums) * units`.
///
/// # Safety
/// The processor must have AVX-512 F.
#[target_feature(enable = "avx512f")]
unsafe fn add_limb(totals: &mut Line<f32, 16>, sums: &Line<i32, 16>, units: &Line<f32, 16>) {
    // SAFETY: lines are whole aligned vectors.
    unsafe {
        let sums = _mm512_cvtepi32_ps(_mm512_load_si512(sums.0.as_ptr().cast()));
        let all = _mm512_fmadd_ps(_mm512_load_ps(totals.0.as_ptr()), _mm512_set1_ps(256.0), sums);
        _mm512_store_ps(totals.0.as_mut_ptr(), _mm512_mul_ps(all, _mm512_load_ps(units.0.as_ptr())));
    }
}

/// Splits 128 columns into the even and the odd ones.
///
/// # Safety
/// The processor must have BMI2.
#[target_feature(enable = "bmi2")]
unsafe fn split(columns: &[i8], to: &mut [Line<i8, LINE>]) {
    let [even, odd] = to else { return };
    let halves = even.0.as_chunks_mut::<4>().0.iter_mut().zip(odd.0.as_chunks_mut::<4>().0);
    for (eight, (even, odd)) in columns.as_chunks::<8>().0.iter().zip(halves) {
        let all = u64::from_le_bytes(eight.map(i8::cast_unsigned));
        let low = 0x00ff_00ff_00ff_00ff;
        *even = (_pext_u64(all, low) as u32).to_le_bytes().map(u8::cast_signed);
        *odd = (_pext_u64(all, !low) as u32).to_le_bytes().map(u8::cast_signed);
    }
}
