//! Products on VNNI, on tiles and on AVX2: the choice of the kernel, and the division of a product into units of work.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use super::bf16_codes_vbmi::Table;
use super::f32_codes_vbmi::{self, Numbers};
use super::float::{Biased, MANY, PANEL, Panel};
use super::int8_limbs_vnni::{Dot, FixedInputs, MOST_ROWS, Plan};
use super::output::Inputs;
use super::{Matrix, bf16_limbs, f32_codes_avx2, int8_group_tiles, int8_groups_avx2};
use crate::codec::rows::Rows;
use crate::codec::{DType, zeroed};
use crate::error::Result;
use crate::format::{Format, Granularity};
use crate::pool;
use crate::simd::tiles::{Session, Tiles};
use crate::simd::{LANES, Level};

/// Weights below which arranging inputs costs more than it saves, for few rows of inputs and for many.
const SMALL: [usize; 2] = [1 << 12, 1 << 15];
/// Rows of inputs up to which unpacking codes again for VNNI is cheaper than decoding them for tiles.
const FEW: usize = MANY - 1;
/// The same of inputs that are codes, whose products cost a third.
const FEW_CODES: usize = 8;

/// Bytes of limbs of weights of a piece of a product: they stay in the L2 cache while inputs pass by.
const PIECE_BYTES: usize = 5 << 18;
/// Limbs of an input that are made, at most: for each piece of weights again.
const MOST_ARRANGED: usize = 24;
/// Products that take as long as a limb of a weight to make, and one of an input.
const WEIGHT: usize = 270;
const INPUT: usize = 150;
/// Weights from which on limbs of int8 are faster than those of bfloat16.
const LEAST_INT8_TILES: usize = 1 << 20;
/// Products of limbs for each product of a weight and an input, up to which vectors take no longer than in float32.
const MOST_MULTIPLICATIONS: usize = 2;

/// How a product runs.
#[derive(Clone, Debug)]
pub(super) enum Way {
    /// Dot products of bytes.
    Int8Limbs(Arc<Plan>),
    /// Float32 numbers, made of codes in registers.
    F32Codes(Arc<Numbers>),
    /// The same on AVX2.
    F32CodesAvx2(Arc<Plan>),
    /// Tiles of AMX: limbs of inputs in int8, summed by group.
    Int8LimbTiles(Arc<Plan>),
    /// Tiles of bfloat16, looked up where there is a table.
    Bf16Limbs(Option<Arc<Table>>, Tiles),
}

/// The kernel for `m` rows whose numbers are all of the dtype `held`, times `n` rows of `k` weights; `None` for the float32
/// kernel, which also takes over rows with extreme inputs or scales.
pub(super) fn way(format: Format, held: DType, m: usize, n: usize, k: usize, level: Level) -> Option<Way> {
    // Three products of int8 take AMX half as long as three of bfloat16. Scaling their sums takes longer where groups are short,
    // and arranging inputs where weights are few.
    let amx = Tiles::of_bytes(level) == Some(Tiles::Amx);
    if m > FEW && held == DType::F32 && amx && n.saturating_mul(k) >= LEAST_INT8_TILES {
        let pays = |plan: &Arc<Plan>| int8_group_tiles::Product::takes(plan) && int8_group_tiles::is_long(plan);
        let plan = plan(format, level).filter(pays);
        if let Some(plan) = plan {
            return Some(Way::Int8LimbTiles(plan));
        }
    }
    way_alike(format, held, m, n, k, level)
}

