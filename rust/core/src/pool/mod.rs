//! Threads: fork and join over indices, on workers of our own or on the OpenMP threads of the program that has some.
//!
//! Work runs in the standard floating-point state.
//! The calling thread takes part; results do not depend on the number of threads, since indices mean the same work on
//! any of them. Work may call any function here again: threads that are free help it, too.

mod job;
mod openmp;
mod team;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

pub use self::openmp::use_openmp;
use crate::error::{Error, Result, SettingError};
use crate::float_state::FloatState;

/// Work below this many bytes stays on the calling thread.
pub const SERIAL_BYTES: usize = 64 * 1024;
/// Most threads that can be asked for.
pub const MAX_THREADS: usize = 256;

static REQUESTED: AtomicUsize = AtomicUsize::new(0);

/// Sets the number of threads of later calls; 0 returns to the default (all available cores).
///
/// # Errors
/// [`Error::Setting`] above [`MAX_THREADS`].
pub fn set_num_threads(threads: usize) -> Result<()> {
    if threads > MAX_THREADS {
        return Err(SettingError::Threads { threads, limit: MAX_THREADS }.into());
    }
    REQUESTED.store(threads, Ordering::Relaxed);
    Ok(())
}

/// Number of threads that the next call may use, the calling one included.
pub fn num_threads() -> usize {
    match REQUESTED.load(Ordering::Relaxed) {
        0 => cores().min(MAX_THREADS),
        threads => threads,
    }
}

/// The cores that this process may use, looked up once a second: reading the quota of a container takes 10 us.
fn cores() -> usize {
    /// The second of the last look above the number found.
    static FOUND: AtomicU64 = AtomicU64::new(0);
    let second = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let found = FOUND.load(Ordering::Relaxed);
    if found >> 16 == second && found & 0xffff > 0 {
        return (found & 0xffff) as usize;
    }
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get().min(0xffff));
    FOUND.store(second << 16 | cores as u64, Ordering::Relaxed);
    cores
}

thread_local! {
    static ALONE: Cell<bool> = const { Cell::new(false) };
}

/// Calls `work`, whose products and codecs stay on this thread: the caller has shared out larger pieces.
pub fn alone<T>(work: impl FnOnce() -> T) -> T {
    struct Before(bool);
    impl Drop for Before {
        fn drop(&mut self) {
            ALONE.set(self.0);
        }
    }
    let _before = Before(ALONE.replace(true));
    work()
}

/// The threads for work on so many bytes: 1 for work that is not worth several.
fn threads_for(bytes: usize) -> usize {
    if bytes > SERIAL_BYTES && !ALONE.get() { num_threads() } else { 1 }
}

/// Calls `work` for every index below `count`, on several threads if there are `bytes` enough to be worth it.
///
/// # Errors
/// [`Error::Setting`] if threads cannot be started.
pub(crate) fn for_each(count: usize, bytes: usize, work: impl Fn(usize) + Sync) -> Result<()> {
    let on = |i| {
        work(i);
        true
    };
    team::run(threads_for(bytes), count, &on)
}

/// Like [`for_each`], for work that may fail: one of the errors is the answer, and work not begun may be left undone.
///
/// # Errors
/// [`Error::Setting`] if threads cannot be started, and those of the work.
pub(crate) fn try_for_each(count: usize, bytes: usize, work: impl Fn(usize) -> Result<()> + Sync) -> Result<()> {
    let failure = Mutex::new(Ok(()));
    let on = |i| {
        let done = work(i);
        let fine = done.is_ok();
        if !fine {
            *failure.lock().unwrap_or_else(PoisonError::into_inner) = done;
        }
        fine
    };
    team::run(threads_for(bytes), count, &on)?;
    failure.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Calls `work` for every piece of `each` elements, with its number, like [`for_each`].
///
/// # Errors
/// [`Error::Setting`] if threads cannot be started.
pub(crate) fn for_each_chunk<T: Send>(all: &mut [T], each: usize, work: impl Fn(usize, &mut [T]) + Sync) -> Result<()> {
    let bytes = size_of_val(all);
    consume(all.chunks_mut(each.max(1)).enumerate().collect(), bytes, |(i, piece): (usize, &mut [T])| work(i, piece))
}

/// Like [`for_each`], collecting one answer for every index, in order.
///
/// # Errors
/// [`Error::Setting`] if threads cannot be started, [`Error::OutOfMemory`] where the answers find no room.
pub fn map<T: Send>(count: usize, bytes: usize, work: impl Fn(usize) -> T + Sync) -> Result<Vec<T>> {
    collect(threads_for(bytes), count, work)
}

/// Gives every item to `work`, on several threads if there are `bytes` enough to be worth it.
///
/// # Errors
/// [`Error::Setting`] if threads cannot be started.
pub fn consume<T: Send>(items: Vec<T>, bytes: usize, work: impl Fn(T) + Sync) -> Result<()> {
    let threads = threads_for(bytes);
    if threads == 1 {
        let _state = FloatState::standard();
        items.into_iter().for_each(work);
        return Ok(());
    }
    let items: Vec<_> = items.into_iter().map(|item| Mutex::new(Some(item))).collect();
    let on = |i: usize| {
        let item = items[i].lock().unwrap_or_else(PoisonError::into_inner).take();
        item.into_iter().for_each(&work);
        true
    };
    team::run(threads, items.len(), &on)
}

/// Calls `work` for every index below `count` on `threads` threads, 0 for [`num_threads`]; the answers are in order.
///
/// Nothing is said of the order in which threads take indices. In a child of `fork` the caller works alone.
///
/// # Errors
/// [`Error::Setting`] above [`MAX_THREADS`], or if threads cannot be started.
pub fn map_on<T: Send>(threads: usize, count: usize, work: impl Fn(usize) -> T + Sync) -> Result<Vec<T>> {
    if threads > MAX_THREADS {
        return Err(SettingError::Threads { threads, limit: MAX_THREADS }.into());
    }
    collect(if threads == 0 { num_threads() } else { threads }, count, work)
}

/// Where threads put their answers.
struct Answers<T>(*mut MaybeUninit<T>);

// SAFETY: threads write answers of their own indices through it, which may be sent.
unsafe impl<T: Send> Sync for Answers<T> {}

impl<T> Answers<T> {
    /// # Safety
    /// `i` must lie inside the buffer, and nobody else may use its place meanwhile.
    unsafe fn put(&self, i: usize, answer: T) {
        // SAFETY: as the caller promises.
        unsafe { (*self.0.add(i)).write(answer) };
    }
}

fn collect<T: Send>(threads: usize, count: usize, work: impl Fn(usize) -> T + Sync) -> Result<Vec<T>> {
    let mut answers = Vec::new();
    answers.try_reserve_exact(count).map_err(|_| Error::OutOfMemory(count.saturating_mul(size_of::<T>())))?;
    let places = Answers(answers.spare_capacity_mut().as_mut_ptr());
    let on = |i| {
        let answer = work(i);
        // SAFETY: `i` is below `count`, for which there is room, and `run` gives every index out once.
        unsafe { places.put(i, answer) };
        true
    };
    team::run(threads, count, &on)?;
    // SAFETY: all work returned true, so `run` has called it for every index. Where it panics, this is not reached, and
    // the answers that are there are not dropped.
    unsafe { answers.set_len(count) };
    Ok(answers)
}
