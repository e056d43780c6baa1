//! Layer norm of rows, straight into the input of the next product.

use super::lanes::{Floats, Lanes};
use super::model::Norm;
use super::products::{Input, Row};

/// Added to the variance.
const EPSILON: f32 = 1e-5;
/// Rows that are summed side by side, so that none waits for its own sums; as many as a group of lanes.
const ROWS: usize = 4;

/// Writes the norms of `rows`, one behind the other, into the first rows of `to`. Those of a row do not depend on the others.
#[inline(always)]
pub(super) fn normalize<L: Lanes, I: Input<L>>(l: L, norm: &Norm, rows: &[Floats], to: &mut I, inverse: L::F) {
    let lines = norm.gain.len();
    assert!(norm.bias.len() == lines && norm.mask.len() == lines);
    for (group, rows) in rows.chunks(ROWS * lines).enumerate() {
        let count = rows.len() / lines;
        // The last group is filled up with its last row.
        let mut x = [&rows[(count - 1) * lines..]; ROWS];
        for (x, row) in x.iter_mut().zip(rows.chunks_exact(lines)) {
            *x = row;
        }
        let mut sums = [l.splat(0.0); ROWS];
        for (sum, x) in sums.iter_mut().zip(x) {
            for x in x {
                *sum = l.add(*sum, l.load(x));
            }
        }
        let mut means = [l.splat(0.0); ROWS];
        for (mean, total) in means.iter_mut().zip(totals(l, sums)) {
            *mean = l.splat(total * norm.share);
        }
        let mut squares = [l.splat(0.0); ROWS];
        for (line, mask) in norm.mask.iter().enumerate() {
            for (i, square) in squares.iter_mut().enumerate() {
                let distance = l.mul(l.sub(l.load(&x[i][line]), means[i]), l.load(mask));
                *square = l.fma(distance, distance, *square);
            }
        }
        let variances = totals(l, squares);
        for (i, x) in x.into_iter().enumerate().take(count) {
            let deviation = l.splat(1.0 / (variances[i] * norm.share + EPSILON).sqrt());
            let mut to = to.row(group * ROWS + i);
            for (line, ((x, gain), bias)) in x.iter().zip(&norm.gain).zip(&norm.bias).enumerate() {
                let normed = l.mul(l.sub(l.load(x), means[i]), deviation);
                to.put(l, line, l.fma(normed, l.load(gain), l.load(bias)), inverse);
            }
        }
    }
}

/// The sums of all lanes.
#[inline(always)]
fn totals<L: Lanes>(l: L, v: [L::F; ROWS]) -> [f32; ROWS] {
    let mut line = Floats::default();
    l.store(l.add_groups(l.group_sums(v)), &mut line);
    line.0.as_chunks().0[0]
}
