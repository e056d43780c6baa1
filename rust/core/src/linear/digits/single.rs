//! One row of inputs: the columns of a tile of inputs are the digits in four groups, with zeros wherever a row belongs
//! to another group, so that one product keeps the groups apart.

use std::arch::x86_64::*;

use super::inputs::FixedInputs;
use super::plan::{MOST_DIGITS, Plan, Scale};
use super::scales::Scales;
use super::unpack::{Order, TILE, Unpacker};
use super::{CHUNK, DIGITS};
use crate::codec::rows::Rows;
use crate::codec::zeroed;
use crate::error::Result;
use crate::linear::tiles::{LINE, Line, Pair, ROWS, Session};

/// Groups in a block: what one product keeps apart.
const GROUPS: usize = 4;
/// Columns of each: three digits, and a place for those that a second digit of weights moves up.
const PLACES: usize = 4;
/// Tiles of 64 columns in a block, at most.
const MOST_TILES: usize = 4;
/// Bytes of packed codes asked for ahead of their use.
const AHEAD: usize = 1024;

type Sums = [Line<i32, 16>; ROWS];

/// What one thread works in.
pub(in crate::linear) struct Scratch {
    tiles: Vec<Line<u8, LINE>>,
    factors: Vec<f32>,
    zeros: Vec<f32>,
    stored_zeros: Vec<u16>,
}

/// The product of packed weights with one row of inputs.
pub(in crate::linear) struct Single<'a> {
    plan: &'a Plan,
    rows: &'a Rows<'a>,
    scales: Scales<'a>,
    order: Order,
    /// Columns of a group: 16, 32 or 64. Longer stored ones are several of these.
    group: usize,
    /// A line of zeros, then a tile for each 64 columns.
    inputs: Vec<Line<i8, LINE>>,
    /// By block, what zero points are multiplied with.
    input_sums: Vec<Line<f32, 16>>,
    /// By group, what the sums count.
    units: Vec<f32>,
}

impl<'a> Single<'a> {
    /// Arranges the only row of `x`.
    pub(in crate::linear) fn new(plan: &'a Plan, rows: &'a Rows<'a>, x: &FixedInputs) -> Result<Self> {
        let group = plan.group.min(LINE);
        let order = if plan.width == 4 && group >= 32 { Order::Split } else { Order::Natural };
        let scales = Scales::new(plan, rows);
        let block = GROUPS * group;
        let mut inputs = zeroed::<Line<i8, LINE>>(1 + x.columns / LINE * ROWS)?;
        let mut input_sums = zeroed::<Line<f32, 16>>(if plan.zeros { x.columns.div_ceil(block) } else { 0 })?;
        for digit in 0..DIGITS {
            let plane = x.plane(0, digit);
            for (i, line) in inputs[1..].iter_mut().enumerate() {
                let quad: [usize; 4] = std::array::from_fn(|j| order.column(4 * i + j));
                let place = quad[0] % block / group * PLACES + digit;
                for (to, column) in line.0[4 * place..][..4].iter_mut().zip(quad) {
                    *to = plane[column];
                }
            }
            for (sums, columns) in input_sums.iter_mut().zip(plane.chunks(block)) {
                for (slot, columns) in columns.chunks(group).enumerate() {
                    sums.0[slot * PLACES + digit] = columns.iter().map(|&d| i32::from(d)).sum::<i32>() as f32;
                }
            }
        }
        let raised = crate::float::exp2(-plan.shift - scales.raised()) as f32;
        let units = (0..x.columns / group).map(|g| x.unit(0, g * group / CHUNK) * raised).collect();
        Ok(Self { plan, rows, scales, order, group, inputs, input_sums, units })
    }

    /// Room for one thread's work.
    pub(in crate::linear) fn scratch(&self) -> Scratch {
        let groups = self.units.len();
        Scratch {
            tiles: vec![Line::default(); MOST_DIGITS * MOST_TILES * ROWS],
            factors: vec![0.0; ROWS * groups],
            zeros: vec![0.0; if self.plan.zeros { ROWS * groups } else { 0 }],
            stored_zeros: Vec::new(),
        }
    }

