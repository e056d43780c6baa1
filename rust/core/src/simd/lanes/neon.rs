//! NEON: four registers of 4 lanes.

use std::arch::aarch64::*;

use super::Lanes;
use crate::simd::{Job, Level};

/// Sixteen lanes in four 128-bit registers.
/// A value exists only where the processor has NEON, as every 64-bit Arm processor that systems run on has.
#[derive(Clone, Copy, Debug)]
pub struct Neon(());

impl Neon {
    /// The instructions, if the processor has them.
    #[inline]
    pub fn new() -> Option<Self> {
        Level::Neon.is_here().then_some(Self(()))
    }
}

/// # Safety
/// The processor must have NEON, as a value of [`Neon`] proves.
#[inline(never)] // a job that runs others stays apart from them
#[target_feature(enable = "neon")]
fn compiled<J: Job<Neon>>(lanes: Neon, job: J) -> J::Output {
    job.run(lanes)
}

type F = [float32x4_t; 4];
type I = [int32x4_t; 4];
type M = [uint32x4_t; 4];
type D = [float64x2_t; 8];

/// One function of registers on all quarters.
macro_rules! quarters {
    ($f:expr, $($a:expr),*) => { std::array::from_fn(|i| $f($($a[i]),*)) };
}

/// Operations that are one intrinsic on all quarters.
macro_rules! by_quarters {
    ($(fn $name:ident($($a:ident: $register:ty),*) -> $output:ty = $f:expr;)*) => {$(
        #[inline(always)]
        unsafe fn $name($($a: $register),*) -> $output {
            unsafe { quarters!($f, $($a),*) }
        }
    )*};
}

/// Widens four float16, given as their bits.
#[inline(always)]
fn widen(halves: uint16x4_t) -> float32x4_t {
    let wide: float32x4_t;
    // SAFETY: FCVTL belongs to every processor with NEON; it touches registers alone.
    unsafe {
        std::arch::asm!("fcvtl {wide:v}.4s, {halves:v}.4h", wide = lateout(vreg) wide, halves = in(vreg) halves,
            options(pure, nomem, nostack, preserves_flags));
    }
    wide
}

/// The bits of four float16, to nearest, ties to even.
#[inline(always)]
fn narrow(wide: float32x4_t) -> uint16x4_t {
    let halves: uint16x4_t;
    // SAFETY: FCVTN belongs to every processor with NEON; it touches registers alone.
    unsafe {
        std::arch::asm!("fcvtn {halves:v}.4h, {wide:v}.4s", halves = lateout(vreg) halves, wide = in(vreg) wide,
            options(pure, nomem, nostack, preserves_flags));
    }
    halves
}

/// Each quarter as two pairs of float64.
#[inline(always)]
fn widened(v: F) -> D {
    std::array::from_fn(|i| {
        let quarter = v[i / 2];
        // SAFETY: NEON, which the lanes prove.
        unsafe { if i % 2 == 0 { vcvt_f64_f32(vget_low_f32(quarter)) } else { vcvt_high_f64_f32(quarter) } }
    })
}

#[expect(clippy::undocumented_unsafe_blocks, reason = "every block is intrinsics under the contract of the trait")]
// SAFETY: `new` makes the only values.
unsafe impl Lanes for Neon {
    type F = F;
    type I = I;
    type M = M;
    type D = D;
    const VECTORS: usize = 8;
    const ONE_LOOKUP: bool = false;