/// The same of the kernels whose results prepared weights give, too.
pub(super) fn way_alike(format: Format, held: DType, m: usize, n: usize, k: usize, level: Level) -> Option<Way> {
    if n.saturating_mul(k) < SMALL[usize::from(m > FEW)] {
        return None;
    }
    let limbs = || plan(format, level).filter(|_| m <= FEW).map(Way::Int8Limbs);
    let codes = || numbers(format, level).filter(|numbers| numbers.pays(m)).map(Way::F32Codes);
    let bytes = || {
        let plan = || avx2_plan(format, level).filter(|plan| f32_codes_avx2::takes(plan));
        if m > f32_codes_avx2::MOST_ROWS { None } else { plan().map(Way::F32CodesAvx2) }
    };
    let few = if m > FEW { None } else { codes().or_else(limbs) };
    let tiles = || {
        let table = table(format);
        let better = m > FEW || table.is_some() && n.saturating_mul(k) >= SMALL[1];
        let tiles = Tiles::of_halves(level).filter(|tiles| better && pays(*tiles, format, table.as_deref(), held))?;
        Some(Way::Bf16Limbs(table, tiles))
    };
    few.or_else(tiles).or_else(codes).or_else(bytes)
}

impl Way {
    /// True where [`multiply_pieces`] may take the product.
    pub(super) const fn has_pieces(&self) -> bool {
        matches!(self, Self::Bf16Limbs(_, Tiles::Amx))
    }

    /// Rows of inputs that are multiplied in one go, where `each` are held.
    pub(super) fn rows_at_a_time(&self, each: usize) -> usize {
        if matches!(self, Self::Int8Limbs(_)) { each.min(MOST_ROWS) } else { each }
    }

    /// True where this takes so many rows of inputs; else the float32 kernel does, which gives the same bits.
    pub(super) const fn takes(&self, m: usize) -> bool {
        match self {
            Self::F32Codes(_) => m <= f32_codes_vbmi::MOST_ROWS,
            Self::F32CodesAvx2(_) => m <= f32_codes_avx2::MOST_ROWS,
            _ => true,
        }
    }
}

/// Codes that are multiplied as bfloat16 in tiles.
pub(super) struct Codes {
    /// Where the weights have a table.
    pub(super) weights: Option<Arc<Table>>,
    pub(super) inputs: Arc<Table>,
    pub(super) tiles: Tiles,
}

/// How codes are multiplied in tiles, for `m` rows of inputs rounded to `input` and `n` rows of `k` weights; `None` where
/// rounded inputs are multiplied as others are.
pub(super) fn codes(format: Format, input: Format, m: usize, n: usize, k: usize, level: Level) -> Option<Codes> {
    // On AMX, and where decoded inputs have one limb, these are no slower.
    let tiles = Tiles::of_halves(level).filter(|tiles| *tiles == Tiles::Vectors)?;
    let one = input.granularity() == Granularity::Tensor || bf16_limbs::held_by(input) == DType::BF16;
    if m < MANY || n.saturating_mul(k) < SMALL[1] || one {
        return None;
    }
    let (weights, inputs) = (table(format), table(input).filter(|table| table.has_codes())?);
    let products = bf16_limbs::multiplications(format, weights.as_deref(), DType::BF16);
    (products <= MOST_MULTIPLICATIONS).then_some(Codes { weights, inputs, tiles })
}

/// True where products of limbs are faster than those of float32, which take as long as two of them on vectors.
fn pays(tiles: Tiles, format: Format, table: Option<&Table>, held: DType) -> bool {
    tiles == Tiles::Amx || bf16_limbs::multiplications(format, table, held) <= MOST_MULTIPLICATIONS
}

/// The kernel for many rows of float32 inputs, whose weights can be prepared.
pub(super) fn way_of_many(format: Format, n: usize, k: usize, level: Level) -> Option<Way> {
    way_alike(format, DType::F32, MANY, n, k, level)
}

/// The plans of weights and of inputs whose codes are multiplied, group by group, for `m` rows of inputs rounded to `input`
/// and `n` rows of `k` weights; `None` where rounded inputs are multiplied as others are.
pub(super) fn groups(
    format: Format,
    input: Format,
    m: usize,
    n: usize,
    k: usize,
    level: Level,
) -> Option<(Arc<Plan>, Arc<Plan>)> {
    if !(1..=few_codes(level)).contains(&m) || n.saturating_mul(k) < SMALL[0] {
        return None;
    }
    let inputs = plan(input, level).filter(|plan| plan.has_codes())?;
    Some((plan(format, level)?, inputs))
}