    /// Writes the products of 16 rows of weights, or as many as there are, from `first` on; false, with nothing
    /// written, where their scales are out of range.
    ///
    /// # Safety
    /// The processor must have AVX-512 F, BW, VL and VBMI, and `session` be one of 64 columns.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi")]
    pub(in crate::linear) unsafe fn run(
        &self,
        session: &Session,
        first: usize,
        out: &mut [f32],
        scratch: &mut Scratch,
    ) -> bool {
        let Scratch { tiles, factors, zeros, stored_zeros } = scratch;
        let (codes, row_bytes) = self.rows.codes();
        let (width, k) = (self.plan.width as usize, self.rows.k);
        let groups = self.units.len();
        // Rows beyond the last repeat it.
        let row_of = |r: usize| first + r.min(out.len() - 1);
        let at: [*const u8; ROWS] = std::array::from_fn(|r| codes[row_of(r) * row_bytes..].as_ptr());
        for (r, factors) in factors.chunks_mut(groups.max(1)).enumerate() {
            // SAFETY: as the caller promises.
            if !unsafe { self.factors(row_of(r), factors) } {
                return false;
            }
        }
        for (r, zeros) in zeros.chunks_mut(groups.max(1)).enumerate() {
            self.rows.zeros(row_of(r), stored_zeros);
            let each = self.plan.group / self.group;
            for (g, zero) in zeros.iter_mut().enumerate() {
                *zero = f32::from(stored_zeros[(g / each).min(stored_zeros.len() - 1)]);
            }
        }
        let unpacker = Unpacker::new(self.plan);
        let mut sums = [[[Line([0i32; 16]); ROWS]; 2]; 2];
        let mut totals = [_mm512_setzero_ps(); ROWS];
        let block = GROUPS * self.group;
        let blocks = k.div_ceil(block);
        let mut pairs = [[Pair::default(); 2 * MOST_TILES]; 2];
        // SAFETY: rows have `row_bytes` bytes, of which no more than those left are read; the inputs cover whole blocks.
        unsafe {
            for i in 0..blocks {
                let start = i * block * width / 8;
                let left = k - i * block;
                let count = match self.order {
                    Order::Natural => left.min(block).div_ceil(LINE),
                    Order::Split => 2 * left.min(block).div_ceil(2 * LINE),
                };
                let sources: [*const u8; ROWS] = std::array::from_fn(|r| at[r].add(start));
                for source in sources {
                    for line in 0..(block * width / 8).div_ceil(LINE) {
                        _mm_prefetch::<_MM_HINT_T0>(source.wrapping_add(AHEAD + line * LINE).cast());
                    }
                }
                let base = tiles.as_mut_ptr().cast::<u8>();
                unpacker.run(self.order, &sources, row_bytes - start, count, MOST_TILES, base);
                let inputs = self.inputs.as_ptr().cast::<u8>().add(LINE + i * block / LINE * TILE);
                for pair in 0..self.plan.pairs() {
                    let list = &mut pairs[pair];
                    let digits = (self.plan.digits - 2 * pair).min(2);
                    for digit in 0..digits {
                        for tile in 0..count {
                            list[digit * count + tile] = Pair {
                                weights: (((2 * pair + digit) * MOST_TILES + tile) * TILE) as isize,
                                // A second digit counts 256 times as much: its products belong one column further.
                                inputs: (tile * TILE) as isize - 4 * digit as isize,
                            };
                        }
                    }
                    session.multiply(&list[..digits * count], base, LINE, inputs, &mut sums[i % 2][pair]);
                }
                if i > 0 {
                    self.add(i - 1, &sums[(i - 1) % 2], factors, zeros, &mut totals);
                }
            }
            if blocks > 0 {
                self.add(blocks - 1, &sums[(blocks - 1) % 2], factors, zeros, &mut totals);
            }
        }
        for (r, out) in out.iter_mut().enumerate() {
            let lanes = Line(to_array(totals[r])).0;
            let places: [f32; PLACES] =
                std::array::from_fn(|i| (lanes[i] + lanes[i + 8]) + (lanes[i + 4] + lanes[i + 12]));
            let sum = places.iter().rev().fold(0.0f32, |sum, &place| sum.mul_add(256.0, place));
            *out = match self.plan.scale {
                Scale::Row => sum * self.rows.row_step(first + r) as f32,
                _ => sum,
            };
        }
        true
    }

    /// Scales of a row times what its inputs count, by group of ours.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn factors(&self, row: usize, factors: &mut [f32]) -> bool {
        if self.plan.scale == Scale::Row {
            factors.copy_from_slice(&self.units);
            return true;
        }
        let stored = self.scales.groups;
        let each = self.plan.group / self.group;
        let mut scales = [0.0f32; 64];
        let mut fits = true;
        for start in (0..stored).step_by(64) {
            let scales = &mut scales[..64.min(stored - start)];
            // SAFETY: as the caller promises; the row has `stored` scales.
            fits &= unsafe { self.scales.read(row, start, scales) };
            let to = start * each;
            let end = (to + scales.len() * each).min(factors.len());
            for (i, (factor, unit)) in factors[to..end].iter_mut().zip(&self.units[to..end]).enumerate() {
                *factor = scales[i / each] * unit;
            }
        }
        fits
    }

    /// Adds the sums of a block, scaled, to the totals of each row.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn add(&self, block: usize, sums: &[Sums; 2], factors: &[f32], zeros: &[f32], totals: &mut [__m512; ROWS]) {
        let groups = self.units.len();
        let spread = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
        for (r, total) in totals.iter_mut().enumerate() {
            let at = r * groups + block * GROUPS;
            // SAFETY: rows have a whole number of chunks, hence of blocks, of groups.
            unsafe {
                let factor =
                    _mm512_permutexvar_ps(spread, _mm512_castps128_ps512(_mm_loadu_ps(factors.as_ptr().add(at))));
                let mut sum = _mm512_cvtepi32_ps(_mm512_load_si512(sums[0][r].0.as_ptr().cast()));
                if self.plan.pairs() == 2 {
                    let high = _mm512_cvtepi32_ps(_mm512_load_si512(sums[1][r].0.as_ptr().cast()));
                    sum = _mm512_fmadd_ps(high, _mm512_set1_ps(65_536.0), sum);
                }
                if self.plan.zeros {
                    let zero =
                        _mm512_permutexvar_ps(spread, _mm512_castps128_ps512(_mm_loadu_ps(zeros.as_ptr().add(at))));
                    let inputs = _mm512_load_ps(self.input_sums[block].0.as_ptr());
                    sum = _mm512_fnmadd_ps(zero, inputs, sum);
                }
                *total = _mm512_fmadd_ps(sum, factor, *total);
            }
        }
    }
}

#[target_feature(enable = "avx512f")]
fn to_array(v: __m512) -> [f32; 16] {
    let mut lanes = [0.0; 16];
    // SAFETY: the array holds 16 values.
    unsafe { _mm512_storeu_ps(lanes.as_mut_ptr(), v) };
    lanes
}
