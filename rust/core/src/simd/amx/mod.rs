//! AMX: tiles of 16 rows of 64 bytes, whether this process may use them, and their products.
//!
//! Rust has no stable intrinsics for it, so the products are assembly: each is one block that leaves no tile alive. The
//! configuration of the tiles stays, and a [`Session`] holds it.

mod permission;
pub(crate) mod products;

use std::arch::asm;
use std::marker::PhantomData;

use super::{Level, Line};

pub use permission::allowed;

/// Rows of a tile.
pub const ROWS: usize = 16;
/// Bytes of a row of a whole tile.
pub const LINE: usize = 64;

/// True where `level` is AVX-512, the processor has AMX for int8 and bfloat16 and the byte permutations that feed it,
/// and the system saves its registers.
pub(crate) fn available(level: Level) -> bool {
    level == Level::Avx512 && is_x86_feature_detected!("avx512vbmi") && allowed()
}

/// Holds the tiles of its thread configured, all whole, while it lives.
///
/// Without one the instructions end the process (SIGILL); with one they never read or write more than whole tiles.
#[derive(Debug)]
pub struct Session(PhantomData<*const ()>); // no other thread's

impl Session {
    /// Configures the tiles.
    ///
    /// # Safety
    /// [`allowed`] must have said yes.
    pub unsafe fn new() -> Self {
        let mut configuration = Line::<u8, 64>::default();
        configuration.0[0] = 1; // palette
        for tile in 0..8 {
            configuration.0[16 + 2 * tile] = LINE as u8;
            configuration.0[48 + tile] = ROWS as u8;
        }
        // SAFETY: the instruction exists, as the caller promises; the configuration is a valid one of 64 bytes.
        unsafe { asm!("ldtilecfg [{}]", in(reg) configuration.0.as_ptr(), options(nostack, readonly)) };
        Self(PhantomData)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // SAFETY: a session exists only where the instruction does.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}
