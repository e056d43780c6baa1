//! Layer norm of a row, straight into the input of the next product.

use super::lanes::{Floats, Lanes};
use super::model::Norm;
use super::products::Row;

/// Added to the variance.
const EPSILON: f32 = 1e-5;

/// Writes the norm of `row` into `to`.
#[inline(always)]
pub(super) fn normalize<L: Lanes>(l: L, norm: &Norm, row: &[Floats], mut to: impl Row<L>, inverse: L::F) {
    let mut sum = l.splat(0.0);
    for x in row {
        sum = l.add(sum, l.load(x));
    }
    let mean = l.splat(l.sum(sum) * norm.share);
    let mut squares = l.splat(0.0);
    for (x, mask) in row.iter().zip(&norm.mask) {
        let distance = l.mul(l.sub(l.load(x), mean), l.load(mask));
        squares = l.fma(distance, distance, squares);
    }
    let deviation = l.splat(1.0 / (l.sum(squares) * norm.share + EPSILON).sqrt());
    for (line, ((x, gain), bias)) in row.iter().zip(&norm.gain).zip(&norm.bias).enumerate() {
        let normed = l.mul(l.sub(l.load(x), mean), deviation);
        to.put(l, line, l.fma(normed, l.load(gain), l.load(bias)), inverse);
    }
}
