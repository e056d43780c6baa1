//! The standard floating-point state, set for the time of a call and restored after it.

/// Holds the standard floating-point state (round to nearest, no flushing of subnormals) while it lives, then gives the
/// thread its own back.
///
/// A caller may have switched on flush-to-zero (`torch.set_flush_denormal`) or another rounding (`fesetround`), and new
/// threads inherit it. Every entry of this crate holds one, and so does every piece of work on another thread.
#[derive(Debug)]
#[must_use = "the state lasts as long as this value"]
pub struct FloatState(#[cfg(target_arch = "x86_64")] u32);

#[cfg(target_arch = "x86_64")]
mod mxcsr {
    //! Rust's own intrinsics for this register are deprecated; the assembly they point to is two instructions.
    pub(super) const STANDARD: u32 = 0x1f80;
    pub(super) fn get() -> u32 {
        let mut state = 0u32;
        // SAFETY: stores the 32-bit register to a valid location.
        unsafe { std::arch::asm!("stmxcsr [{}]", in(reg) &raw mut state, options(nostack, preserves_flags)) };
        state
    }
    pub(super) fn set(state: u32) {
        // SAFETY: every caller loads a value that sets no reserved bit: the standard one, one read by `get`, or a test's.
        unsafe { std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const state, options(nostack, preserves_flags)) };
    }
}

impl FloatState {
    /// Sets the standard state where the thread has another.
    #[cfg(target_arch = "x86_64")]
    pub fn standard() -> Self {
        let state = mxcsr::get();
        // The low six bits are sticky exception flags, which change nothing.
        if state & !0x3f != mxcsr::STANDARD {
            mxcsr::set(mxcsr::STANDARD);
        }
        Self(state)
    }
    /// Sets the standard state where the thread has another.
    #[cfg(not(target_arch = "x86_64"))]
    pub fn standard() -> Self {
        Self()
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
impl FloatState {
    /// Runs `work` while results and operands below the smallest normal number count as zeros.
    pub(crate) fn flushing<T>(work: impl FnOnce() -> T) -> T {
        let state = mxcsr::get();
        mxcsr::set(mxcsr::STANDARD | 0x8040);
        let done = work();
        mxcsr::set(state);
        done
    }
}

impl Drop for FloatState {
    fn drop(&mut self) {
        #[cfg(target_arch = "x86_64")]
        if self.0 & !0x3f != mxcsr::STANDARD {
            mxcsr::set(self.0);
        }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_standard_while_it_lives_and_the_callers_afterwards() {
        // Flush to zero, subnormal inputs as zeros, rounding up, rounding to zero.
        for other in [0x8000, 0x40, 0x4000, 0x6000, 0x8040 | 0x2000] {
            mxcsr::set(mxcsr::STANDARD | other);
            {
                let _state = FloatState::standard();
                assert_eq!(mxcsr::get() & !0x3f, mxcsr::STANDARD);
            }
            assert_eq!(mxcsr::get() & !0x3f, mxcsr::STANDARD | other);
            mxcsr::set(mxcsr::STANDARD);
        }
    }
}
