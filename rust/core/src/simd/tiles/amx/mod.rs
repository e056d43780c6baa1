//! AMX: whether this process may use its tiles, and their products.
//!
//! Rust has no stable intrinsics for it, so the products are assembly: each is one block that leaves no tile alive. The
//! configuration of the tiles stays, and a [`Session`] holds it.

pub(crate) mod groups;
mod permission;
mod products;
pub(crate) mod rows;

use std::arch::asm;
use std::marker::PhantomData;

use crate::simd::Line;

pub use super::{LINE, ROWS};
pub use permission::allowed;

/// Holds the tiles of its thread configured while it lives, all whole unless a [`rows::RowSession`] or a
/// [`groups::GroupSession`] has it.
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
        // SAFETY: as the caller promises.
        unsafe { Self::of([(ROWS, LINE); 8]) }
    }

    /// Configures tiles of so many rows of so many bytes each, at most [`ROWS`] and [`LINE`].
    ///
    /// # Safety
    /// As for [`Session::new`].
    unsafe fn of(sizes: [(usize, usize); 8]) -> Self {
        let mut configuration = Line::<u8, 64>::default();
        configuration.0[0] = 1; // palette
        for (tile, (rows, bytes)) in sizes.into_iter().enumerate() {
            configuration.0[16 + 2 * tile] = bytes as u8;
            configuration.0[48 + tile] = rows as u8;
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