    #[inline(always)]
    fn run<J: Job<Self>>(self, job: J) -> J::Output {
        unsafe { compiled(self, job) }
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> F {
        std::array::from_fn(|i| unsafe { vld1q_f32(p.add(4 * i)) })
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: F) {
        for (i, quarter) in v.into_iter().enumerate() {
            unsafe { vst1q_f32(p.add(4 * i), quarter) };
        }
    }
    #[inline(always)]
    unsafe fn stream(p: *mut f32, v: F) {
        unsafe { Self::store(p, v) }
    }
    #[inline(always)]
    unsafe fn splat(v: f32) -> F {
        unsafe { [vdupq_n_f32(v); 4] }
    }
    #[inline(always)]
    unsafe fn splat_i(v: i32) -> I {
        unsafe { [vdupq_n_s32(v); 4] }
    }
    by_quarters! {
        fn bits(v: F) -> I = vreinterpretq_s32_f32;
        fn from_bits(v: I) -> F = vreinterpretq_f32_s32;
        fn add(a: F, b: F) -> F = vaddq_f32;
        fn sub(a: F, b: F) -> F = vsubq_f32;
        fn mul(a: F, b: F) -> F = vmulq_f32;
        fn div(a: F, b: F) -> F = vdivq_f32;
        fn sqrt(v: F) -> F = vsqrtq_f32;
        // FMIN and FMAX return NaN where one operand is NaN, and tell zeros apart.
        fn min(a: F, b: F) -> F = |a, b| vbslq_f32(vcltq_f32(a, b), a, b);
        fn max(a: F, b: F) -> F = |a, b| vbslq_f32(vcgtq_f32(a, b), a, b);
        fn fma(a: F, b: F, c: F) -> F = |a, b, c| vfmaq_f32(c, a, b);
        fn fnmadd(a: F, b: F, c: F) -> F = |a, b, c| vfmsq_f32(c, a, b);
        fn round(v: F) -> F = vrndnq_f32;
        fn to_f(v: I) -> F = vcvtq_f32_s32;
        fn and(a: I, b: I) -> I = vandq_s32;
        fn or(a: I, b: I) -> I = vorrq_s32;
        fn xor(a: I, b: I) -> I = veorq_s32;
        fn add_i(a: I, b: I) -> I = vaddq_s32;
        fn sub_i(a: I, b: I) -> I = vsubq_s32;
        fn max_i(a: I, b: I) -> I = vmaxq_s32;
        fn lt(a: F, b: F) -> M = vcltq_f32;
        fn ge(a: F, b: F) -> M = vcgeq_f32;
        fn eq(a: F, b: F) -> M = vceqq_f32;
        fn unordered(a: F) -> M = |a| vmvnq_u32(vceqq_f32(a, a));
        fn gt_i(a: I, b: I) -> M = vcgtq_s32;
        fn select(m: M, a: F, b: F) -> F = vbslq_f32;
        fn select_i(m: M, a: I, b: I) -> I = vbslq_s32;
    }
    #[inline(always)]
    unsafe fn mul_wide(a: I, b: I) -> (I, I) {
        unsafe {
            let products: [[uint32x4_t; 2]; 4] = quarters!(
                |a, b| {
                    let (a, b) = (vreinterpretq_u32_s32(a), vreinterpretq_u32_s32(b));
                    let low = vmull_u32(vget_low_u32(a), vget_low_u32(b));
                    [vreinterpretq_u32_u64(low), vreinterpretq_u32_u64(vmull_high_u32(a, b))]
                },
                a,
                b
            );
            let upper = products.map(|[low, high]| vreinterpretq_s32_u32(vuzp2q_u32(low, high)));
            (upper, products.map(|[low, high]| vreinterpretq_s32_u32(vuzp1q_u32(low, high))))
        }
    }
    #[inline(always)]
    unsafe fn to_i(v: F) -> I {
        // FCVTNS saturates; what no integer holds becomes the least one, as on x86.
        unsafe {
            let (low, high) = (vdupq_n_f32(-2_147_483_648.0), vdupq_n_f32(2_147_483_648.0));
            let convert = |v| {
                let fits = vandq_u32(vcgeq_f32(v, low), vcltq_f32(v, high));
                vbslq_s32(fits, vcvtnq_s32_f32(v), vdupq_n_s32(i32::MIN))
            };
            quarters!(convert, v)
        }
    }
    #[inline(always)]
    unsafe fn shl(a: I, count: u32) -> I {
        // The count is the low byte of a lane: above 31 bits are gone, up to 127 it is no count to the right.
        unsafe {
            let count = vdupq_n_s32(count.min(32) as i32);
            quarters!(|a| vshlq_s32(a, count), a)
        }
    }
    #[inline(always)]
    unsafe fn shr(a: I, count: u32) -> I {
        unsafe {
            let count = vdupq_n_s32(-(count.min(32) as i32));
            quarters!(|a| vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(a), count)), a)
        }
    }
    #[inline(always)]
    unsafe fn sar(a: I, count: u32) -> I {
        unsafe {
            let count = vdupq_n_s32(-(count.min(31) as i32));
            quarters!(|a| vshlq_s32(a, count), a)
        }
    }
    #[inline(always)]
    unsafe fn reduce_max(a: I) -> u32 {
        unsafe { vmaxvq_s32(vmaxq_s32(vmaxq_s32(a[0], a[1]), vmaxq_s32(a[2], a[3]))) as u32 }
    }
    #[inline(always)]
    unsafe fn reduce_min_f(a: F) -> f32 {
        let least = |a: f32, b: f32| if a < b { a } else { b };
        unsafe {
            let [a, b] = [0, 1].map(|i| vbslq_f32(vcltq_f32(a[i], a[i + 2]), a[i], a[i + 2]));
            let m = vbslq_f32(vcltq_f32(a, b), a, b);
            least(
                least(vgetq_lane_f32::<0>(m), vgetq_lane_f32::<2>(m)),
                least(vgetq_lane_f32::<1>(m), vgetq_lane_f32::<3>(m)),
            )
        }
    }
    #[inline(always)]
    unsafe fn reduce_max_f(a: F) -> f32 {
        let greatest = |a: f32, b: f32| if a > b { a } else { b };
        unsafe {
            let [a, b] = [0, 1].map(|i| vbslq_f32(vcgtq_f32(a[i], a[i + 2]), a[i], a[i + 2]));
            let m = vbslq_f32(vcgtq_f32(a, b), a, b);
            greatest(
                greatest(vgetq_lane_f32::<0>(m), vgetq_lane_f32::<2>(m)),
                greatest(vgetq_lane_f32::<1>(m), vgetq_lane_f32::<3>(m)),
            )
        }
    }
    #[inline(always)]
    unsafe fn tree_sum(a: F) -> f32 {
        unsafe {
            let m = vaddq_f32(vaddq_f32(a[0], a[2]), vaddq_f32(a[1], a[3]));
            let m = vadd_f32(vget_low_f32(m), vget_high_f32(m));
            vget_lane_f32::<0>(m) + vget_lane_f32::<1>(m)
        }
    }
    #[inline(always)]
    unsafe fn any(m: M) -> bool {
        unsafe { vmaxvq_u32(vorrq_u32(vorrq_u32(m[0], m[1]), vorrq_u32(m[2], m[3]))) != 0 }
    }
    #[inline(always)]
    unsafe fn mask_bits(m: M) -> u32 {
        const LANES_OF_QUARTER: [u32; 4] = [1, 2, 4, 8];
        unsafe {
            let weights = vld1q_u32(LANES_OF_QUARTER.as_ptr());
            let bits = m.map(|m| vaddvq_u32(vandq_u32(m, weights)));
            bits[0] | bits[1] << 4 | bits[2] << 8 | bits[3] << 12
        }
    }
    #[inline(always)]
    unsafe fn lookup(table: F, index: I) -> F {
        unsafe {
            let bytes = uint8x16x4_t(
                vreinterpretq_u8_f32(table[0]),
                vreinterpretq_u8_f32(table[1]),
                vreinterpretq_u8_f32(table[2]),
                vreinterpretq_u8_f32(table[3]),
            );
            // The four bytes of an entry: four times its index, and 0 to 3 above it.
            let look = |index| {
                let entry = vandq_s32(index, vdupq_n_s32(15));
                let places = vmlaq_s32(vdupq_n_s32(0x0302_0100), entry, vdupq_n_s32(0x0404_0404));
                vreinterpretq_f32_u8(vqtbl4q_u8(bytes, vreinterpretq_u8_s32(places)))
            };
            quarters!(look, index)
        }
    }
    #[inline(always)]
    unsafe fn store_u8(p: *mut u8, v: I) {
        unsafe {
            let [a, b, c, d] = v.map(|quarter| vmovn_u32(vreinterpretq_u32_s32(quarter)));
            let (low, high) = (vmovn_u16(vcombine_u16(a, b)), vmovn_u16(vcombine_u16(c, d)));
            vst1q_u8(p, vcombine_u8(low, high));
        }
    }
    #[inline(always)]
    unsafe fn stream_u8(p: *mut u8, v: I) {
        unsafe { Self::store_u8(p, v) }
    }
    #[inline(always)]
    unsafe fn store_u16(p: *mut u16, v: I) {
        for (i, quarter) in v.into_iter().enumerate() {
            unsafe { vst1_u16(p.add(4 * i), vmovn_u32(vreinterpretq_u32_s32(quarter))) };
        }
    }
    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> I {
        unsafe {
            let bytes = vld1q_u8(p);
            let (low, high) = (vmovl_u8(vget_low_u8(bytes)), vmovl_u8(vget_high_u8(bytes)));
            [vget_low_u16(low), vget_high_u16(low), vget_low_u16(high), vget_high_u16(high)]
                .map(|words| vreinterpretq_s32_u32(vmovl_u16(words)))
        }
    }
    #[inline(always)]
    unsafe fn load_u16(p: *const u16) -> I {
        std::array::from_fn(|i| unsafe { vreinterpretq_s32_u32(vmovl_u16(vld1_u16(p.add(4 * i)))) })
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> F {
        std::array::from_fn(|i| unsafe { widen(vld1_u16(p.add(4 * i))) })
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, v: F) {
        for (i, quarter) in v.into_iter().enumerate() {
            unsafe { vst1_u16(p.add(4 * i), narrow(quarter)) };
        }
    }
    #[inline(always)]
    unsafe fn zero_d() -> D {
        unsafe { [vdupq_n_f64(0.0); 8] }
    }
    #[inline(always)]
    unsafe fn accumulate(sum: D, v: F) -> D {
        unsafe { quarters!(vaddq_f64, sum, widened(v)) }
    }
    #[inline(always)]
    unsafe fn accumulate_squares(sum: D, v: F) -> D {
        // The square of a float32 is exact, so a fused addition rounds no differently.
        let wide = widened(v);
        unsafe { quarters!(vfmaq_f64, sum, wide, wide) }
    }
    #[inline(always)]
    unsafe fn range_over(a: F, b: F, c: f64) -> F {
        let (a, b) = (widened(a), widened(b));
        unsafe {
            let pair = |i: usize| vcvt_f32_f64(vdivq_f64(vsubq_f64(a[i], b[i]), vdupq_n_f64(c)));
            std::array::from_fn(|i| vcombine_f32(pair(2 * i), pair(2 * i + 1)))
        }
    }
    #[inline(always)]
    unsafe fn to_array(sum: D) -> [f64; 16] {
        let mut lanes = [0.0; 16];
        unsafe { Self::store_d(lanes.as_mut_ptr(), sum) };
        lanes
    }
    #[inline(always)]
    unsafe fn splat_d(v: f64) -> D {
        unsafe { [vdupq_n_f64(v); 8] }
    }
    #[inline(always)]
    unsafe fn add_exact_d(c: D, a: D, b: D) -> D {
        unsafe { quarters!(vfmaq_f64, c, a, b) }
    }
    #[inline(always)]
    unsafe fn take_d(c: D, a: D, b: D) -> D {
        unsafe { quarters!(|c, a, b| vsubq_f64(c, vmulq_f64(a, b)), c, a, b) }
    }
    #[inline(always)]
    unsafe fn load_d(p: *const f64) -> D {
        std::array::from_fn(|i| unsafe { vld1q_f64(p.add(2 * i)) })
    }
    #[inline(always)]
    unsafe fn store_d(p: *mut f64, v: D) {
        for (i, pair) in v.into_iter().enumerate() {
            unsafe { vst1q_f64(p.add(2 * i), pair) };
        }
    }
}
