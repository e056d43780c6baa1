//! Plain Rust: the specification of the lanes.

use super::{Floats, Job, LANES, Lanes, Sums};

/// No instructions but the compiler's own.
#[derive(Clone, Copy, Debug)]
pub(in crate::fused) struct Scalar;

#[inline(always)]
fn each(a: [f32; LANES], b: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> [f32; LANES] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

fn least(a: f32, b: f32) -> f32 {
    if a < b { a } else { b }
}

fn greatest(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

impl Lanes for Scalar {
    type F = [f32; LANES];
    type I = [i32; LANES];
    const BLOCK: (usize, usize) = (4, 1);

    #[inline(always)]
    fn run<J: Job<Self>>(self, job: J) -> J::Output {
        job.run(self)
    }

    #[inline(always)]
    fn load(self, from: &Floats) -> Self::F {
        from.0
    }
    #[inline(always)]
    fn store(self, v: Self::F, to: &mut Floats) {
        to.0 = v;
    }
    #[inline(always)]
    fn splat(self, v: f32) -> Self::F {
        [v; LANES]
    }
    #[inline(always)]
    fn quad(self, v: &[f32; 4]) -> Self::F {
        std::array::from_fn(|i| v[i % 4])
    }

    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        each(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        each(a, b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        each(a, b, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        each(a, b, |a, b| a / b)
    }
    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        each(a, b, least)
    }
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        each(a, b, greatest)
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        std::array::from_fn(|i| a[i].mul_add(b[i], c[i]))
    }

    #[inline(always)]
    fn load_sums(self, from: &Sums) -> Self::I {
        from.0
    }
    #[inline(always)]
    fn splat_sum(self, v: i32) -> Self::I {
        [v; LANES]
    }
    #[inline(always)]
    fn add_sums(self, a: Self::I, b: Self::I) -> Self::I {
        std::array::from_fn(|i| a[i].wrapping_add(b[i]))
    }
    #[inline(always)]
    fn to_floats(self, v: Self::I) -> Self::F {
        v.map(|v| v as f32)
    }
    #[inline(always)]
    fn bits(self, v: Self::F) -> Self::I {
        v.map(|v| v.to_bits().cast_signed())
    }
    #[inline(always)]
    fn bits_to_float(self, v: Self::I) -> Self::F {
        v.map(|v| f32::from_bits(v.cast_unsigned()))
    }
    #[inline(always)]
    fn to_exponent(self, v: Self::I) -> Self::I {
        v.map(|v| v << 23)
    }
    #[inline(always)]
    fn to_high_bytes(self, v: Self::I) -> Self::I {
        v.map(|v| v << 8)
    }

    #[inline(always)]
    fn first(self, count: usize, a: Self::F, b: Self::F) -> Self::F {
        std::array::from_fn(|i| if i < count { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn sum(self, v: Self::F) -> f32 {
        let halves: [f32; 8] = std::array::from_fn(|i| v[i] + v[i + 8]);
        let quarters: [f32; 4] = std::array::from_fn(|i| halves[i] + halves[i + 4]);
        (quarters[0] + quarters[2]) + (quarters[1] + quarters[3])
    }
    #[inline(always)]
    fn add_groups(self, v: Self::F) -> Self::F {
        std::array::from_fn(|i| (v[i % 4] + v[i % 4 + 8]) + (v[i % 4 + 4] + v[i % 4 + 12]))
    }
    #[inline(always)]
    fn max_groups(self, v: Self::F) -> Self::F {
        std::array::from_fn(|i| {
            let first = greatest(v[i % 4], v[i % 4 + 8]);
            greatest(first, greatest(v[i % 4 + 4], v[i % 4 + 12]))
        })
    }
    #[inline(always)]
    fn group_sums(self, v: [Self::F; 4]) -> Self::F {
        std::array::from_fn(|i| {
            let (v, at) = (&v[i % 4], i / 4 * 4);
            (v[at] + v[at + 2]) + (v[at + 1] + v[at + 3])
        })
    }
    #[inline(always)]
    fn to_bytes(self, v: Self::F, inverse: Self::F) -> [u8; LANES] {
        let cut = each(v, inverse, |v, inverse| least(greatest(v * inverse, -127.0), 127.0));
        cut.map(|v| (v.round_ties_even() as i32 + 128) as u8)
    }
    #[inline(always)]
    fn to_words(self, v: Self::F, inverse: Self::F) -> [[u8; LANES]; 2] {
        let cut = each(v, inverse, |v, inverse| least(greatest(v * inverse, -32767.0), 32767.0));
        let words = cut.map(|v| (v.round_ties_even() as i32 + 32768) as u16);
        [words.map(|word| (word >> 8) as u8), words.map(|word| word as u8)]
    }
}
