//! Products of tiles by the dot products of AVX-512.
//!
//! A line of inputs is a register, a pair or four of a row of weights is broadcast from memory, and sums of rows stay in
//! registers, those of two tiles of bfloat16 together, which loads less. Rounding and order of summation are those of AMX.

use std::arch::x86_64::*;

use super::groups::{FOUR, Groups, add_group};
use super::{Factors, FloatSums, LINE, ROWS, Run, Scales, TILE};
use crate::simd::{Floats, Line};

/// Steps of int8 whose factors stay in the L1 cache while tiles of inputs take turns.
const BLOCK: usize = 8;
/// Rows of weights whose products and sums are in registers together.
const HALF: usize = ROWS / 2;

/// Sums of the rows of a tile.
type Rows<T> = [Line<T, 16>; ROWS];

/// The bits at an address as sixteen equal numbers.
///
/// # Safety
/// Four bytes must be readable.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn broadcast(at: *const u8) -> __m512i {
    // SAFETY: as the caller promises.
    _mm512_set1_epi32(unsafe { at.cast::<i32>().read_unaligned() })
}

/// Adds the products of `R` rows of weights in bfloat16, a line of 32 columns each, with `T` tiles of inputs.
///
/// # Safety
/// Weights and tiles must be readable.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
#[expect(clippy::needless_range_loop, reason = "loops over constants are unrolled, iterators are not")]
unsafe fn multiply_halves<const R: usize, const T: usize>(
    weights: *const u8,
    inputs: *const u8,
    sums: &mut [[__m512; R]; T],
) {
    for pair in 0..ROWS {
        // SAFETY: as the caller promises; a register of 32 halves is one of bfloat16.
        unsafe {
            let mut lines = [_mm512_setzero_si512(); T];
            for tile in 0..T {
                lines[tile] = _mm512_loadu_si512(inputs.add(tile * TILE + pair * LINE).cast());
            }
            for row in 0..R {
                let weight: __m512bh = std::mem::transmute(broadcast(weights.add(row * LINE + 4 * pair)));
                for tile in 0..T {
                    let line: __m512bh = std::mem::transmute(lines[tile]);
                    sums[tile][row] = _mm512_dpbf16_ps(sums[tile][row], line, weight);
                }
            }
        }
    }
}

/// As [`super::Session::add_products`].
///
/// # Safety
/// As there; the processor must have AVX-512 F and BF16.
#[target_feature(enable = "avx512f,avx512bf16")]
pub(super) unsafe fn add_products(factors: &Factors<'_>, fresh: bool, sums: &mut FloatSums) {
    // Tiles of inputs stay in the L1 cache while rows of weights take turns.
    for (panel, sums) in sums.iter_mut().enumerate() {
        let weights = factors.weights.wrapping_add(panel * factors.panel);
        // SAFETY: as the caller promises.
        unsafe {
            match sums {
                [sums, _] if factors.across == 1 => {
                    add_products_to::<ROWS, 1>(factors, weights, 0, fresh, std::array::from_mut(sums));
                }
                _ => {
                    add_products_to::<HALF, 2>(factors, weights, 0, fresh, sums);
                    add_products_to::<HALF, 2>(factors, weights, HALF, fresh, sums);
                }
            }
        }
    }
}

/// The same of `R` rows of a panel of weights, from `first` on, and `T` tiles of inputs.
///
/// # Safety
/// As for [`add_products`].
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn add_products_to<const R: usize, const T: usize>(
    factors: &Factors<'_>,
    weights: *const u8,
    first: usize,
    fresh: bool,
    sums: &mut [Rows<f32>; T],
) {
    // SAFETY: as the caller promises.
    unsafe {
        let mut all = [[_mm512_setzero_ps(); R]; T];
        if !fresh {
            for tile in 0..T {
                for row in 0..R {
                    all[tile][row] = _mm512_load_ps(sums[tile][first + row].0.as_ptr());
                }
            }
        }
        for step in factors.steps {
            for limb in 0..step.limbs {
                let inputs = factors.inputs.add(step.inputs + limb * T * TILE);
                multiply_halves(weights.add(step.weights + first * LINE), inputs, &mut all);
            }
        }
        for tile in 0..T {
            for row in 0..R {
                _mm512_store_ps(sums[tile][first + row].0.as_mut_ptr(), all[tile][row]);
            }
        }
    }
}

