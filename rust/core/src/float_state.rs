//! The standard floating-point state, set for the time of a call and restored after it.

/// Holds the standard floating-point state (round to nearest, no flushing of subnormals) while it lives, then gives the
/// thread its own back.
///
/// A caller may have switched on flush-to-zero (`torch.set_flush_denormal`) or another rounding (`fesetround`), and new
/// threads inherit it. Every entry of this crate holds one, and so does every piece of work on another thread.
#[derive(Debug)]
#[must_use = "the state lasts as long as this value"]
pub struct FloatState(#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))] control::Bits);

/// MXCSR, the register of the floating-point state.
#[cfg(target_arch = "x86_64")]
mod control {
    pub(super) type Bits = u32;
    /// Round to nearest, all exceptions masked, nothing flushed.
    pub(super) const STANDARD: Bits = 0x1f80;
    /// Bits that change results: all but the sticky flags of exceptions.
    pub(super) const EFFECTIVE: Bits = !0x3f;
    /// Results and operands below the smallest normal number count as zeros.
    #[cfg(test)]
    pub(super) const FLUSHING: Bits = 0x8040;
    /// Other states: flush to zero, subnormal inputs as zeros, rounding up, rounding to zero.
    #[cfg(test)]
    pub(super) const OTHERS: [Bits; 5] = [0x8000, 0x40, 0x4000, 0x6000, 0x8040 | 0x2000];

    // Rust's own intrinsics for this register are deprecated; the assembly they point to is two instructions.
    pub(super) fn get() -> Bits {
        let mut state = 0u32;
        // SAFETY: stores the 32-bit register to a valid location.
        unsafe { std::arch::asm!("stmxcsr [{}]", in(reg) &raw mut state, options(nostack, preserves_flags)) };
        state
    }
    pub(super) fn set(state: Bits) {
        // SAFETY: every caller loads a value that sets no reserved bit: the standard one, one read by `get`, or a test's.
        unsafe { std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const state, options(nostack, preserves_flags)) };
    }
}

/// FPCR, the register of the floating-point state.
#[cfg(target_arch = "aarch64")]
mod control {
    pub(super) type Bits = u64;
    /// Round to nearest, no traps, nothing flushed, NaN kept, float16 of IEEE 754.
    pub(super) const STANDARD: Bits = 0;
    /// Bits that change results: flushing (also that of inputs and of float16), rounding, NaN and forms of float16.
    pub(super) const EFFECTIVE: Bits = 0x07c8_0003;
    /// Other states: flush to zero, flush float16, rounding up, rounding to zero, one NaN.
    #[cfg(test)]
    pub(super) const OTHERS: [Bits; 5] = [1 << 24, 1 << 19, 1 << 22, 3 << 22, 1 << 25];

    pub(super) fn get() -> Bits {
        let state: u64;
        // SAFETY: reads a register.
        unsafe { std::arch::asm!("mrs {}, fpcr", out(reg) state, options(nomem, nostack, preserves_flags)) };
        state
    }
    pub(super) fn set(state: Bits) {
        // SAFETY: every caller loads a value that sets no reserved bit: the standard one, one read by `get`, or a test's.
        unsafe { std::arch::asm!("msr fpcr, {}", in(reg) state, options(nomem, nostack, preserves_flags)) };
    }
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
impl FloatState {
    /// Sets the standard state where the thread has another.
    pub fn standard() -> Self {
        let state = control::get();
        if state & control::EFFECTIVE != control::STANDARD {
            control::set(control::STANDARD);
        }
        Self(state)
    }

    /// Runs `work` while results and operands below the smallest normal number count as zeros.
    #[cfg(all(test, target_arch = "x86_64"))]
    pub(crate) fn flushing<T>(work: impl FnOnce() -> T) -> T {
        let state = control::get();
        control::set(control::STANDARD | control::FLUSHING);
        let result = work();
        control::set(state);
        result
    }
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
impl Drop for FloatState {
    fn drop(&mut self) {
        if self.0 & control::EFFECTIVE != control::STANDARD {
            control::set(self.0);
        }
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
impl FloatState {
    /// The state of other architectures is left as it is.
    pub fn standard() -> Self {
        Self()
    }
}

#[cfg(all(test, any(target_arch = "x86_64", target_arch = "aarch64")))]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_standard_while_it_lives_and_the_callers_afterwards() {
        for other in control::OTHERS {
            control::set(control::STANDARD | other);
            let before = control::get() & control::EFFECTIVE;
            {
                let _state = FloatState::standard();
                assert_eq!(control::get() & control::EFFECTIVE, control::STANDARD);
            }
            assert_eq!(control::get() & control::EFFECTIVE, before);
            control::set(control::STANDARD);
        }
    }
}
