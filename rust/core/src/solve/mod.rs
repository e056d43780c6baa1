//! Choosing codes and scales by more than rounding to nearest: error feedback (GPTQ) and fitted scales (HQQ); and the sums
//! that GPTQ stands on.
//!
//! Both work on float32 matrices whose rows are quantized along the columns. They choose scales, in their storage type,
//! and values that these scales can represent up to an ulp; the codec makes the final codes.
//!
//! `reference` is the definition, in plain scalar code that calls nothing fast; `gptq`, `fit` and `wide_sums` run it in
//! lanes.

mod fit;
mod gptq;
mod operands;
mod reference;
mod round;
mod wide_sums;

use crate::codec::group_scales::Work;
use crate::codec::scale_search::{RawScale, ScaleRule, load_scale, store_scale};
use crate::codec::{check_encodes, check_len};
use crate::error::{Error, FormatError, Result, ShapeError};
use crate::float_state::FloatState;
use crate::format::{Format, Granularity, ScaleType};
use crate::pool;
use crate::simd::Level;
use fit::Fit;
use gptq::{Choose, Shared, Tile};
use operands::Numbers;
pub use wide_sums::{add_outer_products, factor, feed_back, losses, take_squares};

/// Rows that are solved together, one a lane.
const ROWS: usize = crate::simd::LANES;
/// Refits of a real scale inside GPTQ.
const REFITS: usize = 4;

/// Scales and zero points of a matrix, one for each row and group; empty where the format has none.
#[derive(Debug)]
pub struct ScaleTable<'a> {
    /// Scales in their storage type, little-endian, row by row.
    pub scales: &'a mut [u8],
    /// Zero points (`uintW`), else empty.
    pub zeros: &'a mut [i32],
    /// Second-level scale (`nvfp4`), else 0.
    pub tensor: f32,
}

/// A block of columns of GPTQ. `rows * columns` values each, row by row.
#[derive(Debug)]
pub struct Block<'a> {
    /// In: weights with the errors of earlier blocks fed back; out: rounded weights.
    pub values: &'a mut [f32],
    /// In: weights; out: weights less rounded weights.
    pub errors: &'a mut [f32],
    /// `columns * columns`: row k holds what the error of each column j < k adds to column k.
    pub feedback: &'a [f32],
    /// What the squared error of each column weighs, once errors were fed back.
    pub weights: &'a [f32],
    /// Group of each column; a group lies in one block if scales are chosen.
    pub groups: &'a [u32],
    /// Weighted squared error of each row, added to.
    pub loss: &'a mut [f64],
}

/// Which scales GPTQ uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Those of the table.
    Given,
    /// Chosen by the codec from the values when a group is entered.
    Codec(ScaleRule),
    /// Least weighted squared error among scales below the codec's.
    Fit,
}

impl std::str::FromStr for Choice {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        match text {
            "given" => Ok(Self::Given),
            "mse" => Ok(Self::Fit),
            _ => Ok(Self::Codec(text.parse()?)),
        }
    }
}

/// Some rows of a [`ScaleTable`].
struct Table<'a> {
    scales: &'a mut [u8],
    zeros: &'a mut [i32],
    kind: Option<ScaleType>,
    per_group: usize,
    groups: usize,
}

impl<'a> Table<'a> {
    fn new(format: Format, scales: &'a mut [u8], zeros: &'a mut [i32], groups: usize) -> Self {
        Self { scales, zeros, kind: format.scale_type(), per_group: format.scales_per_group(), groups }
    }

    fn get(&self, row: usize, group: usize) -> RawScale {
        let Some(kind) = self.kind else { return RawScale::default() };
        let at = row * self.groups + group;
        assert!((at + 1) * self.per_group * kind.bytes() <= self.scales.len());
        // SAFETY: the scale lies inside the table.
        let bits = unsafe { load_scale(self.scales.as_ptr(), kind, self.per_group, at) };
        RawScale { bits, zero: self.zeros.get(at).map_or(0, |&zero| zero as u16) }
    }

    fn set(&mut self, row: usize, group: usize, raw: &RawScale) {
        let Some(kind) = self.kind else { return };
        let at = row * self.groups + group;
        assert!((at + 1) * self.per_group * kind.bytes() <= self.scales.len());
        // SAFETY: the scale lies inside the table.
        unsafe { store_scale(self.scales.as_mut_ptr(), kind, self.per_group, at, &raw.bits) };
        if let Some(zero) = self.zeros.get_mut(at) {
            *zero = i32::from(raw.zero);
        }
    }
}

/// Bytes of the scales and number of zero points of a row.
fn row_sizes(format: Format, groups: usize) -> (usize, usize) {
    let bytes = format.scale_type().map_or(0, |kind| kind.bytes() * format.scales_per_group());
    (groups * bytes, if format.has_zeros() { groups } else { 0 })
}

fn check_table(format: Format, rows: usize, groups: usize, table: &ScaleTable<'_>) -> Result<()> {
    let (scales, zeros) = row_sizes(format, groups);
    check_len(format, "scales (bytes)", table.scales.len(), rows * scales)?;
    check_len(format, "zeros", table.zeros.len(), rows * zeros)
}

