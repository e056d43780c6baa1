//! Plain Rust: what the operations mean.

use super::{LANES, Lanes, Scalar};

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
    const BLOCK: (usize, usize) = (4, 1);

    #[inline(always)]
    fn quad(self, v: &[f32; 4]) -> Self::F {
        std::array::from_fn(|i| v[i % 4])
    }
    #[inline(always)]
    fn first(self, count: usize, a: Self::F, b: Self::F) -> Self::F {
        std::array::from_fn(|i| if i < count { a[i] } else { b[i] })
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
