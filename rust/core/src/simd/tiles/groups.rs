//! Products of int8 of groups of columns, whose exact sums are scaled in float32: in tiles of AMX, or by VNNI.

use std::arch::x86_64::*;

use super::{LINE, ROWS, Tiles, amx, avx512};
use crate::simd::{Floats, Line};

/// Columns in a lane.
pub(crate) const FOUR: usize = 4;

/// Sums of a group: 16 rows of weights, 16 of inputs.
pub(crate) type GroupSums = [Line<i32, 16>; ROWS];

/// Groups of columns, one after the other, and what their sums are scaled with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Groups<'a> {
    /// 16 rows of weights, `stride` bytes apart: as [`GroupSession::offset`] says.
    pub(crate) weights: *const u8,
    pub(crate) stride: usize,
    /// By group, then limb of the inputs, the lowest first: four columns of 16 rows of inputs by line.
    pub(crate) inputs: &'a [Line<i8, LINE>],
    /// Limbs of the inputs: one for VNNI, up to four for AMX.
    pub(crate) limbs: usize,
    /// By group: the scale of each row of weights, and of each row of inputs.
    pub(crate) scales: &'a [Floats],
    pub(crate) input_scales: &'a [Floats],
    /// By group: -128 times the sum of each row of inputs. Weights without an offset need none.
    pub(crate) starts: &'a [Line<i32, 16>],
}

impl Groups<'_> {
    pub(super) const fn groups(&self) -> usize {
        self.input_scales.len()
    }
}

/// Holds a thread ready for products of groups of some columns while it lives.
#[derive(Debug)]
pub(crate) enum GroupSession {
    Amx(amx::groups::GroupSession),
    Vectors,
}

impl GroupSession {
    /// What is added to weights, modulo 256: VNNI takes them as unsigned.
    pub(crate) const fn offset(tiles: Tiles) -> u8 {
        match tiles {
            Tiles::Amx => 0,
            Tiles::Vectors => 128,
        }
    }

    /// Columns of a group, at most.
    pub(crate) const fn most_columns(tiles: Tiles) -> usize {
        match tiles {
            Tiles::Amx => amx::groups::MOST_TILES * LINE,
            Tiles::Vectors => LINE / 2,
        }
    }

    /// Makes the thread ready for groups of 16, 32 or, if they may have as many, 64, 128 or 256 columns.
    ///
    /// # Safety
    /// As for [`super::Session::new`].
    pub(crate) unsafe fn new(tiles: Tiles, columns: usize) -> Self {
        match tiles {
            // SAFETY: AMX was allowed.
            Tiles::Amx => Self::Amx(unsafe { amx::groups::GroupSession::new(columns) }),
            Tiles::Vectors => Self::Vectors,
        }
    }

    /// Adds to the sums of each row of weights, by row of inputs, group after group:
    /// `fma(sum of products * scale of inputs, scale of weights, sums)`. Sums of several limbs are rounded to float32 once,
    /// but for the last bits of a third or fourth.
    ///
    /// # Safety
    /// Weights of all groups must be readable; there must be as many inputs and scales, and starts unless weights have no
    /// offset.
    pub(crate) unsafe fn add(&mut self, factors: &Groups<'_>, sums: &mut [Floats; ROWS]) {
        // SAFETY: as the caller promises; the instructions were found before the session began.
        unsafe {
            match self {
                Self::Amx(session) => session.add(factors, sums),
                Self::Vectors => avx512::add_groups(factors, sums),
            }
        }
    }
}

