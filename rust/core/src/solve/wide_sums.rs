//! Sums of products in float64: Hessians of inputs, their factors, errors fed back, and what errors cost.
//!
//! Every element starts from what it is and takes its terms one by one, in the order of the rows that are summed over.
//! Bits depend neither on threads nor on the SIMD level, nor on how rows are shared out among calls. Products of float32
//! are exact in float64, so fusing them with the sum changes nothing; products of float64 are rounded before they are
//! taken away. `reference` has the definition of a tile.

use super::operands::{ELIMINATED, Sixteen, Tile};
use super::reference;
use crate::error::{Error, Result};
use crate::float_state::FloatState;
use crate::pool;
use crate::simd::{Job, LANES, Level, Proven, fast};

/// Terms that are added to a tile at once: two panels of them stay in the nearest cache.
const DEPTH: usize = 128;
/// Rows of inputs that are widened at once.
const WIDENED: usize = 4 * DEPTH;
/// Rows of a matrix that one thread works on: panels to the right of a tile are read once for all of them.
const STRIP: usize = 2 * LANES;
/// Columns that are multiplied at once where all of them would be too many to widen.
const COLUMNS: usize = 256;

const EMPTY: Tile = [Sixteen::splat(0.0); LANES];

/// Terms of a tile: line by line the products of all elements of `left` with all of `right`, added, or taken away.
struct Terms<'a, const TAKE: bool> {
    sums: &'a mut Tile,
    left: &'a [Sixteen],
    right: &'a [Sixteen],
}

impl<L: Proven, const TAKE: bool> Job<L> for Terms<'_, TAKE> {
    type Output = ();
    #[inline(always)]
    fn run(self, lanes: L) {
        // As many sums as the registers hold beside what is multiplied.
        match L::VECTORS >= 32 {
            true => terms::<L, 8, TAKE>(lanes, self),
            false => terms::<L, 2, TAKE>(lanes, self),
        }
    }
}

#[inline(always)]
fn terms<L: Proven, const ROWS: usize, const TAKE: bool>(lanes: L, job: Terms<'_, TAKE>) {
    for (part, rows) in job.sums.as_chunks_mut::<ROWS>().0.iter_mut().enumerate() {
        let mut sums = [lanes.splat_d(0.0); ROWS];
        for (sum, row) in sums.iter_mut().zip(rows.iter()) {
            *sum = lanes.load_d(row);
        }
        for (a, b) in job.left.iter().zip(job.right) {
            let b = lanes.load_d(b);
            for (sum, &a) in sums.iter_mut().zip(&a.0[part * ROWS..(part + 1) * ROWS]) {
                let a = lanes.splat_d(a);
                *sum = if TAKE { lanes.take_d(*sum, a, b) } else { lanes.add_exact_d(*sum, a, b) };
            }
        }
        for (sum, row) in sums.into_iter().zip(rows) {
            lanes.store_d(sum, row);
        }
    }
}

/// All terms of a tile.
fn multiply<const TAKE: bool>(level: Level, sums: &mut Tile, left: &[Sixteen], right: &[Sixteen]) {
    for (left, right) in left.chunks(DEPTH).zip(right.chunks(DEPTH)) {
        if let Err(Terms { sums, left, right }) = fast(level, Terms::<TAKE> { sums, left, right }) {
            reference::terms(sums, left, right, TAKE);
        }
    }
}

/// Rows of the factor in sixteen columns, by the block of it to the left of them.
struct Eliminate<'a> {
    lines: &'a mut [Sixteen],
    /// Line j: row j of the block, its diagonal in place j.
    block: &'a [[f64; ELIMINATED]],
}

impl<L: Proven> Job<L> for Eliminate<'_> {
    type Output = ();
    #[inline(always)]
    fn run(self, lanes: L) {
        for j in 0..self.lines.len() {
            let (done, below) = self.lines.split_at_mut(j + 1);
            let own = &mut done[j];
            for v in &mut own.0 {
                *v /= self.block[j][j];
            }
            let own = lanes.load_d(own);
            for (line, &a) in below.iter_mut().zip(&self.block[j][j + 1..]) {
                let left = lanes.take_d(lanes.load_d(line), lanes.splat_d(a), own);
                lanes.store_d(left, line);
            }
        }
    }
}