/// Rows of inputs up to which their codes are multiplied as they lie.
fn few_codes(level: Level) -> usize {
    if Tiles::amx(level) { FEW_CODES } else { MOST_ROWS }
}

/// The same where AVX2 multiplies codes.
pub(super) fn groups_avx2(
    format: Format,
    input: Format,
    m: usize,
    n: usize,
    k: usize,
    level: Level,
) -> Option<(Arc<Plan>, Arc<Plan>)> {
    if !(1..=int8_groups_avx2::MOST_ROWS).contains(&m) || n.saturating_mul(k) < SMALL[0] {
        return None;
    }
    let inputs = avx2_plan(input, level).filter(|plan| plan.has_codes())?;
    Some((avx2_plan(format, level).filter(|plan| plan.is_bytes())?, inputs))
}

/// Codes that are multiplied in tiles, and summed by group.
pub(super) struct CodeTiles {
    pub(super) weights: Arc<Plan>,
    pub(super) inputs: Arc<Plan>,
    pub(super) tiles: Tiles,
}

/// How codes are multiplied in tiles of int8, for `m` rows of inputs rounded to `input` and `n` rows of `k` weights; `None`
/// where rounded inputs are multiplied as others are.
pub(super) fn group_tiles(
    format: Format,
    input: Format,
    m: usize,
    n: usize,
    k: usize,
    level: Level,
) -> Option<CodeTiles> {
    let tiles = Tiles::of_bytes(level)?;
    // Scales that belong to all rows are not known to some of them.
    let apart = input.granularity() != Granularity::Tensor && !input.has_levels();
    if !apart || m <= few_codes(level) || n.saturating_mul(k) < SMALL[1] {
        return None;
    }
    // Scaling the sums of a group takes as long as two products of bfloat16, by the count of their instructions.
    let products = || bf16_limbs::multiplications(format, table(format).as_deref(), bf16_limbs::held_by(input));
    // Limbs of bfloat16 of rounded inputs take longer to make than codes, and pay where many weights share them.
    let shared = n >= k && n.saturating_mul(k) < LEAST_INT8_TILES;
    if tiles == Tiles::Amx && (shared || products() <= MOST_MULTIPLICATIONS) {
        return None;
    }
    let inputs = plan(input, level).filter(|plan| plan.has_codes())?;
    let weights = plan(format, level).filter(|plan| int8_group_tiles::Product::takes(plan))?;
    Some(CodeTiles { weights, inputs, tiles })
}

thread_local! {
    /// Cache of plans and tables: making one takes longer than a small product.
    static PLANS: RefCell<HashMap<Format, Option<Arc<Plan>>>> = RefCell::default();
    static NUMBERS: RefCell<HashMap<Format, Option<Arc<Numbers>>>> = RefCell::default();
    static TABLES: RefCell<HashMap<Format, Option<Arc<Table>>>> = RefCell::default();
}

/// True where `level` is AVX-512 and the processor has products and permutations of bytes.
fn has_vnni(level: Level) -> bool {
    level >= Level::Avx512 && is_x86_feature_detected!("avx512vbmi") && is_x86_feature_detected!("avx512vnni")
}

/// The codes of a format as limbs, where VNNI multiplies them.
fn plan(format: Format, level: Level) -> Option<Arc<Plan>> {
    if has_vnni(level) { known_plan(format) } else { None }
}

/// The codes of a format, where AVX2 multiplies them: there is no VNNI.
fn avx2_plan(format: Format, level: Level) -> Option<Arc<Plan>> {
    if level < Level::Avx2 || has_vnni(level) { None } else { known_plan(format) }
}

