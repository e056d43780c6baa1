//! Huge pages for large buffers: the first write to memory costs a page fault for each page, 4 KiB or 2 MiB, and reading it
//! at the speed of memory costs a look-up of each.

use std::alloc::{self, Layout};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::error::{Error, Result};

/// Bytes of a huge page, to which the kernel aligns them.
const PAGE: usize = 2 << 20;

/// Asks Linux to back the whole huge pages inside `bytes` at `address` with huge pages, before they are first written.
/// True where it agreed; elsewhere, and under `transparent_hugepage=never`, the memory stays as it is.
///
/// The memory's contents, size and rights do not change, whatever it is.
pub fn advise(address: usize, bytes: usize) -> bool {
    let Some(first) = address.checked_next_multiple_of(PAGE) else { return false };
    let end = address.saturating_add(bytes) / PAGE * PAGE;
    address != 0 && first < end && ask(first, end - first)
}

#[cfg(target_os = "linux")]
fn ask(address: usize, bytes: usize) -> bool {
    use std::ffi::{c_int, c_void};
    const MADV_HUGEPAGE: c_int = 14;
    unsafe extern "C" {
        fn madvise(address: *mut c_void, length: usize, advice: c_int) -> c_int;
    }
    // SAFETY: this advice changes no contents and no rights; addresses that are not mapped make it fail.
    unsafe { madvise(std::ptr::without_provenance_mut(address), bytes, MADV_HUGEPAGE) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn ask(_address: usize, _bytes: usize) -> bool {
    false
}

/// Bytes of a cache line, on which buffers begin.
const LINE: usize = 64;

/// Memory for buffers that lie one after the other, in huge pages that each alone might not fill. It is freed with the last
/// of them.
#[derive(Debug)]
pub struct Region {
    start: NonNull<u8>,
    layout: Layout,
    used: AtomicUsize,
}

// SAFETY: the memory belongs to the buffers, each of which has a part of its own.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Room for buffers of so many bytes; [`Self::needed`] tells those of a buffer.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn new(bytes: usize) -> Result<Arc<Self>> {
        let size = bytes.max(LINE);
        let layout = Layout::from_size_align(size, if size < PAGE { LINE } else { PAGE });
        let layout = layout.map_err(|_| Error::OutOfMemory(bytes))?;
        // SAFETY: the size is not 0.
        let start = NonNull::new(unsafe { alloc::alloc(layout) }).ok_or(Error::OutOfMemory(bytes))?;
        advise(start.as_ptr().addr(), size);
        Ok(Arc::new(Self { start, layout, used: AtomicUsize::new(0) }))
    }

    /// Bytes that a buffer takes of a region.
    pub const fn needed(bytes: usize) -> usize {
        bytes.saturating_add(LINE - 1) / LINE * LINE
    }

    /// A buffer of so many zeros; none where they find no room.
    pub fn take(self: &Arc<Self>, bytes: usize) -> Option<Buffer> {
        let end = |first: usize| first.checked_add(Self::needed(bytes)).filter(|end| *end <= self.layout.size());
        let first = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, end).ok()?;
        // SAFETY: the part lies inside the region, and is given out once.
        unsafe { self.start.add(first).write_bytes(0, bytes) };
        Some(Buffer { region: Arc::clone(self), first, bytes })
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout; no buffer is left.
        unsafe { alloc::dealloc(self.start.as_ptr(), self.layout) };
    }
}

/// Bytes in a [`Region`].
#[derive(Debug)]
pub struct Buffer {
    region: Arc<Region>,
    first: usize,
    bytes: usize,
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: initialized when it was taken; the part belongs to this buffer alone.
        unsafe { std::slice::from_raw_parts(self.region.start.add(self.first).as_ptr(), self.bytes) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.region.start.add(self.first).as_ptr(), self.bytes) }
    }
}

impl PartialEq for Buffer {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_of_a_region_are_apart_and_outlive_it() {
        for bytes in [0, 100, 3 * PAGE] {
            let region = Region::new(4 * LINE + Region::needed(bytes)).unwrap();
            let mut buffers: Vec<Buffer> =
                [1, bytes, 0, 130].into_iter().map(|bytes| region.take(bytes).unwrap()).collect();
            assert!(region.take(1).is_none() && region.take(usize::MAX).is_none());
            drop(region);
            for (i, buffer) in buffers.iter_mut().enumerate() {
                assert!(buffer.iter().all(|byte| *byte == 0) && buffer.as_ptr().addr().is_multiple_of(LINE));
                buffer.fill(i as u8 + 1);
            }
            for (i, buffer) in buffers.iter().enumerate() {
                assert!(buffer.iter().all(|byte| usize::from(*byte) == i + 1));
            }
        }
    }

    #[test]
    fn only_whole_pages_inside_the_memory_are_advised() {
        assert!(!advise(0, 64 << 20) && !advise(PAGE + 1, 2 * PAGE - 2) && !advise(usize::MAX - 5, 3));
        assert!(!advise(usize::MAX - PAGE, usize::MAX));
        let mut large: Vec<u8> = Vec::with_capacity(8 * PAGE);
        let before = large.as_ptr();
        advise(large.as_ptr() as usize, large.capacity());
        large.resize(8 * PAGE, 7);
        assert!(before == large.as_ptr() && large.iter().all(|&byte| byte == 7));
    }
}