/// The rows of a table, `rows` at a time.
fn split<'a>(
    format: Format,
    table: ScaleTable<'a>,
    rows: usize,
    groups: usize,
    count: usize,
) -> impl Iterator<Item = Table<'a>> {
    let (scales, zeros) = row_sizes(format, groups);
    let (mut scale_rest, mut zero_rest) = (table.scales, table.zeros);
    (0..count).map(move |_| {
        let at = (rows * scales).min(scale_rest.len());
        let (scales, rest) = std::mem::take(&mut scale_rest).split_at_mut(at);
        scale_rest = rest;
        let at = (rows * zeros).min(zero_rest.len());
        let (zeros, rest) = std::mem::take(&mut zero_rest).split_at_mut(at);
        zero_rest = rest;
        Table::new(format, scales, zeros, groups)
    })
}

/// Rounds the columns of a block in order, feeding errors back; `groups` is the number of groups of a row.
///
/// Results do not depend on SIMD level or number of threads.
///
/// # Errors
/// [`Error::Shape`] where a buffer has the wrong length or a group lies outside the table.
pub fn gptq_block(
    format: Format,
    choice: Choice,
    groups: usize,
    block: Block<'_>,
    table: ScaleTable<'_>,
) -> Result<()> {
    gptq_at(Level::current(), format, choice, groups, block, table)
}

fn gptq_at(
    level: Level,
    format: Format,
    choice: Choice,
    groups: usize,
    block: Block<'_>,
    table: ScaleTable<'_>,
) -> Result<()> {
    let _state = FloatState::standard();
    check_encodes(format)?;
    let (rows, columns) = (block.loss.len(), block.groups.len());
    check_len(format, "values", block.values.len(), rows * columns)?;
    check_len(format, "errors", block.errors.len(), rows * columns)?;
    check_len(format, "feedback", block.feedback.len(), columns * columns)?;
    check_len(format, "weights", block.weights.len(), columns)?;
    check_table(format, rows, groups, &table)?;
    if let Some(group) = block.groups.iter().find(|&&group| group as usize >= groups) {
        return Err(ShapeError::Group { format, group: *group, groups }.into());
    }
    if columns == 0 {
        return Ok(());
    }
    let mut work = Work::new(format, level);
    work.tensor = table.tensor;
    let choose = match choice {
        Choice::Given => Choose::Given,
        Choice::Codec(rule) => {
            work.rule = rule;
            Choose::Rule
        }
        Choice::Fit => Choose::Fit { iterations: REFITS },
    };
    let numbers = Numbers::of(&work.grid);
    let Block { values, errors, feedback, weights, groups: columns_groups, loss } = block;
    let shared = Shared { work: &work, numbers: &numbers, choose, feedback, weights, groups: columns_groups };
    let tables = split(format, table, ROWS, groups, rows.div_ceil(ROWS));
    let tiles = values
        .chunks_mut(ROWS * columns)
        .zip(errors.chunks_mut(ROWS * columns))
        .zip(loss.chunks_mut(ROWS))
        .zip(tables)
        .map(|(((values, errors), loss), table)| Tile { values, errors, table, loss })
        .collect();
    // Every element meets on average half of the block's columns.
    pool::consume(tiles, rows * columns * columns, |mut tile: Tile<'_>| gptq::solve(&mut tile, &shared))
}

/// Improves the scales of a table, which holds those to start from, for `x` of `rows` rows: least sum of
/// `weights * |x - q|^power` in each group whose sum of squares is no larger than before. `weights`: one for each
/// column, or none.
///
/// # Errors
/// [`Error::Shape`] where a buffer has the wrong length, [`Error::Format`] for a power outside 0..=2.
pub fn fit_scales(
    format: Format,
    x: &[f32],
    rows: usize,
    weights: &[f32],
    power: f32,
    iterations: usize,
    table: ScaleTable<'_>,
) -> Result<()> {
    fit_at(Level::current(), format, x, rows, weights, (power, iterations), table)
}

fn fit_at(
    level: Level,
    format: Format,
    x: &[f32],
    rows: usize,
    weights: &[f32],
    (power, iterations): (f32, usize),
    table: ScaleTable<'_>,
) -> Result<()> {
    let _state = FloatState::standard();
    check_encodes(format)?;
    if !(power > 0.0 && power <= 2.0) {
        return Err(FormatError::Norm { power }.into());
    }
    // One scale for the whole tensor: it is one long row.
    let rows = if format.granularity() == Granularity::Tensor { 1 } else { rows };
    let k = x.len() / rows.max(1);
    check_len(format, "x (elements)", x.len(), rows * k)?;
    if !weights.is_empty() {
        check_len(format, "weights", weights.len(), k)?;
    }
    let each = match format.granularity() {
        Granularity::Block(block) => block as usize,
        _ => k.max(1),
    };
    let groups = k.div_ceil(each);
    check_table(format, rows, groups, &table)?;
    if k == 0 || format.scale_type().is_none() {
        return Ok(());
    }
    let mut work = Work::new(format, level);
    work.tensor = table.tensor;
    let numbers = Numbers::of(&work.grid);
    let fit = Fit { work: &work, numbers: &numbers, power, iterations };
    let items = x.chunks(k).zip(split(format, table, 1, groups, rows)).collect();
    pool::consume(items, x.len() * 64, |(row, mut table): (&[f32], Table<'_>)| {
        for (group, x) in row.chunks(each).enumerate() {
            let weights = if weights.is_empty() { &[] } else { &weights[group * each..group * each + x.len()] };
            let raw = fit.best(x, weights, table.get(0, group));
            table.set(0, group, &raw);
        }
    })
}

#[cfg(test)]
mod tests;