fn known_plan(format: Format) -> Option<Arc<Plan>> {
    PLANS.with_borrow_mut(|plans| plans.entry(format).or_insert_with(|| Plan::new(format).map(Arc::new)).clone())
}

/// The numbers of a format by code, where `level` is AVX-512 and the processor has permutations of bytes.
fn numbers(format: Format, level: Level) -> Option<Arc<Numbers>> {
    if level < Level::Avx512 || !is_x86_feature_detected!("avx512vbmi") {
        return None;
    }
    NUMBERS.with_borrow_mut(|all| all.entry(format).or_insert_with(|| Numbers::new(format).map(Arc::new)).clone())
}

/// The numbers of a format by code, as bfloat16.
fn table(format: Format) -> Option<Arc<Table>> {
    TABLES.with_borrow_mut(|tables| tables.entry(format).or_insert_with(|| Table::new(format).map(Arc::new)).clone())
}

/// Multiplies as `multiply` does. The float32 kernel takes over rows of inputs, and weights of extreme scales, that a fast
/// kernel cannot. That depends on the row and the weights alone, so no row of inputs changes the result of another.
///
/// # Errors
/// Where memory is short or threads cannot be started.
pub(super) fn multiply(
    way: &Way,
    rows: &Rows<'_>,
    x: &Inputs<'_>,
    m: usize,
    w: &Matrix<'_>,
    out: &Biased<'_>,
) -> Result<()> {
    let (n, k) = (w.rows, w.columns);
    let (bytes, stride) = (m.saturating_mul(n).saturating_mul(k), x.stride);
    // Products of all rows of inputs, or of one, with some rows of weights of one unit of work.
    let plain = |row: Option<usize>, first: usize, count: usize| {
        let (x, m) = row.map_or((x.values(), m), |row| (x.row(row), 1));
        for start in (first..first + count).step_by(PANEL) {
            let panel = Panel { rows, x, stride, first: start, count: PANEL.min(first + count - start) };
            // SAFETY: the rows of weights belong to one unit of work.
            panel.run(m, |i, values| unsafe { out.write(row.unwrap_or(i), start, values) })?;
        }
        Ok(())
    };
    match way {
        Way::Int8Limbs(plan) => {
            // SAFETY: `way` found the instructions.
            let fixed = unsafe { FixedInputs::new(x.values(), m, x.stride, k)? };
            // SAFETY: as above.
            unsafe { Dot::new(plan, rows, &fixed)?.multiply(n, bytes, out, plain) }
        }
        Way::Int8LimbTiles(plan) => {
            // SAFETY: as above.
            unsafe {
                let fixed = FixedInputs::new(x.values(), m, x.stride, k)?;
                let product = int8_group_tiles::Product::new(plan, rows, &fixed, Tiles::Amx)?;
                let left = Left::new(product.left(), x)?;
                let left = |first, count| left.multiply(rows, first, count, out);
                product.multiply(n, out, left, |first, count| plain(None, first, count))
            }
        }
        Way::F32Codes(numbers) => {
            // SAFETY: as above.
            unsafe { f32_codes_vbmi::Product::new(numbers, rows, x, m).multiply(n, out) }
        }
        Way::F32CodesAvx2(plan) => {
            // SAFETY: as above.
            unsafe { f32_codes_avx2::multiply(plan, rows, x, m, n, out) }
        }
        &Way::Bf16Limbs(ref table, tiles) => {
            let weights = bf16_limbs::Weights::new(w.format, table.as_deref(), rows, n, tiles, x.dtype);
            // SAFETY: as above.
            let product = unsafe { bf16_limbs::Product::new(weights, x, m)? };
            let left = Left::new(product.left(), x)?;
            let left = |first, count| left.multiply(rows, first, count, out);
            multiply_tiles(&product, tiles, out, left, |first, count| plain(None, first, count))
        }
    }
}

