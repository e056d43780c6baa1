//! Huge pages for large buffers: the first write to memory costs a page fault for each page, 4 KiB or 2 MiB.

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

#[cfg(test)]
mod tests {
    use super::*;

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
