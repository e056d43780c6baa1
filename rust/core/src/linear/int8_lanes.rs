//! Integer products of any length: exact sums over lanes, a row of weights and a row of inputs at a time.

use super::integer::{IntegerProduct, PANEL};
use super::{ran, reference};
use crate::error::Result;
use crate::simd::{Job, Lanes, Level, fast};

/// Products that int32 can sum: `2^16 * 128 * 128 < 2^31`.
pub(super) const MAX_DEPTH: usize = 1 << 16;

/// Multiplies with rows of weights that are unpacked, a panel at a time.
///
/// # Errors
/// Where memory is short or threads cannot be started.
pub(super) fn run(product: &IntegerProduct<'_>) -> Result<()> {
    let (level, k) = (product.level(), product.w.columns);
    ran::note(match level {
        Level::Scalar => "int8 scalar",
        Level::Neon => "int8 lanes neon",
        Level::Avx2 => "int8 lanes avx2",
        Level::Avx512 => "int8 lanes avx512",
    });
    product.in_panels(|first, count, codes| {
        for row in 0..product.problem.rows {
            let mut values = [0.0; PANEL];
            for (r, value) in values.iter_mut().enumerate().take(count) {
                let sum = sum_of_products(level, product.x.row(row), &codes[r * k..][..k]);
                *value = product.value(sum, row, first + r);
            }
            // SAFETY: every panel writes its own columns.
            unsafe { product.out.write(row, first, &values[..count]) };
        }
        Ok(())
    })
}

/// The exact sum of products of codes.
fn sum_of_products(level: Level, a: &[i8], b: &[i8]) -> i64 {
    let pieces = a.chunks(MAX_DEPTH).zip(b.chunks(MAX_DEPTH));
    fast(level, Sum(pieces)).unwrap_or_else(|_| reference::sum_of_codes(a, b))
}

/// Pieces of at most [`MAX_DEPTH`] products to sum.
struct Sum<P>(P);

impl<'a, L: Lanes, P: Iterator<Item = (&'a [i8], &'a [i8])>> Job<L> for Sum<P> {
    type Output = i64;
    #[inline(always)]
    fn run(self, _: L) -> i64 {
        let mut all = 0;
        for (a, b) in self.0 {
            let mut sum = 0i32;
            for (&a, &b) in a.iter().zip(b) {
                sum += i32::from(a) * i32::from(b);
            }
            all += i64::from(sum);
        }
        all
    }
}
