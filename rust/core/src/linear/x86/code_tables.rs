//! What kernels read the codes of a format by, made once for each thread: making it takes longer than a small product.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use super::bf16_codes_vbmi::Table;
use super::f32_codes_vbmi::Numbers;
use super::f32_float8::Minifloat;
use super::f32_lookup_avx512::Book;
use super::int8_limbs_vnni::Plan;
use crate::error::{Error, Result};
use crate::format::Format;

thread_local! {
    static PLANS: RefCell<HashMap<Format, Option<Arc<Plan>>>> = RefCell::default();
    static NUMBERS: RefCell<HashMap<Format, Option<Arc<Numbers>>>> = RefCell::default();
    static MINIFLOATS: RefCell<HashMap<Format, Option<Arc<Minifloat>>>> = RefCell::default();
    static BOOKS: RefCell<HashMap<Format, Option<Arc<Book>>>> = RefCell::default();
    static TABLES: RefCell<HashMap<Format, Option<Arc<Table>>>> = RefCell::default();
}

/// The codes of a format as limbs of int8, where groups have no offsets.
pub(super) fn plan(format: Format) -> Option<Arc<Plan>> {
    plan_or_offsets(format).filter(|plan| !plan.offsets)
}

/// The codes of a format as limbs of int8.
pub(super) fn plan_or_offsets(format: Format) -> Option<Arc<Plan>> {
    PLANS.with_borrow_mut(|plans| plans.entry(format).or_insert_with(|| Plan::new(format).map(Arc::new)).clone())
}

/// The numbers of a format by code, as float32 or bytes.
pub(super) fn numbers(format: Format) -> Option<Arc<Numbers>> {
    NUMBERS.with_borrow_mut(|all| all.entry(format).or_insert_with(|| Numbers::new(format).map(Arc::new)).clone())
}

/// How codes of 8 bits become float16.
pub(super) fn minifloat(format: Format) -> Option<Arc<Minifloat>> {
    MINIFLOATS.with_borrow_mut(|all| all.entry(format).or_insert_with(|| Minifloat::new(format).map(Arc::new)).clone())
}

/// The code book of a format of 4 bits.
pub(super) fn book(format: Format) -> Option<Arc<Book>> {
    BOOKS.with_borrow_mut(|all| all.entry(format).or_insert_with(|| Book::new(format).map(Arc::new)).clone())
}

/// The numbers of a format by code, as bfloat16.
pub(super) fn table(format: Format) -> Option<Arc<Table>> {
    TABLES.with_borrow_mut(|tables| tables.entry(format).or_insert_with(|| Table::new(format).map(Arc::new)).clone())
}

/// What a kernel reads a format by, or an error where the kernel does not take the format.
///
/// # Errors
/// [`Error::Format`] where there is nothing.
pub(super) fn require<T>(found: Option<Arc<T>>, format: Format) -> Result<Arc<T>> {
    found.ok_or_else(|| Error::format(format!("'{format}' given to a kernel that does not take it")))
}