/// As [`super::Session::add_scaled`].
///
/// # Safety
/// As there; the processor must have AVX-512 F and BF16.
#[target_feature(enable = "avx512f,avx512bf16")]
pub(super) unsafe fn add_scaled<'s>(
    factors: &Factors<'_>,
    group: usize,
    scales: impl Fn(usize) -> Scales<'s>,
    sums: &mut FloatSums,
) {
    for (panel, sums) in sums.iter_mut().enumerate() {
        for first in [0, HALF] {
            // SAFETY: as the caller promises.
            unsafe {
                match sums {
                    [sums, _] if factors.across == 1 => {
                        add_scaled_to(factors, group, (panel, first), &scales, std::array::from_mut(sums));
                    }
                    _ => add_scaled_to(factors, group, (panel, first), &scales, sums),
                }
            }
        }
    }
}

/// The same of [`HALF`] rows of a panel of weights, both given, and `T` tiles of inputs.
///
/// # Safety
/// As for [`add_scaled`].
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
#[expect(clippy::needless_range_loop, reason = "loops over constants are unrolled, iterators are not")]
unsafe fn add_scaled_to<'s, const T: usize>(
    factors: &Factors<'_>,
    group: usize,
    (panel, first): (usize, usize),
    scales: &impl Fn(usize) -> Scales<'s>,
    sums: &mut [Rows<f32>; T],
) {
    let weights = factors.weights.wrapping_add(panel * factors.panel + first * LINE);
    for (at, steps) in factors.steps.chunks(group).enumerate() {
        // SAFETY: as the caller promises.
        unsafe {
            let mut products = [[_mm512_setzero_ps(); HALF]; T];
            for step in steps {
                for limb in 0..step.limbs {
                    let inputs = factors.inputs.add(step.inputs + limb * T * TILE);
                    multiply_halves(weights.add(step.weights), inputs, &mut products);
                }
            }
            let (rows, columns) = scales(at);
            if let Some(columns) = columns {
                for tile in 0..T {
                    let columns = _mm512_load_ps(columns[tile].0.as_ptr());
                    for row in 0..HALF {
                        products[tile][row] = _mm512_mul_ps(products[tile][row], columns);
                    }
                }
            }
            for row in 0..HALF {
                let scale = _mm512_set1_ps(rows[panel * ROWS + first + row]);
                for tile in 0..T {
                    let sum = sums[tile][first + row].0.as_mut_ptr();
                    _mm512_store_ps(sum, _mm512_fmadd_ps(products[tile][row], scale, _mm512_load_ps(sum)));
                }
            }
        }
    }
}

/// As [`super::Session::multiply_across`], for as many tiles as there are sums of.
///
/// # Safety
/// As there; the processor must have AVX-512 F and VNNI.
#[target_feature(enable = "avx512f,avx512vnni")]
pub(super) unsafe fn multiply_across(run: Run, sums: &mut [Rows<i32>]) {
    // The instruction takes numbers without a sign times numbers with one: 128 is added to the inputs, and 128 times the
    // weights taken off.
    let (offset, across) = (_mm512_set1_epi8(-128), sums.len());
    let mut before = [0i32; ROWS];
    // SAFETY: as the caller promises.
    unsafe {
        for first in (0..run.steps).step_by(BLOCK) {
            let steps = first..run.steps.min(first + BLOCK);
            for (row, before) in before.iter_mut().enumerate() {
                let mut sum = _mm512_setzero_si512();
                for step in steps.clone() {
                    let weights = _mm512_loadu_si512(run.weights.add(row * run.stride + step * LINE).cast());
                    sum = _mm512_dpbusd_epi32(sum, offset, weights);
                }
                *before = _mm512_reduce_add_epi32(sum).wrapping_neg();
            }
            for (tile, sums) in sums.iter_mut().enumerate() {
                let mut all = [_mm512_setzero_si512(); ROWS];
                for ((all, sum), before) in all.iter_mut().zip(&*sums).zip(before) {
                    *all = _mm512_set1_epi32(before);
                    if first > 0 {
                        *all = _mm512_add_epi32(*all, _mm512_load_si512(sum.0.as_ptr().cast()));
                    }
                }
                for step in steps.clone() {
                    let inputs = run.inputs.add((step * across + tile) * TILE);
                    let weights = run.weights.add(step * LINE);
                    for four in 0..ROWS {
                        let line = _mm512_xor_si512(_mm512_loadu_si512(inputs.add(four * LINE).cast()), offset);
                        for (row, sum) in all.iter_mut().enumerate() {
                            let weights = broadcast(weights.add(row * run.stride + 4 * four));
                            *sum = _mm512_dpbusd_epi32(*sum, line, weights);
                        }
                    }
                }
                all.iter().zip(sums).for_each(|(all, sum)| _mm512_store_si512(sum.0.as_mut_ptr().cast(), *all));
            }
        }
    }
}

