//! Threads: one rayon pool of our own, rebuilt after `fork`. Work runs in the standard floating-point state.

use std::cell::Cell;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use rayon::prelude::*;

use crate::error::{Error, Result, SettingError};
use crate::float_state::FloatState;

/// Work below this many bytes stays on the calling thread.
pub const SERIAL_BYTES: usize = 64 * 1024;
/// Most threads that can be asked for.
pub const MAX_THREADS: usize = 256;

struct Pool {
    process: u32,
    /// `None` for one thread: the caller works alone.
    rayon: Option<rayon::ThreadPool>,
}

// One pool for each size ever used, never freed. An atomic pointer takes no lock, so a child of `fork` finds none held.
static POOLS: [AtomicPtr<Pool>; MAX_THREADS + 1] = [const { AtomicPtr::new(std::ptr::null_mut()) }; MAX_THREADS + 1];
static REQUESTED: AtomicUsize = AtomicUsize::new(0);

/// Sets the number of worker threads of later calls; 0 returns to the default (all available cores).
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

/// Number of threads that the next call may use.
pub fn num_threads() -> usize {
    match REQUESTED.load(Ordering::Relaxed) {
        0 => std::thread::available_parallelism().map_or(1, |cores| cores.get().min(MAX_THREADS)),
        threads => threads,
    }
}

/// The pool for this process and thread count, which is 1 to [`MAX_THREADS`].
fn pool(threads: usize) -> Result<&'static Pool> {
    let process = std::process::id();
    let slot = &POOLS[threads];
    // SAFETY: the pointer is null or comes from `Box::into_raw` below and is never freed.
    let found = unsafe { slot.load(Ordering::Acquire).as_ref() };
    if let Some(pool) = found.filter(|pool| pool.process == process) {
        return Ok(pool);
    }
    let rayon = match found {
        // A child of fork, where the parent's threads are gone, works alone: a DataLoader has many children.
        Some(_) => None,
        None if threads == 1 => None,
        None => Some(
            rayon::ThreadPoolBuilder::new()
                .num_threads(threads)
                .thread_name(|i| format!("octavo-{i}"))
                .build()
                .map_err(|error| SettingError::ThreadStart { threads, reason: error.to_string() })?,
        ),
    };
    let old = found.map_or(std::ptr::null_mut(), |pool| std::ptr::from_ref(pool).cast_mut());
    let built = Box::into_raw(Box::new(Pool { process, rayon }));
    match slot.compare_exchange(old, built, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: the pointer is never freed once it is in the slot.
        Ok(_) => Ok(unsafe { &*built }),
        Err(other) => {
            // SAFETY: `built` was not shared; the other thread's pool is never freed.
            unsafe {
                drop(Box::from_raw(built));
                Ok(&*other)
            }
        }
    }
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

/// True for work that is worth several threads.
fn shared(bytes: usize) -> bool {
    bytes > SERIAL_BYTES && !ALONE.get()
}

/// Calls `work` for every index below `count`, on several threads if there are `bytes` enough to be worth it.
///
/// # Errors
/// [`Error::Setting`] if threads cannot be started.
pub(crate) fn for_each(count: usize, bytes: usize, work: impl Fn(usize) + Sync) -> Result<()> {
    let guarded = |i| {
        let _state = FloatState::standard();
        work(i);
    };
    if count > 1
        && shared(bytes)
        && let Some(threads) = &pool(num_threads())?.rayon
    {
        threads.install(|| (0..count).into_par_iter().for_each(guarded));
    } else {
        let _state = FloatState::standard();
        (0..count).for_each(work);
    }
    Ok(())
}

/// Like [`for_each`], for work that may fail: one of the errors is the answer, and work not begun may be left undone.
///
/// # Errors
/// [`Error::Setting`] if threads cannot be started, and those of the work.
pub(crate) fn try_for_each(count: usize, bytes: usize, work: impl Fn(usize) -> Result<()> + Sync) -> Result<()> {
    let guarded = |i| {
        let _state = FloatState::standard();
        work(i)
    };
    if count > 1
        && shared(bytes)
        && let Some(threads) = &pool(num_threads())?.rayon
    {
        threads.install(|| (0..count).into_par_iter().try_for_each(guarded))
    } else {
        (0..count).try_for_each(guarded)
    }
}

/// Calls `work` for every piece of `each` elements, with its number, like [`for_each`].
///
/// # Errors
/// [`Error::Setting`] if threads cannot be started.
pub(crate) fn for_each_chunk<T: Send>(all: &mut [T], each: usize, work: impl Fn(usize, &mut [T]) + Sync) -> Result<()> {
    let guarded = |(i, piece): (usize, &mut [T])| {
        let _state = FloatState::standard();
        work(i, piece);
    };
    if shared(size_of_val(all))
        && let Some(threads) = &pool(num_threads())?.rayon
    {
        threads.install(|| all.par_chunks_mut(each).enumerate().for_each(guarded));
    } else {
        all.chunks_mut(each.max(1)).enumerate().for_each(guarded);
    }
    Ok(())
}

/// Like [`for_each`], collecting one answer for every index, in order.
///
/// # Errors
/// [`Error::Setting`] if threads cannot be started, [`Error::OutOfMemory`] where the answers find no room.
pub fn map<T: Send>(count: usize, bytes: usize, work: impl Fn(usize) -> T + Sync) -> Result<Vec<T>> {
    let guarded = |i| {
        let _state = FloatState::standard();
        work(i)
    };
    let mut answers = Vec::new();
    answers.try_reserve_exact(count).map_err(|_| Error::OutOfMemory(count.saturating_mul(size_of::<T>())))?;
    if count > 1
        && shared(bytes)
        && let Some(threads) = &pool(num_threads())?.rayon
    {
        threads.install(|| (0..count).into_par_iter().map(guarded).collect_into_vec(&mut answers));
    } else {
        answers.extend((0..count).map(guarded));
    }
    Ok(answers)
}

/// Gives every item to `work`, on several threads if there are `bytes` enough to be worth it.
///
/// # Errors
/// [`Error::Setting`] if threads cannot be started.
pub fn consume<T: Send>(items: Vec<T>, bytes: usize, work: impl Fn(T) + Sync) -> Result<()> {
    let guarded = |item| {
        let _state = FloatState::standard();
        work(item);
    };
    if items.len() > 1
        && shared(bytes)
        && let Some(threads) = &pool(num_threads())?.rayon
    {
        threads.install(|| items.into_par_iter().for_each(guarded));
    } else {
        items.into_iter().for_each(guarded);
    }
    Ok(())
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
    let threads = if threads == 0 { num_threads() } else { threads };
    let guarded = |i| {
        let _state = FloatState::standard();
        work(i)
    };
    if count > 1
        && threads > 1
        && let Some(threads) = &pool(threads)?.rayon
    {
        Ok(threads.install(|| (0..count).into_par_iter().map(guarded).collect()))
    } else {
        Ok((0..count).map(guarded).collect())
    }
}
