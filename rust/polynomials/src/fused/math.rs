//! Exponential, tanh and the cell of an LSTM. Errors are stated here and held by the tests.

use super::lanes::Lanes;

/// Arguments of the functions of a gate are cut at this magnitude, where they differ from their limits by 3e-13: the
/// product of three denominators then stays below the largest float32.
const STEEPEST: f32 = 29.0;
/// Adding this rounds to a whole number, which then stands in the low bits.
const ROUNDING: f32 = 12_582_912.0;
/// ln 2 in two parts; products of the first with whole numbers up to 2^15 are exact.
const LN_2: (f32, f32) = (0.693_359_4, -2.121_944_4e-4);
/// `(exp(r) - 1) / r` on `|r| <= ln 2 / 2`, least error relative to `exp(r)`: 2e-9.
const POLYNOMIAL: [f32; 6] = [1.0, 0.499_999_94, 0.166_664_3, 0.041_668_005, 0.008_374_196, 0.001_384_360_6];

/// `(s, p)` with `exp(x) = s + s p`: `s` a power of two, `p = exp(r) - 1` of the remainder. `|x|` at most 87.
#[inline(always)]
fn parts<L: Lanes>(l: L, x: L::F) -> (L::F, L::F) {
    let rounded = l.fma(x, l.splat(std::f32::consts::LOG2_E), l.splat(ROUNDING));
    let whole = l.sub(rounded, l.splat(ROUNDING));
    let r = l.fma(whole, l.splat(-LN_2.0), x);
    let r = l.fma(whole, l.splat(-LN_2.1), r);
    let [c0, c1, c2, c3, c4, c5] = POLYNOMIAL;
    let mut p = l.fma(r, l.splat(c5), l.splat(c4));
    for c in [c3, c2, c1, c0] {
        p = l.fma(p, r, l.splat(c));
    }
    let s = l.add_sums(l.to_exponent(l.bits(rounded)), l.splat_sum(1.0f32.to_bits().cast_signed()));
    (l.bits_to_float(s), l.mul(p, r))
}

#[inline(always)]
fn cut<L: Lanes>(l: L, x: L::F, magnitude: f32) -> L::F {
    l.min(l.max(x, l.splat(-magnitude)), l.splat(magnitude))
}

/// `exp(x)` for `x <= 0`, cut at -87; relative error at most 2e-7.
#[inline(always)]
pub(super) fn exp<L: Lanes>(l: L, x: L::F) -> L::F {
    let (s, p) = parts(l, l.max(x, l.splat(-87.0)));
    l.fma(s, p, s)
}

/// `exp(-x)`, for the functions of gates.
#[inline(always)]
fn decay<L: Lanes>(l: L, x: L::F) -> L::F {
    let (s, p) = parts(l, cut(l, l.sub(l.splat(0.0), x), STEEPEST));
    l.fma(s, p, s)
}

/// `exp(-2 x) - 1`, with small error relative to itself.
#[inline(always)]
fn decay_2_less_1<L: Lanes>(l: L, x: L::F) -> L::F {
    let (s, p) = parts(l, cut(l, l.mul(x, l.splat(-2.0)), STEEPEST));
    l.fma(s, p, l.sub(s, l.splat(1.0)))
}

/// `tanh(x)`; relative error at most 4e-7.
#[inline(always)]
pub(super) fn tanh<L: Lanes>(l: L, x: L::F) -> L::F {
    let e = decay_2_less_1(l, x);
    l.div(l.sub(l.splat(0.0), e), l.add(e, l.splat(2.0)))
}

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
