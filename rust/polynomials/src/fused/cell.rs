//! The cell of an LSTM.

use octavo_core::simd::exp::{decay, decay_2_less_1};

use super::lanes::Lanes;

/// Hidden state and cell of an LSTM's units from their gates i, f, g, o and the cell before; absolute error at most 1e-6
/// where the cell's magnitude is at most 1.
///
/// `cell = f' c + i' tanh(g)` and `hidden = o' tanh(cell)` with `'` the sigmoid, each over one common denominator.
#[inline(always)]
pub(super) fn cell<L: Lanes>(l: L, [i, f, g, o]: [L::F; 4], c: L::F) -> (L::F, L::F) {
    let (one, two, zero) = (l.splat(1.0), l.splat(2.0), l.splat(0.0));
    let forget = l.add(decay(l, f), one);
    let e = decay_2_less_1(l, g);
    let enter = l.mul(l.add(decay(l, i), one), l.add(e, two));
    let above = l.fma(c, enter, l.mul(l.sub(zero, e), forget));
    let c = l.div(above, l.mul(enter, forget));
    let e = decay_2_less_1(l, c);
    let below = l.mul(l.add(decay(l, o), one), l.add(e, two));
    (l.div(l.sub(zero, e), below), c)
}
