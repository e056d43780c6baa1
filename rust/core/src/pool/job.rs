//! One piece of parallel work: indices below a count, shared out in contiguous ranges of which the idle take what is left.

use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::Thread;

use crate::float_state::FloatState;

/// Work on one index; false stops work that has not begun.
pub(super) type Work<'a> = dyn Fn(usize) -> bool + Sync + 'a;

/// The part of what is left of a share that is taken at once: one in so many, so that tiny pieces cost little.
const PART: u32 = 16;

/// Units that nobody has taken yet: the first in the high half of the word, the end in the low one.
///
/// Its owner takes from the front, so that it reads memory in order, others from the back. All operations are relaxed:
/// a unit is taken by the one exchange that succeeds, and no memory is handed over by it. The slot of the job does that.
#[repr(align(128))] // two cache lines, which processors fetch in pairs
struct Share(AtomicU64);

impl Share {
    fn new(units: Range<u32>) -> Self {
        Self(AtomicU64::new(u64::from(units.start) << 32 | u64::from(units.end)))
    }

    fn take(&self, front: bool) -> Option<Range<u32>> {
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            let (first, end) = ((word >> 32) as u32, word as u32);
            if first >= end {
                return None;
            }
            let count = ((end - first) / PART).max(1);
            let (taken, left) = match front {
                true => (first..first + count, first + count..end),
                false => (end - count..end, first..end - count),
            };
            let left = u64::from(left.start) << 32 | u64::from(left.end);
            match self.0.compare_exchange_weak(word, left, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(taken),
                Err(other) => word = other,
            }
        }
    }
}

/// Work on indices, for a calling thread and those that help it.
pub(super) struct Job<'a> {
    work: &'a Work<'a>,
    count: usize,
    /// Indices in a unit: 1 below 2^32 of them.
    unit: usize,
    shares: Vec<Share>,
    stopped: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    /// Who waits for the helpers.
    pub(super) caller: Thread,
}

impl<'a> Job<'a> {
    /// Work on `count` indices in at most `shares` shares, at least 1.
    pub(super) fn new(shares: usize, count: usize, work: &'a Work<'a>) -> Self {
        let unit = count.div_ceil(u32::MAX as usize).max(1);
        let units = count.div_ceil(unit) as u64;
        let shares = (shares as u64).min(units).max(1);
        let border = |share: u64| (units * share / shares) as u32;
        Self {
            work,
            count,
            unit,
            shares: (0..shares).map(|share| Share::new(border(share)..border(share + 1))).collect(),
            stopped: AtomicBool::new(false),
            panic: Mutex::new(None),
            caller: std::thread::current(),
        }
    }

    /// Threads besides the caller that have a share.
    pub(super) fn helpers(&self) -> usize {
        self.shares.len() - 1
    }

    /// Works on a share, then on what is left of the others, until nothing is left. A panic is kept for the caller.
    pub(super) fn take_part(&self, share: usize) {
        let _state = FloatState::standard();
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.work_from(share))) {
            self.stopped.store(true, Ordering::Relaxed);
            self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
        }
    }

    fn work_from(&self, share: usize) {
        let shares = self.shares.len();
        for ahead in 0..shares {
            let from = &self.shares[(share + ahead) % shares];
            while let Some(units) = from.take(ahead == 0) {
                let first = units.start as usize * self.unit;
                for i in first..(units.end as usize * self.unit).min(self.count) {
                    if self.stopped.load(Ordering::Relaxed) {
                        return;
                    }
                    if !(self.work)(i) {
                        self.stopped.store(true, Ordering::Relaxed);
                        return;
                    }
                }
            }
        }
    }

    /// Goes on with a panic of the work, after all have left it.
    pub(super) fn resume(self) {
        if let Some(panic) = self.panic.into_inner().unwrap_or_else(PoisonError::into_inner) {
            resume_unwind(panic);
        }
    }
}
