//! Every operation of every instruction set gives the bits of plain Rust.

use super::{Lanes, Scalar};
use crate::float::LANES;
use crate::simd::{Job, Level, fast};

/// Values of every kind, so ordered that pairs of them meet in the lanes.
fn values() -> Vec<[f32; LANES]> {
    let kinds = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        -2.5,
        3.5,
        1e-40,
        -1e-42,
        f32::MIN_POSITIVE,
        f32::MAX,
        -f32::MAX,
        f32::INFINITY,
        f32::NEG_INFINITY,
        65_519.9,
        -2_147_483_648.0,
        123_456.79,
        16_777_216.0,
        0.1,
        f32::NAN,
    ];
    let noise = (0..200u32).map(|i| f32::from_bits(i.wrapping_mul(0x9e37_79b9) & 0xbfff_ffff));
    let all: Vec<f32> = kinds.into_iter().chain(noise).collect();
    (0..all.len()).map(|first| std::array::from_fn(|lane| all[(first + 7 * lane) % all.len()])).collect()
}

/// Bits of the results of all operations on some values. A NaN counts as one, whatever its bits.
struct All<'a>(&'a [[f32; LANES]]);

impl<V: Lanes> Job<V> for All<'_> {
    type Output = Vec<(&'static str, [u32; LANES])>;
    #[inline(always)]
    fn run(self, _: V) -> Self::Output {
        let mut out = Vec::new();
        // SAFETY: the lanes prove the instructions; arrays hold sixteen values.
        unsafe {
            for (x, y) in self.0.iter().zip(self.0.iter().skip(5).chain(self.0)) {
                let (a, b) = (V::load(x.as_ptr()), V::load(y.as_ptr()));
                let (i, j) = (V::bits(a), V::bits(b));
                let third = V::splat(0.75);
                let bits = |v: V::I| V::store_i(v);
                let floats = |v: V::F| V::store_i(V::bits(V::select(V::unordered(v), V::splat(f32::NAN), v)));
                let mask = |m: V::M| [V::mask_bits(m); LANES];
                out.extend([
                    ("add", floats(V::add(a, b))),
                    ("sub", floats(V::sub(a, b))),
                    ("mul", floats(V::mul(a, b))),
                    ("div", floats(V::div(a, b))),
                    ("sqrt", floats(V::sqrt(a))),
                    ("min", floats(V::min(a, b))),
                    ("max", floats(V::max(a, b))),
                    ("fma", floats(V::fma(a, b, third))),
                    ("fnmadd", floats(V::fnmadd(a, b, third))),
                    ("round", floats(V::round(a))),
                    ("to_i", bits(V::to_i(a))),
                    ("to_f", floats(V::to_f(i))),
                    ("and", bits(V::and(i, j))),
                    ("or", bits(V::or(i, j))),
                    ("xor", bits(V::xor(i, j))),
                    ("add_i", bits(V::add_i(i, j))),
                    ("sub_i", bits(V::sub_i(i, j))),
                    ("max_i", bits(V::max_i(i, j))),
                    ("lookup", floats(V::lookup(b, V::and(i, V::splat_i(15))))),
                    ("abs", floats(V::abs(a))),
                    ("with_sign", floats(V::with_sign(V::abs(a), b))),
                    ("positive_zero", floats(V::positive_zero(a))),
                    ("lt", mask(V::lt(a, b))),
                    ("ge", mask(V::ge(a, b))),
                    ("eq", mask(V::eq(a, b))),
                    ("unordered", mask(V::unordered(a))),
                    ("gt_i", mask(V::gt_i(i, j))),
                    ("any", [u32::from(V::any(V::lt(a, b))); LANES]),
                    ("select", floats(V::select(V::lt(a, b), a, b))),
                    ("select_i", bits(V::select_i(V::lt(a, b), i, j))),
                    ("mul_wide, upper half", bits(V::mul_wide(i, j).0)),
                    ("mul_wide, lower half", bits(V::mul_wide(i, j).1)),
                    ("reduce_max", [V::reduce_max(V::and(i, V::splat_i(i32::MAX))); LANES]),
                ]);
                for count in [0, 1, 8, 23, 31, 32, 40] {
                    out.extend([("shl", bits(V::shl(i, count))), ("shr", bits(V::shr(i, count)))]);
                    if count < 32 {
                        out.push(("sar", bits(V::sar(i, count))));
                    }
                }
                out.extend(self.in_memory::<V>(a));
            }
            for rows in self.0.windows(LANES) {
                let (mut sizes, mut finite) = ([V::splat_i(0); LANES], [V::splat(0.0); LANES]);
                for (j, row) in rows.iter().enumerate() {
                    let v = V::load(row.as_ptr());
                    sizes[j] = V::and(V::bits(v), V::splat_i(i32::MAX));
                    let bounded = V::max(V::splat(-1e9), V::min(V::splat(1e9), v));
                    finite[j] = V::select(V::unordered(v), V::splat(2.0), bounded);
                }
                out.push(("reduce_max_each", V::store_i(V::reduce_max_each(sizes))));
                out.push(("tree_sum_each", V::store_i(V::bits(V::tree_sum_each(finite)))));
            }
        }
        out
    }
}