/// As [`super::groups::GroupSession::add`].
///
/// # Safety
/// As there, with starts; the processor must have AVX-512 F and VNNI.
#[target_feature(enable = "avx512f,avx512vnni")]
pub(super) unsafe fn add_groups(factors: &Groups<'_>, sums: &mut [Floats; ROWS]) {
    let groups = factors.groups();
    for (half, sums) in sums.as_chunks_mut::<HALF>().0.iter_mut().enumerate() {
        // SAFETY: as the caller promises.
        unsafe {
            if factors.inputs.len() == groups * (32 / FOUR) {
                add_groups_to::<{ 32 / FOUR }>(factors, half * HALF, sums);
            } else {
                add_groups_to::<{ 16 / FOUR }>(factors, half * HALF, sums);
            }
        }
    }
}

/// The same for eight rows of weights from `first` on; groups have so many `LINES`.
///
/// # Safety
/// As for [`add_groups`].
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
#[expect(clippy::needless_range_loop, reason = "loops over constants are unrolled, iterators are not")]
unsafe fn add_groups_to<const LINES: usize>(factors: &Groups<'_>, first: usize, sums: &mut [Floats; HALF]) {
    let (groups, stride) = (factors.groups(), factors.stride);
    assert!(factors.inputs.len() == groups * LINES && [factors.starts.len(), factors.scales.len()] == [groups; 2]);
    // SAFETY: as the caller promises; lines are aligned and hold sixteen values.
    unsafe {
        let weights = factors.weights.add(first * stride);
        let mut all = [_mm512_setzero_ps(); HALF];
        for r in 0..HALF {
            all[r] = _mm512_load_ps(sums[r].0.as_ptr());
        }
        for group in 0..groups {
            let mut products = [_mm512_load_si512(factors.starts.as_ptr().add(group).cast()); HALF];
            for line in 0..LINES {
                let at = group * LINES + line;
                let inputs = _mm512_load_si512(factors.inputs.as_ptr().add(at).cast());
                for r in 0..HALF {
                    products[r] =
                        _mm512_dpbusd_epi32(products[r], broadcast(weights.add(r * stride + at * FOUR)), inputs);
                }
            }
            add_group(factors, group, first, |r| _mm512_cvtepi32_ps(products[r]), &mut all);
        }
        for r in 0..HALF {
            _mm512_store_ps(sums[r].0.as_mut_ptr(), all[r]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ScaledProducts, Session, Step, Tiles, amx};
    use super::*;

    /// Bytes of every kind.
    fn bytes(lines: usize, seed: u32) -> Vec<Line<u8, LINE>> {
        let byte = |i: usize| ((i as u32 ^ seed).wrapping_mul(0x9e37_79b9) >> 13) as u8;
        (0..lines).map(|line| Line(std::array::from_fn(|i| byte(line * LINE + i)))).collect()
    }

    #[test]
    fn products_of_int8_are_exact() {
        if !is_x86_feature_detected!("avx512vnni") {
            return;
        }
        let (steps, across) = (BLOCK + 3, 2);
        let (mut weights, mut inputs) = (bytes(ROWS * (steps + 1), 1), bytes(steps * across * ROWS, 2));
        weights[..3 * steps].fill(Line::splat(0x80));
        inputs[..ROWS].fill(Line::splat(0x80));
        let stride = (steps + 1) * LINE;
        let run = Run { weights: weights.as_ptr().cast(), stride, inputs: inputs.as_ptr().cast(), steps };
        let mut sums = [Rows::default(); 2];
        // SAFETY: the instructions were detected; the factors are those of all steps.
        unsafe { multiply_across(run, &mut sums) };
        let number = |lines: &[Line<u8, LINE>], at: usize| i32::from(lines[at / LINE].0[at % LINE].cast_signed());
        for (tile, row, column) in (0..across * ROWS * ROWS).map(|i| (i / ROWS / ROWS, i / ROWS % ROWS, i % ROWS)) {
            let product = |k: usize| {
                let line = (k / LINE * across + tile) * ROWS + k % LINE / 4;
                number(&weights, row * stride + k) * number(&inputs, line * LINE + 4 * column + k % 4)
            };
            let wanted: i32 = (0..steps * LINE).map(product).sum();
            assert_eq!(sums[tile][row].0[column], wanted, "{tile} {row} {column}");
        }
    }

    #[test]
    fn products_of_bfloat16_are_summed_and_scaled_by_group() {
        let here = [(Tiles::Vectors, is_x86_feature_detected!("avx512bf16")), (Tiles::Amx, amx::allowed())];
        let all = here.into_iter().filter(|(_, here)| *here).flat_map(|(tiles, _)| (1..=9).map(move |s| (tiles, s)));
        for (tiles, steps, across) in all.flat_map(|(tiles, steps)| [(tiles, steps, 1), (tiles, steps, 2)]) {
            // SAFETY: the instructions were detected.
            check_products_of_bfloat16(&unsafe { Session::new(tiles) }, steps, across);
        }
    }

    /// Groups of two steps, the last of which may be shorter, of inputs of two limbs.
    fn check_products_of_bfloat16(session: &Session, steps: usize, across: usize) {
        let limbs = 2;
        // Small integers: every sum is exact.
        let halves = |lines: usize, seed: u32| {
            let mut all = bytes(lines, seed);
            for pair in all.iter_mut().flat_map(|line| line.0.as_chunks_mut::<2>().0) {
                let number = f32::from(pair[0] % 15) - 7.0;
                pair.copy_from_slice(&number.to_le_bytes()[2..]);
            }
            all
        };
        let (weights, inputs) = (halves(2 * steps * ROWS, 3), halves(steps * limbs * across * ROWS, 4));
        let list: Vec<Step> =
            (0..steps).map(|step| Step { weights: step * TILE, inputs: step * limbs * across * TILE, limbs }).collect();
        let (weights_at, inputs_at) = (weights.as_ptr().cast(), inputs.as_ptr().cast());
        let factors = Factors { steps: &list, weights: weights_at, panel: steps * TILE, inputs: inputs_at, across };
        let scales: [[f32; 2 * ROWS]; 5] = std::array::from_fn(|g| std::array::from_fn(|r| (g * r) as f32 - 5.0));
        let columns: [[Line<f32, 16>; 2]; 5] =
            std::array::from_fn(|g| std::array::from_fn(|t| Line(std::array::from_fn(|c| (g + t) as f32 - c as f32))));
        let [mut plain, mut scaled, mut both] = [FloatSums::default(); 3];
        let mut room = ScaledProducts::default();
        // SAFETY: the instructions were detected; the factors are those of all steps.
        unsafe {
            session.add_products(&factors, true, &mut plain);
            session.add_products(&factors, false, &mut plain);
            session.add_scaled(&factors, 2, |group| (&scales[group], None), &mut room, &mut scaled);
            session.add_scaled(&factors, 2, |group| (&scales[group], Some(&columns[group])), &mut room, &mut both);
        }
        let number = |lines: &[Line<u8, LINE>], line: usize, at: usize| {
            let bits = u16::from_le_bytes([lines[line].0[2 * at], lines[line].0[2 * at + 1]]);
            f32::from_bits(u32::from(bits) << 16)
        };
        for i in 0..2 * across * ROWS * ROWS {
            let (panel, tile, row, column) =
                (i / ROWS / ROWS / across, i / ROWS / ROWS % across, i / ROWS % ROWS, i % ROWS);
            let product = |step: usize| {
                let pairs = (0..limbs).flat_map(|limb| (0..32).map(move |k| (limb, k)));
                let products = pairs.map(|(limb, k)| {
                    let line = ((step * limbs + limb) * across + tile) * ROWS + k / 2;
                    number(&weights, (panel * steps + step) * ROWS + row, k) * number(&inputs, line, 2 * column + k % 2)
                });
                products.sum::<f32>()
            };
            let all: f32 = (0..steps).map(product).sum();
            let of_row = |step: usize| scales[step / 2][panel * ROWS + row];
            let by_group: f32 = (0..steps).map(|step| product(step) * of_row(step)).sum();
            let of_column = |step: usize| columns[step / 2][tile].0[column];
            let by_both: f32 = (0..steps).map(|step| product(step) * of_row(step) * of_column(step)).sum();
            let place = format!("{session:?}, {steps} steps, {across} tiles: {panel} {tile} {row} {column}");
            assert_eq!(plain[panel][tile][row].0[column], 2.0 * all, "{place}");
            assert_eq!(scaled[panel][tile][row].0[column], by_group, "{place}");
            assert_eq!(both[panel][tile][row].0[column], by_both, "{place}");
        }
    }
}