/// Columns of a matrix, sixteen together: `depth` lines for each sixteen, zeros behind the last column.
fn panels(columns: usize, depth: usize, at: impl Fn(usize, usize) -> f64 + Sync) -> Result<Vec<Sixteen>> {
    let mut lines = Vec::new();
    let count = columns.div_ceil(LANES) * depth;
    lines.try_reserve_exact(count).map_err(|_| Error::OutOfMemory(count.saturating_mul(size_of::<Sixteen>())))?;
    lines.resize(count, Sixteen::splat(0.0));
    pool::for_each_chunk(&mut lines, depth, |panel, lines| {
        let first = panel * LANES;
        let width = LANES.min(columns - first);
        for (row, line) in lines.iter_mut().enumerate() {
            for (column, v) in line.0[..width].iter_mut().enumerate() {
                *v = at(row, first + column);
            }
        }
    })?;
    Ok(lines)
}

/// Takes `left` times `right`, panels of the same columns of a matrix of `k`, from the upper triangle of some of its rows,
/// or adds it: rows from `first` on are in `rows`, and the panels begin at column `from`.
fn update<const TAKE: bool>(
    level: Level,
    rows: &mut [f64],
    k: usize,
    (first, from): (usize, usize),
    lines: &[Sixteen],
    depth: usize,
) {
    for (i, rows) in rows.chunks_mut(LANES * k).enumerate() {
        let at = first + i * LANES;
        let left = &lines[(at - from) / LANES * depth..][..depth];
        for column in (at..k).step_by(LANES) {
            let right = &lines[(column - from) / LANES * depth..][..depth];
            let width = LANES.min(k - column);
            let mut sums = EMPTY;
            for (sum, row) in sums.iter_mut().zip(rows.chunks_exact(k)) {
                sum.0[..width].copy_from_slice(&row[column..column + width]);
            }
            multiply::<TAKE>(level, &mut sums, left, right);
            for (sum, row) in sums.iter().zip(rows.chunks_exact_mut(k)) {
                row[column..column + width].copy_from_slice(&sum.0[..width]);
            }
        }
    }
}

fn check(what: &str, got: usize, wanted: usize) -> Result<()> {
    if got == wanted { Ok(()) } else { Err(Error::shape(format!("{what} has {got} values, expected {wanted}"))) }
}

/// Adds the outer products of the rows of `x`, `k` values each, to the upper triangle of `sums`, `k * k` values.
///
/// # Errors
/// [`Error::Shape`] where a length does not fit, [`Error::OutOfMemory`].
pub fn add_outer_products(x: &[f32], k: usize, sums: &mut [f64]) -> Result<()> {
    add_at(Level::current(), x, k, sums)
}

pub(super) fn add_at(level: Level, x: &[f32], k: usize, sums: &mut [f64]) -> Result<()> {
    let _state = FloatState::standard();
    check("sums", sums.len(), k * k)?;
    if k == 0 {
        return Ok(());
    }
    check("x", x.len(), x.len() / k * k)?;
    for x in x.chunks(WIDENED * k) {
        let depth = x.len() / k;
        let lines = panels(k, depth, |row, column| f64::from(x[row * k + column]))?;
        let strips = sums.chunks_mut(STRIP * k).enumerate().collect();
        pool::consume(strips, depth * k * k, |(strip, rows): (usize, &mut [f64])| {
            update::<false>(level, rows, k, (strip * STRIP, 0), &lines, depth);
        })?;
    }
    Ok(())
}

/// Factors the symmetric matrix of `k * k` values whose upper triangle `h` holds: `U' U`, U upper, takes its place there.
/// False, and `h` half done, where it is not positive definite.
///
/// # Errors
/// [`Error::Shape`] where the length does not fit, [`Error::OutOfMemory`].
pub fn factor(h: &mut [f64], k: usize) -> Result<bool> {
    factor_at(Level::current(), h, k)
}

