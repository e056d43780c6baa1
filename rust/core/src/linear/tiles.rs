//! AMX: tiles of at most 16 rows of 64 bytes, and the product of two of int8.
//!
//! Rust has no stable intrinsics for it, so the product is assembly: one block that leaves no tile alive. What stays is
//! the configuration of the tiles, which a [`Session`] holds.

use std::arch::asm;
use std::arch::x86_64::{__cpuid_count, _xgetbv};
use std::sync::LazyLock;

use crate::level::Level;

/// Rows of a tile of weights.
pub(super) const ROWS: usize = 16;
/// Bytes of a row of a whole tile.
pub(super) const LINE: usize = 64;

/// 64 bytes that begin a cache line.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct Line<T, const N: usize>(pub(super) [T; N]);

impl<T: Copy + Default, const N: usize> Default for Line<T, N> {
    fn default() -> Self {
        Self([T::default(); N])
    }
}

/// True where `level` is AVX-512, the processor has AMX for int8 and the byte permutations that feed it, and the system
/// saves its registers.
pub(super) fn available(level: Level) -> bool {
    static ALLOWED: LazyLock<bool> = LazyLock::new(allowed);
    level == Level::Avx512 && *ALLOWED
}

fn allowed() -> bool {
    if !is_x86_feature_detected!("xsave") || !is_x86_feature_detected!("avx512vbmi") {
        return false;
    }
    let (tiles, int8) = (1 << 24, 1 << 25);
    __cpuid_count(7, 0).edx & (tiles | int8) == tiles | int8 && saved_by_system() && permitted()
}

#[target_feature(enable = "xsave")]
fn control_register() -> u64 {
    // SAFETY: register 0 exists wherever the instruction does.
    unsafe { _xgetbv(0) }
}

fn saved_by_system() -> bool {
    let tiles = 1 << 17 | 1 << 18;
    // SAFETY: the caller has found the instruction.
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

/// Holds the tiles of this thread configured while it lives: sums of 16 rows of 16 int32, and factors of `depth` bytes.
#[derive(Debug)]
pub(super) struct Session(());

/// Where a pair of factors lies, in bytes from the bases that [`Session::multiply`] is given.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Pair {
    /// 16 rows of `depth` weights.
    pub(super) weights: isize,
    /// `depth / 4` rows of 16 columns of 4 inputs.
    pub(super) inputs: isize,
}

impl Session {
    /// Configures the tiles for products of `depth` columns: a multiple of 4, at most 64.
    ///
    /// # Safety
    /// [`available`] must have said yes.
    pub(super) unsafe fn new(depth: usize) -> Self {
        assert!(depth.is_multiple_of(4) && (4..=LINE).contains(&depth));
        let mut configuration = Line::<u8, 64>::default();
        configuration.0[0] = 1; // palette
        for (tile, bytes, rows) in [(0, LINE, ROWS), (1, depth, ROWS), (2, LINE, depth / 4)] {
            configuration.0[16 + 2 * tile] = bytes as u8;
            configuration.0[48 + tile] = rows as u8;
        }
        // SAFETY: the instruction exists, as the caller promises; the configuration is a valid one of 64 bytes.
        unsafe { asm!("ldtilecfg [{}]", in(reg) configuration.0.as_ptr(), options(nostack, readonly)) };
        Self(())
    }

    /// Writes the sums over `pairs` of the products of int8: 16 rows of weights times 16 columns of inputs.
    ///
    /// # Safety
    /// Rows of weights lie `stride` bytes apart, those of inputs 64; all that the pairs name must be readable.
    #[inline(always)]
    pub(super) unsafe fn multiply(
        &self,
        pairs: &[Pair],
        weights: *const u8,
        stride: usize,
        inputs: *const u8,
        sums: &mut [Line<i32, 16>; ROWS],
    ) {
        debug_assert!(!pairs.is_empty());
        // SAFETY: as the caller promises; a session is alive, and no tile outlives the block.
        unsafe {
            asm!(
                "tilezero tmm0",
                "2:",
                "mov {x}, [{list}]",
                "mov {y}, [{list} + 8]",
                "add {x}, {a}",
                "add {y}, {b}",
                "tileloadd tmm1, [{x} + {stride}]",
                "tileloadd tmm2, [{y} + {line}]",
                "tdpbssd tmm0, tmm1, tmm2",
                "add {list}, 16",
                "dec {n}",
                "jnz 2b",
                "tilestored [{c} + {line}], tmm0",
                x = out(reg) _, y = out(reg) _,
                list = inout(reg) pairs.as_ptr() => _, n = inout(reg) pairs.len() => _,
                a = in(reg) weights, b = in(reg) inputs, c = in(reg) sums.as_mut_ptr(),
                stride = in(reg) stride, line = in(reg) LINE,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, options(nostack)
            );
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // SAFETY: a session exists only where the instruction does.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}

const _: () = assert!(size_of::<Pair>() == 16 && size_of::<Line<i32, 16>>() == LINE);
