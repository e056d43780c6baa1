//! Permission to use AMX tiles: Linux is asked once, for the whole process.

#[cfg(target_os = "linux")]
use std::arch::asm;
use std::arch::x86_64::{__cpuid_count, _xgetbv};
use std::sync::LazyLock;

/// True where the processor has AMX for int8 and bfloat16, and AVX-512 for bfloat16, and the system saves its registers. Linux is asked for them at
/// the first call, for the whole process.
pub fn allowed() -> bool {
    static ALLOWED: LazyLock<bool> = LazyLock::new(ask);
    *ALLOWED
}

fn ask() -> bool {
    // This is found only where the system uses it, too: without OSXSAVE, reading the register would end the process.
    let vectors = is_x86_feature_detected!("avx512dq") && is_x86_feature_detected!("avx512bf16");
    if !is_x86_feature_detected!("xsave") || !vectors {
        return false;
    }
    let (bfloat16, tiles, int8) = (1 << 22, 1 << 24, 1 << 25);
    let wanted = bfloat16 | tiles | int8;
    __cpuid_count(7, 0).edx & wanted == wanted && saved_by_system() && permitted()
}

/// The register that says which state the system saves.
///
/// # Safety
/// The processor must have XSAVE, and the system use it.
#[target_feature(enable = "xsave")]
fn control_register() -> u64 {
    // SAFETY: register 0 exists wherever the instruction does.
    unsafe { _xgetbv(0) }
}

fn saved_by_system() -> bool {
    let tiles = 1 << 17 | 1 << 18;
    // SAFETY: `ask` has found the instruction.
    unsafe { control_register() & tiles == tiles }
}

/// Asks Linux for the tiles, for the whole process; it refuses where it does not know them.
#[cfg(target_os = "linux")]
fn permitted() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const REQUEST_PERMISSION: i64 = 0x1023;
    const TILE_DATA: i64 = 18;
    let result: i64;
    // SAFETY: a system call with integer arguments that touches no memory of ours; it clobbers rcx and r11.
    unsafe {
        asm!("syscall", inlateout("rax") ARCH_PRCTL => result, in("rdi") REQUEST_PERMISSION, in("rsi") TILE_DATA,
            out("rcx") _, out("r11") _, options(nostack));
    }
    result == 0
}

#[cfg(not(target_os = "linux"))]
fn permitted() -> bool {
    false
}