pub(super) fn factor_at(level: Level, h: &mut [f64], k: usize) -> Result<bool> {
    let _state = FloatState::standard();
    check("h", h.len(), k * k)?;
    for start in (0..k).step_by(ELIMINATED) {
        let end = k.min(start + ELIMINATED);
        let (done, below) = h.split_at_mut(end * k);
        let rows = &mut done[start * k..];
        let Some(block) = factored(rows, k, start) else { return Ok(false) };
        let depth = end - start;
        let mut lines = panels(k - end, depth, |row, column| rows[row * k + end + column])?;
        pool::for_each_chunk(&mut lines, depth, |_, lines| {
            if let Err(Eliminate { lines, block }) = fast(level, Eliminate { lines, block: &block }) {
                reference::eliminate(lines, block);
            }
        })?;
        for (row, values) in rows.chunks_exact_mut(k).enumerate() {
            for (panel, values) in values[end..].chunks_mut(LANES).enumerate() {
                values.copy_from_slice(&lines[panel * depth + row].0[..values.len()]);
            }
        }
        let strips = below.chunks_mut(STRIP * k).enumerate().collect();
        pool::consume(strips, depth * (k - end) * (k - end), |(strip, rows): (usize, &mut [f64])| {
            update::<true>(level, rows, k, (end + strip * STRIP, end), &lines, depth);
        })?;
    }
    Ok(true)
}

/// Factors the square of some rows on the diagonal; none where a pivot is not above 0.
fn factored(rows: &mut [f64], k: usize, start: usize) -> Option<[[f64; ELIMINATED]; ELIMINATED]> {
    let size = rows.len() / k;
    let mut block = [[0.0; ELIMINATED]; ELIMINATED];
    for (line, row) in block.iter_mut().zip(rows.chunks_exact(k)) {
        line[..size].copy_from_slice(&row[start..start + size]);
    }
    for j in 0..size {
        let root = block[j][j].sqrt();
        if !(root > 0.0 && root.is_finite()) {
            return None;
        }
        let mut own = block[j];
        own[j] = root;
        own[j + 1..size].iter_mut().for_each(|v| *v /= root);
        for i in j + 1..size {
            for column in i..size {
                block[i][column] -= own[i] * own[column];
            }
        }
        block[j] = own;
    }
    for (j, (line, row)) in block.iter().zip(rows.chunks_exact_mut(k)).enumerate() {
        row[start + j..start + size].copy_from_slice(&line[j..size]);
    }
    Some(block)
}

/// Adds to `values`, columns `start` and following of a matrix, what the errors of all earlier columns feed back:
/// `errors[:, ..start] * feedback[..start, start..]`. `errors`: rows of `k` values; `feedback`: `k * k`.
///
/// # Errors
/// [`Error::Shape`] where a length does not fit, [`Error::OutOfMemory`].
pub fn feed_back(values: &mut [f32], errors: &[f32], feedback: &[f32], k: usize, start: usize) -> Result<()> {
    feed_at(Level::current(), values, errors, feedback, (k, start))
}

pub(super) fn feed_at(
    level: Level,
    values: &mut [f32],
    errors: &[f32],
    feedback: &[f32],
    (k, start): (usize, usize),
) -> Result<()> {
    let _state = FloatState::standard();
    check("feedback", feedback.len(), k * k)?;
    if k == 0 || errors.is_empty() {
        return check("values", values.len(), 0);
    }
    let rows = errors.len() / k;
    check("errors", errors.len(), rows * k)?;
    let width = values.len() / rows;
    check("values", values.len(), rows * width)?;
    if start + width > k {
        return Err(Error::shape(format!("columns {start} to {} of {k}", start + width)));
    }
    if width == 0 || start == 0 {
        return Ok(());
    }
    let right = panels(width, start, |row, column| f64::from(feedback[row * k + start + column]))?;
    let strips = values.chunks_mut(LANES * width).zip(errors.chunks(LANES * k)).collect();
    pool::consume(strips, rows * width * start, |(values, errors): (&mut [f32], &[f32])| {
        let left = transposed(errors, k, start);
        for (panel, right) in right.chunks_exact(start).enumerate() {
            let (from, to) = (panel * LANES, width.min((panel + 1) * LANES));
            let mut sums = EMPTY;
            for (sum, row) in sums.iter_mut().zip(values.chunks_exact(width)) {
                sum.0.iter_mut().zip(&row[from..to]).for_each(|(sum, &v)| *sum = f64::from(v));
            }
            multiply::<false>(level, &mut sums, &left, right);
            for (sum, row) in sums.iter().zip(values.chunks_exact_mut(width)) {
                row[from..to].iter_mut().zip(sum.0).for_each(|(v, sum)| *v = sum as f32);
            }
        }
    })
}

