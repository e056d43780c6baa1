//! 16-bit floats to float32 and back.

use crate::codec::reference;
use crate::simd::Lanes;

/// Widens 16-bit floats.
///
/// # Safety
/// The processor must have the features of `V`; `from` must be readable for `to.len()` values.
#[inline(always)]
pub(super) unsafe fn widen<V: Lanes>(from: *const u16, float16: bool, to: &mut [f32]) {
    let whole = to.len() / 16 * 16;
    // SAFETY: as the caller promises.
    unsafe {
        for i in (0..whole).step_by(16) {
            let at = from.add(i);
            let v = if float16 { V::load_f16(at) } else { V::from_bits(V::shl(V::load_u16(at), 16)) };
            V::store(to.as_mut_ptr().add(i), v);
        }
        reference::widen(from.add(whole), float16, &mut to[whole..]);
    }
}

/// Narrows to 16-bit floats, saturating.
///
/// # Safety
/// The processor must have the features of `V`; `to` must be writable for `from.len()` values.
#[inline(always)]
pub(super) unsafe fn narrow<V: Lanes>(from: &[f32], float16: bool, to: *mut u16) {
    let whole = from.len() / 16 * 16;
    // SAFETY: as the caller promises.
    unsafe {
        let finite = V::splat_i(0x7f80_0000);
        for i in (0..whole).step_by(16) {
            let v = V::load(from.as_ptr().add(i));
            let magnitude = V::abs(v);
            // Finite values stop at the largest number of the type; infinities and NaN pass.
            let passes = V::gt_i(V::bits(magnitude), V::sub_i(finite, V::splat_i(1)));
            if float16 {
                let clipped = V::with_sign(V::min(V::splat(65_504.0), magnitude), v);
                V::store_f16(to.add(i), V::select(passes, v, clipped));
            } else {
                let bits =
                    V::bits(V::select(passes, magnitude, V::min(V::splat(f32::from_bits(0x7f7f_0000)), magnitude)));
                let odd = V::and(V::shr(bits, 16), V::splat_i(1));
                let rounded = V::shr(V::add_i(bits, V::add_i(odd, V::splat_i(0x7fff))), 16);
                // A NaN must not round up into the sign; quieten it instead.
                let nan = V::or(V::shr(V::bits(magnitude), 16), V::splat_i(0x40));
                let magnitude = V::select_i(V::unordered(v), nan, rounded);
                V::store_u16(to.add(i), V::or(magnitude, V::shl(V::shr(V::bits(v), 31), 15)));
            }
        }
        reference::narrow(&from[whole..], float16, to.add(whole));
    }
}
