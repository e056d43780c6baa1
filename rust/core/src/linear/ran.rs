//! Which kernels have run, for the law that the named kernel is the one: in tests, each kernel notes its name where it begins.

#[cfg(test)]
use std::cell::RefCell;

#[cfg(test)]
thread_local! {
    static NAMES: RefCell<Vec<&'static str>> = RefCell::default();
}

/// The name of what takes over.
pub(super) const FALLBACK: &str = "fallback";

/// Notes that a kernel runs, on the thread that called for the product.
#[cfg(test)]
pub(super) fn note(name: &'static str) {
    NAMES.with_borrow_mut(|names| names.push(name));
}

/// Does nothing.
#[cfg(not(test))]
#[inline]
pub(super) const fn note(_name: &'static str) {}

/// The kernels that this thread's products ran since the last call.
#[cfg(test)]
pub(super) fn take() -> Vec<&'static str> {
    NAMES.take()
}