/// How long the parts of a product take, for each column: making a row of weights ready, and one of inputs, and multiplying
/// them.
pub(super) struct Times {
    pub(super) weight: usize,
    pub(super) input: usize,
    pub(super) product: usize,
}

/// Pieces of the weights of a product, at least, that stay in the L2 cache.
pub(super) const fn least_pieces(bytes: usize) -> usize {
    let pieces = bytes.div_ceil(PIECE_BYTES);
    if pieces == 0 { 1 } else { pieces }
}

/// Rows of weights, which take so many bytes in all, and rows of inputs of a piece of a product, that one thread makes ready
/// and multiplies.
pub(super) fn piece(bytes: usize, times: &Times, n: usize, m: usize) -> (usize, usize) {
    let (least, threads) = (least_pieces(bytes), pool::num_threads());
    let sizes = |of_inputs: usize| {
        let of_weights = least.max(threads.div_ceil(of_inputs)).next_multiple_of(threads.div_ceil(of_inputs));
        let each = |all: usize, pieces: usize| all.div_ceil(pieces).next_multiple_of(bf16_limbs::UNIT).min(all);
        (each(n, of_weights), each(m, of_inputs))
    };
    let time = |(rows, some): (usize, usize)| {
        let rounds = (n.div_ceil(rows) * m.div_ceil(some)).div_ceil(threads);
        rounds * (rows * times.weight + some * times.input + rows * some * times.product)
    };
    let all = (0..=threads.ilog2()).map(|i| sizes(1 << i));
    all.min_by_key(|sizes| time(*sizes)).unwrap_or((n, m))
}