/// Scales the sums of a group, those of `R` rows of weights from `first` on, and adds them.
///
/// # Safety
/// The processor must have AVX-512 F; the group and the rows must be there.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn add_group<const R: usize>(
    factors: &Groups<'_>,
    group: usize,
    first: usize,
    sum: impl Fn(usize) -> __m512,
    all: &mut [__m512; R],
) {
    // SAFETY: as the caller promises; lines are aligned and hold sixteen values.
    unsafe {
        let input_scale = _mm512_load_ps(factors.input_scales.as_ptr().add(group).cast());
        let scales = factors.scales.as_ptr().add(group).cast::<f32>().add(first);
        for (row, all) in all.iter_mut().enumerate() {
            let scaled = _mm512_mul_ps(sum(row), input_scale);
            *all = _mm512_fmadd_ps(scaled, _mm512_set1_ps(*scales.add(row)), *all);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers of every kind.
    fn byte(i: usize) -> i8 {
        ((i as u32).wrapping_mul(0x9e37_79b9) >> 13) as i8
    }

    #[test]
    fn groups_are_summed_exactly_and_scaled_in_order() {
        let mut all = Vec::new();
        if is_x86_feature_detected!("avx512vnni") {
            all.push(Tiles::Vectors);
        }
        if is_x86_feature_detected!("avx512f") && amx::allowed() {
            all.push(Tiles::Amx);
        }
        let cases = all.iter().flat_map(|&tiles| match tiles {
            Tiles::Vectors => vec![(tiles, 16, 1), (tiles, 32, 1)],
            Tiles::Amx => {
                [16, 32, 64, 128, 256].iter().flat_map(|&n| (1..=4).map(move |limbs| (tiles, n, limbs))).collect()
            }
        });
        let cases = cases
            .flat_map(|(tiles, columns, limbs)| [0, 1, 3, 4, 5, 9, 16].map(|groups| (tiles, columns, limbs, groups)));
        for (tiles, columns, limbs, groups) in cases {
            let k = groups * columns;
            // Extreme numbers in one row, zeros in another.
            let weight = |row: usize, column: usize| match row {
                3 => -128,
                5 => 0,
                _ => byte(row * k + column),
            };
            let input = |row: usize, limb: usize, column: usize| match row {
                7 => -128,
                _ => byte((limb * ROWS + row) * k + column + 12_345),
            };
            let scale = |row: usize, group: usize| f32::from(byte(row * 31 + group)) * 0.013;
            let input_scale = |row: usize, group: usize| f32::from(byte(row * 17 + group + 999)) * 0.7;

            let offset = GroupSession::offset(tiles);
            let stride = k + 7;
            let weights: Vec<u8> = (0..ROWS * stride)
                .map(|i| weight(i / stride, (i % stride).min(k.saturating_sub(1))).cast_unsigned().wrapping_add(offset))
                .collect();
            let each = columns / FOUR;
            let line = |at: usize| {
                let (group, limb, four) = (at / each / limbs, at / each % limbs, at % each);
                let column = group * columns + four * FOUR;
                Line(std::array::from_fn(|i| input(i / FOUR, limb, column + i % FOUR)))
            };
            let inputs: Vec<Line<i8, LINE>> = (0..limbs * k / FOUR).map(line).collect();
            let scales: Vec<Floats> = (0..groups).map(|g| Line(std::array::from_fn(|row| scale(row, g)))).collect();
            let input_scales: Vec<Floats> =
                (0..groups).map(|g| Line(std::array::from_fn(|row| input_scale(row, g)))).collect();
            let sum_of =
                |row: usize, g: usize| (0..columns).map(|c| i32::from(input(row, 0, g * columns + c))).sum::<i32>();
            let starts: Vec<Line<i32, 16>> =
                (0..groups).map(|g| Line(std::array::from_fn(|row| -128 * sum_of(row, g)))).collect();

            let mut sums: [Floats; ROWS] =
                std::array::from_fn(|row| Line(std::array::from_fn(|i| (row * 16 + i) as f32)));
            let before = sums;
            let factors = Groups {
                weights: weights.as_ptr(),
                stride,
                inputs: &inputs,
                limbs,
                scales: &scales,
                input_scales: &input_scales,
                starts: &starts,
            };
            // SAFETY: the instructions were detected; the factors are those of all groups.
            unsafe { GroupSession::new(tiles, columns).add(&factors, &mut sums) };
            for (row, i) in (0..ROWS).flat_map(|row| (0..16).map(move |i| (row, i))) {
                let mut wanted = before[row].0[i];
                for g in 0..groups {
                    let columns = g * columns..(g + 1) * columns;
                    let sum = |limb: usize| -> i32 {
                        columns.clone().map(|c| i32::from(weight(row, c)) * i32::from(input(i, limb, c))).sum()
                    };
                    let value = match limbs {
                        1 => sum(0) as f32,
                        2 => (sum(0) + (sum(1) << 8)) as f32,
                        3 => (sum(2) as f32).mul_add(65_536.0, (sum(0) + (sum(1) << 8)) as f32),
                        _ => ((sum(2) + (sum(3) << 8)) as f32).mul_add(65_536.0, (sum(0) + (sum(1) << 8)) as f32),
                    };
                    wanted = (value * input_scale(i, g)).mul_add(scale(row, g), wanted);
                }
                assert_eq!(
                    sums[row].0[i].to_bits(),
                    wanted.to_bits(),
                    "{tiles:?}, {groups} x {columns}, {limbs}: {row}, {i}"
                );
            }
        }
    }
}