impl All<'_> {
    /// Operations on memory and over lanes; the latter of values without NaN.
    ///
    /// # Safety
    /// The processor must have the features of `V`.
    #[inline(always)]
    unsafe fn in_memory<V: Lanes>(&self, a: V::F) -> Vec<(&'static str, [u32; LANES])> {
        let (mut bytes, mut halves, mut f16s) = ([0u8; LANES], [0u16; LANES], [0u16; LANES]);
        // SAFETY: as for the caller.
        unsafe {
            let finite = V::select(V::unordered(a), V::splat(2.0), V::max(V::splat(-1e9), V::min(V::splat(1e9), a)));
            V::store_u8(bytes.as_mut_ptr(), V::bits(a));
            V::store_u16(halves.as_mut_ptr(), V::bits(a));
            V::store_f16(f16s.as_mut_ptr(), V::select(V::unordered(a), V::splat(1.0), a));
            let sums = V::accumulate_squares(V::accumulate(V::zero_d(), finite), finite);
            let mut line = crate::simd::Floats::splat(0.0);
            V::stream(line.0.as_mut_ptr(), finite);
            let mut low = crate::simd::Floats::splat(0.0);
            V::stream_u8(low.0.as_mut_ptr().cast(), V::bits(a));
            V::fence();
            let mut part = [7.0f32; LANES];
            V::store_part(part.as_mut_ptr(), finite, 5);
            let wide = |v: V::D| V::to_array(v).map(|v| (v.to_bits() ^ v.to_bits() >> 32) as u32);
            let mut stored = [0.0f64; LANES];
            V::store_d(stored.as_mut_ptr(), sums);
            vec![
                ("store_u8", bytes.map(u32::from)),
                ("store_u16", halves.map(u32::from)),
                ("store_f16", f16s.map(u32::from)),
                ("load_u8", V::store_i(V::load_u8(bytes.as_ptr()))),
                ("load_u16", V::store_i(V::load_u16(halves.as_ptr()))),
                ("load_f16", V::store_i(V::bits(V::load_f16(f16s.as_ptr())))),
                ("stream", line.0.map(f32::to_bits)),
                ("stream_u8", low.0.map(f32::to_bits)),
                ("store_part", part.map(f32::to_bits)),
                ("load_part", V::store_i(V::bits(V::load_part(part.as_ptr(), 9)))),
                ("tree_sum", [V::tree_sum(finite).to_bits(); LANES]),
                ("reduce_min_f", [(V::reduce_min_f(finite) + 0.0).to_bits(); LANES]),
                ("reduce_max_f", [(V::reduce_max_f(finite) + 0.0).to_bits(); LANES]),
                ("to_array", V::to_array(sums).map(|sum| sum.to_bits() as u32)),
                ("to_array, upper half", V::to_array(sums).map(|sum| (sum.to_bits() >> 32) as u32)),
                ("add_exact_d", wide(V::add_exact_d(sums, V::splat_d(-1.25), V::accumulate(V::zero_d(), finite)))),
                ("take_d", wide(V::take_d(V::load_d(V::to_array(sums).as_ptr()), V::splat_d(0.1), sums))),
                ("store_d", stored.map(|v| v.to_bits() as u32)),
                ("range_over", V::store_i(V::bits(V::range_over(finite, V::splat(-3.0), 255.0)))),
            ]
        }
    }
}

#[test]
fn operations_give_the_bits_of_plain_rust_at_every_level() {
    let values = values();
    let wanted = All(&values).run(Scalar);
    for level in Level::ALL {
        let Ok(got) = fast(level, All(&values)) else { continue };
        for (i, (got, wanted)) in got.iter().zip(&wanted).enumerate() {
            assert_eq!(got, wanted, "{} at {level:?}, result {i}", wanted.0);
        }
        assert_eq!(got.len(), wanted.len());
    }
}

#[test]
fn a_level_that_is_missing_leaves_the_job_to_the_reference() {
    assert!(fast(Level::Scalar, All(&[])).is_err());
    for level in Level::ALL {
        assert_eq!(fast(level, All(&[])).is_ok(), level != Level::Scalar && level.is_here());
    }
}