/// The first columns of up to sixteen rows of `k` values, a line for each column.
fn transposed(rows: &[f32], k: usize, columns: usize) -> Vec<Sixteen> {
    let mut lines = vec![Sixteen::splat(0.0); columns];
    for (lane, row) in rows.chunks_exact(k).enumerate() {
        for (line, &v) in lines.iter_mut().zip(row) {
            line.0[lane] = f64::from(v);
        }
    }
    lines
}

/// What each row of errors costs: `sum over j of costs_j * (sum over i <= j of e_i feedback_ij)^2 - damping * sum of e^2`.
/// `errors`: rows of `k` values; `feedback`: `k * k`, its upper triangle is read; `loss`: one for each row.
///
/// # Errors
/// [`Error::Shape`] where a length does not fit, [`Error::OutOfMemory`].
pub fn losses(errors: &[f32], feedback: &[f32], costs: &[f32], damping: f64, loss: &mut [f64]) -> Result<()> {
    losses_at(Level::current(), errors, feedback, costs, damping, loss)
}

pub(super) fn losses_at(
    level: Level,
    errors: &[f32],
    feedback: &[f32],
    costs: &[f32],
    damping: f64,
    loss: &mut [f64],
) -> Result<()> {
    let _state = FloatState::standard();
    let k = costs.len();
    check("feedback", feedback.len(), k * k)?;
    check("errors", errors.len(), loss.len() * k)?;
    loss.fill(0.0);
    for start in (0..k).step_by(COLUMNS) {
        let end = k.min(start + COLUMNS);
        let upper = |row: usize, column: usize| if row <= column { f64::from(feedback[row * k + column]) } else { 0.0 };
        let right = panels(end - start, end, |row, column| upper(row, start + column))?;
        let strips = loss.chunks_mut(LANES).zip(errors.chunks(LANES * k)).collect();
        let work = errors.len() * (end - start);
        pool::consume(strips, work, |(loss, errors): (&mut [f64], &[f32])| {
            let left = transposed(errors, k, end);
            for (panel, right) in right.chunks_exact(end).enumerate() {
                let column = start + panel * LANES;
                let depth = end.min(column + LANES); // below its diagonal a panel holds zeros
                let mut sums = EMPTY;
                multiply::<false>(level, &mut sums, &left[..depth], &right[..depth]);
                for (loss, sums) in loss.iter_mut().zip(&sums) {
                    for (fed, &cost) in sums.0.iter().zip(&costs[column..depth]) {
                        *loss += fed * fed * f64::from(cost);
                    }
                }
            }
        })?;
    }
    take_squares(errors, k, damping, loss)
}

/// The sum of squares: sixteen sums of every sixteenth, added as a tree.
pub(super) fn squares(values: &[f32]) -> f64 {
    let mut sums = [0.0f64; LANES];
    for values in values.chunks(LANES) {
        for (sum, &v) in sums.iter_mut().zip(values) {
            *sum += f64::from(v) * f64::from(v);
        }
    }
    crate::float::tree_sum(sums)
}

/// [`squares`] of each row of `k` values, `factor` times, taken from `loss`.
///
/// # Errors
/// [`Error::Shape`] where a length does not fit.
pub fn take_squares(errors: &[f32], k: usize, factor: f64, loss: &mut [f64]) -> Result<()> {
    let _state = FloatState::standard();
    check("errors", errors.len(), loss.len() * k)?;
    pool::consume(loss.iter_mut().zip(errors.chunks(k.max(1))).collect(), 4 * errors.len(), |(loss, errors)| {
        *loss -= factor * squares(errors);
    })
}