/// Multiplies all `m` rows of inputs, whose numbers are all of the dtype `held`, in pieces that make all the limbs they need, if
/// it does not pay more to make those of inputs once, and no weight is of extreme magnitude; else false.
///
/// # Errors
/// Where memory is short or threads cannot be started.
pub(super) fn multiply_pieces(
    way: &Way,
    rows: &Rows<'_>,
    (x, m, held): (&bf16_limbs::Given<'_>, usize, DType),
    w: &Matrix<'_>,
    out: &Biased<'_>,
) -> Result<bool> {
    let Way::Bf16Limbs(table, tiles @ Tiles::Amx) = way else { return Ok(false) };
    let (n, k) = (w.rows, w.columns);
    let weights = bf16_limbs::Weights::new(w.format, table.as_deref(), rows, n, *tiles, held);
    let bytes = bf16_limbs::Kept::bytes(&weights);
    if m == 0 || least_pieces(bytes) * x.limbs() > MOST_ARRANGED {
        return Ok(m == 0);
    }
    let product = bf16_limbs::multiplications(w.format, table.as_deref(), held);
    let times = Times { weight: WEIGHT * weights.limbs, input: INPUT * x.limbs(), product };
    let (each, some) = piece(bytes, &times, n, m);
    let (work, parts) = (m.saturating_mul(n).saturating_mul(k), m.div_ceil(some));
    // Of each piece the rows of inputs that are left, the same ones for all weights; none where weights are extreme.
    let left = pool::map(n.div_ceil(each) * parts, work, |piece| {
        let (first, from) = (piece / parts * each, piece % parts * some);
        let (of_weights, of_inputs) = (first..n.min(first + each), from..m.min(from + some));
        let mut left = Vec::new();
        // SAFETY: `way` found the instructions; outputs have the rows and the columns, which no other piece has.
        let done = unsafe {
            bf16_limbs::Kept::with(&weights, of_weights, |kept| kept.multiply(x, of_inputs, first, out, &mut left))
        };
        done.map(|done| done.map(|()| left))
    })?;
    let left = left.into_iter().collect::<Result<Option<Vec<_>>>>()?;
    let Some(left) = left else { return Ok(false) };
    let left: Vec<usize> = left.into_iter().take(parts).flatten().collect();
    if !left.is_empty() {
        let left = Left::of(left, x, k)?;
        let work = left.rows.len().saturating_mul(n).saturating_mul(k);
        pool::try_for_each(n.div_ceil(PANEL), work, |panel| {
            left.multiply(rows, panel * PANEL, PANEL.min(n - panel * PANEL), out)
        })?;
    }
    Ok(true)
}

/// Multiplies all rows of weights, unit by unit. `left` writes the products of the rows of inputs that this leaves, `plain`
/// those of all where weights are extreme, both with so many rows of weights from one on.
pub(super) fn multiply_tiles(
    product: &bf16_limbs::Product<'_>,
    tiles: Tiles,
    out: &Biased<'_>,
    left: impl Fn(usize, usize) -> Result<()> + Sync,
    plain: impl Fn(usize, usize) -> Result<()> + Sync,
) -> Result<()> {
    let ((m, n, k), each) = (product.sizes(), product.unit());
    let (bytes, some) = (m.saturating_mul(n).saturating_mul(k), product.left().count() < m);
    pool::try_for_each(n.div_ceil(each), bytes, |unit| {
        let first = unit * each;
        let count = each.min(n - first);
        // SAFETY: the rows of weights belong to one unit of work.
        let write = |row: usize, column: usize, values: &mut [f32]| unsafe { out.write(row, column, values) };
        let mut done = 0;
        if some {
            // SAFETY: the way, or `codes`, found the instructions.
            done = unsafe { product.run(&Session::new(tiles), first, write)? };
        }
        (0..count).step_by(bf16_limbs::UNIT).enumerate().try_for_each(|(pair, start)| {
            let (first, count) = (first + start, bf16_limbs::UNIT.min(count - start));
            if done >> pair & 1 == 1 { left(first, count) } else { plain(first, count) }
        })
    })
}

/// Rows of inputs that a kernel leaves to the float32 kernel, gathered.
pub(super) struct Left {
    rows: Vec<usize>,
    values: Vec<f32>,
    stride: usize,
}

impl Left {
    /// Gathers rows of `x`.
    ///
    /// # Errors
    /// Where memory is short.
    pub(super) fn new(left: impl Iterator<Item = usize> + Clone, x: &Inputs<'_>) -> Result<Self> {
        let mut rows = zeroed(left.clone().count())?;
        rows.iter_mut().zip(left).for_each(|(to, row)| *to = row);
        let mut values = zeroed(rows.len() * x.stride)?;
        for (to, &row) in values.chunks_mut(x.stride.max(1)).zip(&rows) {
            to.copy_from_slice(x.row(row));
        }
        Ok(Self { rows, values, stride: x.stride })
    }

    /// Gathers rows of `k` values of `x`.
    ///
    /// # Errors
    /// Where memory is short, and those of rows that are made.
    fn of(rows: Vec<usize>, x: &bf16_limbs::Given<'_>, k: usize) -> Result<Self> {
        let stride = k.next_multiple_of(LANES);
        let mut values = zeroed(rows.len() * stride)?;
        for (to, &row) in values.chunks_mut(stride).zip(&rows) {
            x.widen(row..row + 1, to, stride)?;
        }
        Ok(Self { rows, values, stride })
    }

    /// Writes their products with `count` rows of weights from `first` on, which belong to one unit of work.
    ///
    /// # Errors
    /// Where memory is short.
    pub(super) fn multiply(&self, rows: &Rows<'_>, first: usize, count: usize, out: &Biased<'_>) -> Result<()> {
        if self.rows.is_empty() {
            return Ok(());
        }
        for start in (first..first + count).step_by(PANEL) {
            let count = PANEL.min(first + count - start);
            let panel = Panel { rows, x: &self.values, stride: self.stride, first: start, count };
            // SAFETY: as for the caller; each of the rows is there once.
            panel.run(self.rows.len(), |i, values| unsafe { out.write(self.rows[i], start, values) })?;
        }
        Ok(())
    }
}
