//! Plain Rust: what each operation of the lanes means.

use super::Lanes;
use crate::float::{LANES, tree_sum};
use crate::simd::Job;

/// No instructions but the compiler's own.
#[derive(Clone, Copy, Debug)]
pub struct Scalar;

type F = [f32; LANES];
type I = [i32; LANES];
type M = [bool; LANES];
type D = [f64; LANES];

#[inline(always)]
fn each<A: Copy, B: Copy, C>(a: [A; LANES], b: [B; LANES], f: impl Fn(A, B) -> C) -> [C; LANES] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

#[inline(always)]
fn least(a: f32, b: f32) -> f32 {
    if a < b { a } else { b }
}

#[inline(always)]
fn greatest(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

#[inline(always)]
fn nearest(v: f32) -> i32 {
    let whole = v.round_ties_even();
    if (-2_147_483_648.0..2_147_483_648.0).contains(&whole) { whole as i32 } else { i32::MIN }
}

/// Operations that are plain functions of arrays.
macro_rules! plain {
    ($($name:ident($($argument:ident: $type:ty),*) -> $output:ty = $body:expr;)*) => {$(
        #[inline(always)]
        unsafe fn $name($($argument: $type),*) -> $output {
            $body
        }
    )*};
}

// SAFETY: every processor can do this.
unsafe impl Lanes for Scalar {
    type F = F;
    type I = I;
    type M = M;
    type D = D;
    const VECTORS: usize = 4;
    const ONE_LOOKUP: bool = false;

    #[inline(always)]
    fn run<J: Job<Self>>(self, job: J) -> J::Output {
        job.run(self)
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> F {
        // SAFETY: as the caller promises.
        unsafe { p.cast::<F>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: F) {
        // SAFETY: as the caller promises.
        unsafe { p.cast::<F>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn stream(p: *mut f32, v: F) {
        // SAFETY: as the caller promises.
        unsafe { Self::store(p, v) }
    }

    plain! {
        splat(v: f32) -> F = [v; LANES];
        splat_i(v: i32) -> I = [v; LANES];
        bits(v: F) -> I = v.map(|v| v.to_bits().cast_signed());
        from_bits(v: I) -> F = v.map(|v| f32::from_bits(v.cast_unsigned()));
        add(a: F, b: F) -> F = each(a, b, |a, b| a + b);
        sub(a: F, b: F) -> F = each(a, b, |a, b| a - b);
        mul(a: F, b: F) -> F = each(a, b, |a, b| a * b);
        div(a: F, b: F) -> F = each(a, b, |a, b| a / b);
        sqrt(v: F) -> F = v.map(f32::sqrt);
        min(a: F, b: F) -> F = each(a, b, least);
        max(a: F, b: F) -> F = each(a, b, greatest);
        fma(a: F, b: F, c: F) -> F = std::array::from_fn(|i| a[i].mul_add(b[i], c[i]));
        fnmadd(a: F, b: F, c: F) -> F = std::array::from_fn(|i| (-a[i]).mul_add(b[i], c[i]));
        round(v: F) -> F = v.map(f32::round_ties_even);
        to_i(v: F) -> I = v.map(nearest);
        to_f(v: I) -> F = v.map(|v| v as f32);
        and(a: I, b: I) -> I = each(a, b, |a, b| a & b);
        or(a: I, b: I) -> I = each(a, b, |a, b| a | b);
        xor(a: I, b: I) -> I = each(a, b, |a, b| a ^ b);
        add_i(a: I, b: I) -> I = each(a, b, i32::wrapping_add);
        sub_i(a: I, b: I) -> I = each(a, b, i32::wrapping_sub);
        max_i(a: I, b: I) -> I = each(a, b, i32::max);
        mul_wide(a: I, b: I) -> (I, I) = {
            let products = each(a, b, |a, b| u64::from(a.cast_unsigned()) * u64::from(b.cast_unsigned()));
            (products.map(|product| (product >> 32) as i32), products.map(|product| product as i32))
        };
        shl(a: I, count: u32) -> I = a.map(|v| v.checked_shl(count).unwrap_or(0));
        shr(a: I, count: u32) -> I = a.map(|v| v.cast_unsigned().checked_shr(count).unwrap_or(0).cast_signed());
        sar(a: I, count: u32) -> I = a.map(|v| v >> count.min(31));
        reduce_max(a: I) -> u32 = a.into_iter().fold(0, i32::max).cast_unsigned();
        reduce_min_f(a: F) -> f32 = a.into_iter().fold(f32::INFINITY, least);
        reduce_max_f(a: F) -> f32 = a.into_iter().fold(f32::NEG_INFINITY, greatest);
        tree_sum(a: F) -> f32 = tree_sum(a);
        lt(a: F, b: F) -> M = each(a, b, |a, b| a < b);
        ge(a: F, b: F) -> M = each(a, b, |a, b| a >= b);
        eq(a: F, b: F) -> M = each(a, b, |a, b| a == b);
        unordered(a: F) -> M = a.map(f32::is_nan);
        gt_i(a: I, b: I) -> M = each(a, b, |a, b| a > b);
        any(m: M) -> bool = m.contains(&true);
        mask_bits(m: M) -> u32 = m.into_iter().rev().fold(0, |bits, m| bits << 1 | u32::from(m));
        select(m: M, a: F, b: F) -> F = std::array::from_fn(|i| if m[i] { a[i] } else { b[i] });
        select_i(m: M, a: I, b: I) -> I = std::array::from_fn(|i| if m[i] { a[i] } else { b[i] });
        lookup(table: F, index: I) -> F = index.map(|i| table[(i & 15) as usize]);
        zero_d() -> D = [0.0; LANES];
        accumulate(sum: D, v: F) -> D = each(sum, v, |sum, v| sum + f64::from(v));
        accumulate_squares(sum: D, v: F) -> D = each(sum, v, |sum, v| sum + f64::from(v) * f64::from(v));
        range_over(a: F, b: F, c: f64) -> F = each(a, b, |a, b| ((f64::from(a) - f64::from(b)) / c) as f32);
        to_array(sum: D) -> [f64; LANES] = sum;
        splat_d(v: f64) -> D = [v; LANES];
        add_exact_d(c: D, a: D, b: D) -> D = std::array::from_fn(|i| c[i] + a[i] * b[i]);
        take_d(c: D, a: D, b: D) -> D = std::array::from_fn(|i| c[i] - a[i] * b[i]);
    }

    #[inline(always)]
    unsafe fn load_d(p: *const f64) -> D {
        // SAFETY: as the caller promises.
        unsafe { p.cast::<D>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store_d(p: *mut f64, v: D) {
        // SAFETY: as the caller promises.
        unsafe { p.cast::<D>().write_unaligned(v) }
    }

    #[inline(always)]
    unsafe fn store_u8(p: *mut u8, v: I) {
        // SAFETY: as the caller promises.
        unsafe { p.cast::<[u8; LANES]>().write_unaligned(v.map(|v| v as u8)) }
    }
    #[inline(always)]
    unsafe fn stream_u8(p: *mut u8, v: I) {
        // SAFETY: as the caller promises.
        unsafe { Self::store_u8(p, v) }
    }
    #[inline(always)]
    unsafe fn store_u16(p: *mut u16, v: I) {
        // SAFETY: as the caller promises.
        unsafe { p.cast::<[u16; LANES]>().write_unaligned(v.map(|v| v as u16)) }
    }
    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> I {
        // SAFETY: as the caller promises.
        unsafe { p.cast::<[u8; LANES]>().read_unaligned().map(i32::from) }
    }
    #[inline(always)]
    unsafe fn load_u16(p: *const u16) -> I {
        // SAFETY: as the caller promises.
        unsafe { p.cast::<[u16; LANES]>().read_unaligned().map(i32::from) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> F {
        // SAFETY: as the caller promises.
        unsafe { p.cast::<[u16; LANES]>().read_unaligned().map(|v| half::f16::from_bits(v).to_f32()) }
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, v: F) {
        // SAFETY: as the caller promises.
        unsafe { p.cast::<[u16; LANES]>().write_unaligned(v.map(|v| half::f16::from_f32(v).to_bits())) }
    }
}
