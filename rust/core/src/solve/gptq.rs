//! The inner loop of GPTQ: columns of a block in order, each rounded after the errors of the earlier ones were fed back.
//!
//! With `H = (I + M) D (I + M)'`, M strictly upper, the loss `(w - q) H (w - q)'` of a row is the sum over columns k of
//! `D_k (v_k - q_k)^2`, where `v_k = w_k + sum over j < k of (w_j - q_j) M_jk`: every column is rounded from `v_k`. This
//! is GPTQ (Frantar et al. 2022) without an inverse of H, in the form of LDLQ (Chee et al. 2023, theorem 6).

use super::Table;
use super::fit::Fit;
use super::operands::Numbers;
use super::reference;
use super::round::{All, Book, Floats, Integers, Round, Scales, Sums, with_round};
use crate::codec::group_scales::Work;
use crate::codec::lanes;
use crate::codec::scale_search::RawScale;
use crate::simd::LANES;
use crate::simd::{Floats as F, Job, fast};

/// How scales are chosen when a group is entered.
#[derive(Clone, Copy)]
pub(super) enum Choose {
    /// They are in the table.
    Given,
    /// The codec's rule.
    Rule,
    /// The codec's rule, then a fit by weighted squared error.
    Fit { iterations: usize },
}

/// What all rows of a block share.
#[derive(Clone, Copy)]
pub(super) struct Shared<'a> {
    pub(super) work: &'a Work,
    pub(super) numbers: &'a Numbers,
    pub(super) choose: Choose,
    /// Row k holds `M_jk` for the columns j < k.
    pub(super) feedback: &'a [f32],
    /// `D_k`.
    pub(super) weights: &'a [f32],
    /// Group of each column.
    pub(super) groups: &'a [u32],
}

/// Up to sixteen rows of a block.
pub(super) struct Tile<'a> {
    /// In: weights with the errors of earlier blocks fed back; out: rounded weights.
    pub(super) values: &'a mut [f32],
    /// In: weights; out: what is left of them, `w - q`.
    pub(super) errors: &'a mut [f32],
    /// Scales of these rows.
    pub(super) table: Table<'a>,
    /// Losses of these rows, added to.
    pub(super) loss: &'a mut [f64],
}

struct Solve<'a, 't>(&'a mut Tile<'t>, &'a Shared<'a>);

impl<L> Job<L> for Solve<'_, '_> {
    type Output = ();
    #[inline(always)]
    fn run(self, _: L) {
        solve_in_lanes(self.0, self.1);
    }
}

/// Rounds the rows of a tile.
pub(super) fn solve(tile: &mut Tile<'_>, shared: &Shared<'_>) {
    if let Err(Solve(tile, shared)) = fast(shared.work.level, Solve(tile, shared)) {
        solve_row_by_row(tile, shared);
    }
}

/// The reference, row after row.
fn solve_row_by_row(tile: &mut Tile<'_>, shared: &Shared<'_>) {
    let Shared { work, numbers, feedback, weights, groups, .. } = *shared;
    let rows = tile.values.chunks_mut(groups.len()).zip(tile.errors.chunks_mut(groups.len()));
    for (i, ((values, errors), loss)) in rows.zip(tile.loss.iter_mut()).enumerate() {
        let chosen = !matches!(shared.choose, Choose::Given);
        let row = reference::Row { values, errors, feedback, weights, groups, chosen };
        let added = row.solve(numbers, |x, weights, group| {
            if chosen {
                tile.table.set(i, group, &chosen_scale(shared, x, weights));
            }
            work.resolve(&tile.table.get(i, group))
        });
        *loss += f64::from(added);
    }
}

/// The scale of a group with these values.
fn chosen_scale(shared: &Shared<'_>, x: &[f32], weights: &[f32]) -> RawScale {
    let raw = lanes::choose(shared.work, x);
    match shared.choose {
        Choose::Fit { iterations } => {
            let fit = Fit { work: shared.work, numbers: shared.numbers, power: 2.0, iterations };
            fit.best(x, weights, raw)
        }
        _ => raw,
    }
}

/// Columns of a tile, one lane a row.
#[inline(always)]
fn transpose(rows: &[f32], columns: usize) -> Vec<F> {
    let mut lanes = vec![F::splat(0.0); columns];
    for (row, values) in rows.chunks_exact(columns).enumerate() {
        for (lane, v) in lanes.iter_mut().zip(values) {
            lane.0[row] = *v;
        }
    }
    lanes
}

#[inline(always)]
fn transpose_back(lanes: &[F], rows: &mut [f32]) {
    for (row, values) in rows.chunks_exact_mut(lanes.len()).enumerate() {
        for (lane, v) in lanes.iter().zip(values) {
            *v = lane.0[row];
        }
    }
}

/// Errors of columns `from..` fed back into a column.
#[inline(always)]
fn feed(v: F, errors: &[F], feedback: &[f32]) -> F {
    let mut sum = v;
    for (e, &m) in errors.iter().zip(feedback) {
        for lane in 0..LANES {
            sum.0[lane] += e.0[lane] * m;
        }
    }
    sum
}

#[inline(always)]
fn solve_in_lanes(tile: &mut Tile<'_>, shared: &Shared<'_>) {
    let columns = shared.groups.len();
    let mut values = transpose(tile.values, columns);
    let mut errors = transpose(tile.errors, columns);
    let mut scales = Scales::unit();
    let mut loss = F::splat(0.0);
    let mut fed = 0; // errors of columns below this one are in the values of the group
    for k in 0..columns {
        let row = &shared.feedback[k * columns..(k + 1) * columns];
        if k == 0 || shared.groups[k] != shared.groups[k - 1] {
            let group = shared.groups[k] as usize;
            if !matches!(shared.choose, Choose::Given) {
                let end = k + shared.groups[k..].iter().take_while(|&&g| g == shared.groups[k]).count();
                for (c, v) in values.iter_mut().enumerate().take(end).skip(k) {
                    *v = feed(*v, &errors[..k], &shared.feedback[c * columns..]);
                }
                fed = k;
                choose(tile, shared, &values[k..end], &shared.weights[k..end], group);
            }
            for lane in 0..tile.loss.len() {
                scales.set(lane, shared.numbers, &shared.work.resolve(&tile.table.get(lane, group)));
            }
        }
        let v = feed(values[k], &errors[fed..k], &row[fed..k]);
        let cost = shared.weights[k];
        with_round!(shared.numbers, &scales, |round| {
            for lane in 0..LANES {
                let offset = scales.offset.0[lane];
                let q = round.round((v.0[lane] - offset) * scales.inverse.0[lane], lane) * scales.step.0[lane] + offset;
                let r = v.0[lane] - q;
                loss.0[lane] += r * r * cost;
                errors[k].0[lane] -= q;
                values[k].0[lane] = q;
            }
        });
    }
    transpose_back(&values, tile.values);
    transpose_back(&errors, tile.errors);
    for (sum, lane) in tile.loss.iter_mut().zip(loss.0) {
        *sum += f64::from(lane);
    }
}

/// Chooses a group's scale for every row from its values as they are now.
#[inline(never)]
fn choose(tile: &mut Tile<'_>, shared: &Shared<'_>, values: &[F], weights: &[f32], group: usize) {
    let mut x = vec![0.0f32; values.len()];
    for lane in 0..tile.loss.len().min(LANES) {
        for (x, v) in x.iter_mut().zip(values) {
            *x = v.0[lane];
        }
        let raw = chosen_scale(shared, &x, weights);
        tile.table.set(lane, group, &raw);
    }
}
