//! The workers: threads that help with the jobs of callers, spin for a while after one, then sleep.
//!
//! A caller publishes its job in a slot, works on it itself, closes it when nothing is left to take, and waits for the
//! helpers that are inside. No job ever needs a helper: one that sleeps, or whose core is taken, is not waited for, so
//! jobs may be nested, and any number of threads may call at once. Everything here is in statics without destructors and
//! without locks: threads that are cut off at exit, and children of `fork`, find nothing held and nothing freed.

use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicUsize, Ordering};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use super::job::{Job, Work};
use super::{MAX_THREADS, cores, openmp};
use crate::error::{Result, SettingError};
use crate::float_state::FloatState;

/// How long a worker looks for the next job before it sleeps: layers follow each other within it, and waking a thread
/// costs more than a small product.
const SPIN: Duration = Duration::from_micros(200);
/// Looks between two offers of the core to other threads.
const LOOKS: u32 = 64;
/// An offer that took so long was accepted: a thread that wants to work was waiting for the core.
const TAKEN: Duration = Duration::from_micros(10);
/// How long a caller looks whether its last helper is done before it sleeps.
const JOIN: Duration = Duration::from_micros(100);
/// Workers that one thread wakes for a job; those wake the next.
const WAKE: usize = 2;

// --- slots: jobs that take helpers ---------------------------------------------------------------------------------

/// A slot belongs to a caller.
const CLAIMED: u32 = 1 << 31;
/// Its job takes helpers.
const OPEN: u32 = 1 << 30;
/// Its caller sleeps until the last helper leaves.
const WAITING: u32 = 1 << 29;
/// Most helpers of the job, above the number of those that are inside.
const LIMIT_SHIFT: u32 = 12;
const INSIDE: u32 = (1 << LIMIT_SHIFT) - 1;

#[repr(align(128))]
struct Slot {
    /// 0 for a free slot.
    state: AtomicU32,
    /// Valid while the slot is open or a helper is inside.
    job: AtomicPtr<Job<'static>>,
}

/// Callers whose jobs get help at one time; more work alone.
const SLOTS: usize = 16;
static TEAM: [Slot; SLOTS] =
    [const { Slot { state: AtomicU32::new(0), job: AtomicPtr::new(std::ptr::null_mut()) } }; SLOTS];

/// The process whose threads the workers are; 0 before the first job. Threads do not survive `fork`: its children work
/// alone, of which a DataLoader has many.
static PROCESS: AtomicU32 = AtomicU32::new(0);

fn is_ours(process: u32) -> bool {
    match PROCESS.load(Ordering::Relaxed) {
        0 => match PROCESS.compare_exchange(0, process, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => true,
            Err(other) => other == process,
        },
        owner => owner == process,
    }
}

/// Calls `work` for every index below `count`, on up to `threads` threads, of which the caller is one. Goes on with a
/// panic of the work when all threads have left it.
///
/// # Errors
/// [`crate::Error::Setting`] if threads cannot be started.
pub(super) fn run(threads: usize, count: usize, work: &Work<'_>) -> Result<()> {
    let process = if threads > 1 && count > 1 { std::process::id() } else { 0 };
    if process > 0 && is_ours(process) {
        let job = Job::new(threads, count, work);
        if openmp::share(&job, process) {
            job.resume();
            return Ok(());
        }
        start(job.helpers())?;
        if let Some(slot) = Claimed::new() {
            slot.share(&job);
            job.resume();
            return Ok(());
        }
    }
    let _state = FloatState::standard();
    (0..count).all(work);
    Ok(())
}

/// A slot that this thread has claimed, and frees.
struct Claimed(&'static Slot);

impl Claimed {
    fn new() -> Option<Self> {
        // Acquire: the job that the slot had last is done with.
        let claim =
            |slot: &&Slot| slot.state.compare_exchange(0, CLAIMED, Ordering::Acquire, Ordering::Relaxed).is_ok();
        TEAM.iter().find(claim).map(Self)
    }

    /// Works on a job with helpers; returns when none is inside any more.
    fn share(self, job: &Job<'_>) {
        let slot = self.0;
        let helpers = job.helpers();
        slot.job.store(std::ptr::from_ref(job).cast_mut().cast(), Ordering::Relaxed);
        // Release: a helper that finds the slot open sees the job. Nothing below unwinds before the slot is closed and
        // the last helper has left, so the job outlives their use of it.
        slot.state.store(CLAIMED | OPEN | (helpers as u32) << LIMIT_SHIFT, Ordering::Release);
        call(helpers);
        job.take_part(0);
        slot.state.fetch_and(!OPEN, Ordering::Relaxed);
        self.wait();
        slot.state.store(0, Ordering::Release);
    }

    /// Waits for the helpers. Acquire: what they have written is seen after their number is seen to be 0.
    fn wait(&self) {
        let state = &self.0.state;
        let inside = || state.load(Ordering::Acquire) & INSIDE > 0;
        let begin = Instant::now();
        while inside() {
            for _ in 0..LOOKS {
                if !inside() {
                    return;
                }
                std::hint::spin_loop();
            }
            thread::yield_now();
            if begin.elapsed() > JOIN {
                // The helper whose leaving brings the number to 0 sees the bit and unparks this thread, or this
                // operation sees the 0: both change the same word.
                if state.fetch_or(WAITING, Ordering::Acquire) & INSIDE == 0 {
                    return;
                }
                while inside() {
                    thread::park();
                }
                return;
            }
        }
    }
}

impl Slot {
    /// Joins the job, if it takes helpers, and works on it. False where there is none.
    fn help(&self, worker: usize) -> bool {
        let mut state = self.state.load(Ordering::Relaxed);
        let limit = loop {
            let limit = (state & !(CLAIMED | OPEN | WAITING)) >> LIMIT_SHIFT;
            if state & OPEN == 0 || state & INSIDE >= limit {
                return false;
            }
            // Acquire: the job is seen as its caller published it. The slot may have changed hands since it was read;
            // where the exchange succeeds, it is open now, and stays claimed while this thread is inside.
            match self.state.compare_exchange_weak(state, state + 1, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => break limit,
                Err(other) => state = other,
            }
        };
        if (state & INSIDE) + 1 < limit {
            wake((limit - (state & INSIDE) - 1) as usize);
        }
        // SAFETY: the caller of the job keeps it until no helper is inside, and this thread is.
        let job = unsafe { &*self.job.load(Ordering::Relaxed) };
        job.take_part(worker + 1);
        let caller = job.caller.clone(); // the job is gone when the caller sees this thread leave
        // Nothing is left to take: no other helper needs to come. Release: the caller sees what was written.
        self.state.fetch_and(!OPEN, Ordering::Relaxed);
        let before = self.state.fetch_sub(1, Ordering::Release);
        if before & WAITING > 0 && before & INSIDE == 1 {
            caller.unpark();
        }
        true
    }
}

// --- workers -------------------------------------------------------------------------------------------------------

const ABSENT: u8 = 0;
const AWAKE: u8 = 1;
const ASLEEP: u8 = 2;

#[repr(align(64))]
struct Worker {
    state: AtomicU8,
    /// Set before the worker first sleeps, never freed.
    thread: AtomicPtr<Thread>,
}

static WORKERS: [Worker; MAX_THREADS - 1] =
    [const { Worker { state: AtomicU8::new(ABSENT), thread: AtomicPtr::new(std::ptr::null_mut()) } }; MAX_THREADS - 1];
/// Workers that have been started: the first so many.
static STARTED: AtomicUsize = AtomicUsize::new(0);
/// Workers that look for jobs.
static LOOKING: AtomicUsize = AtomicUsize::new(0);
/// Changes with every job that is published.
static JOBS: AtomicU32 = AtomicU32::new(0);

/// Starts workers until there are as many.
fn start(workers: usize) -> Result<()> {
    if STARTED.load(Ordering::Relaxed) >= workers {
        return Ok(());
    }
    for (at, worker) in WORKERS.iter().enumerate().take(workers) {
        if worker.state.compare_exchange(ABSENT, AWAKE, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            let name = format!("octavo-{at}");
            if let Err(error) = thread::Builder::new().name(name).spawn(move || serve(at)) {
                worker.state.store(ABSENT, Ordering::Relaxed);
                return Err(SettingError::ThreadStart { threads: workers + 1, reason: error.to_string() }.into());
            }
        }
    }
    STARTED.fetch_max(workers, Ordering::Relaxed);
    Ok(())
}

/// Tells workers of a job for `helpers` of them.
fn call(helpers: usize) {
    // Sequentially consistent, as in `serve`: a worker going to sleep sees the new number, or is seen asleep here.
    JOBS.fetch_add(1, Ordering::SeqCst);
    let looking = LOOKING.load(Ordering::SeqCst);
    if looking < helpers {
        wake(helpers - looking);
    }
}

/// Wakes up to `most` sleeping workers, and no more than [`WAKE`]: each wake is a system call.
fn wake(most: usize) {
    let mut left = most.min(WAKE);
    for worker in WORKERS.iter().take(STARTED.load(Ordering::Relaxed)) {
        if left == 0 {
            return;
        }
        let asleep = worker.state.load(Ordering::SeqCst) == ASLEEP;
        if asleep && worker.state.compare_exchange(ASLEEP, AWAKE, Ordering::SeqCst, Ordering::Relaxed).is_ok() {
            // SAFETY: set before the worker slept, and never freed; its sleep was seen with the exchange.
            unsafe { &*worker.thread.load(Ordering::Relaxed) }.unpark();
            left -= 1;
        }
    }
}

/// The life of a worker.
fn serve(at: usize) {
    let worker = &WORKERS[at];
    worker.thread.store(Box::into_raw(Box::new(thread::current())), Ordering::Relaxed);
    loop {
        let jobs = JOBS.load(Ordering::SeqCst);
        while TEAM.iter().any(|slot| slot.help(at)) {}
        // No more look than there are cores without the callers' own.
        let looking = LOOKING.fetch_add(1, Ordering::SeqCst);
        let called = looking + 1 < cores() && look(jobs);
        LOOKING.fetch_sub(1, Ordering::SeqCst);
        if called {
            continue;
        }
        worker.state.store(ASLEEP, Ordering::SeqCst);
        if JOBS.load(Ordering::SeqCst) != jobs {
            worker.state.store(AWAKE, Ordering::SeqCst);
        }
        while worker.state.load(Ordering::SeqCst) == ASLEEP {
            thread::park();
        }
    }
}

/// Spins until there is a job after number `jobs`, for a while. False where there is none, or another thread, such as
/// those of OpenMP, wanted the core: that one works, and this one would only wait.
fn look(jobs: u32) -> bool {
    let begin = Instant::now();
    loop {
        for _ in 0..LOOKS {
            if JOBS.load(Ordering::Relaxed) != jobs {
                return true;
            }
            std::hint::spin_loop();
        }
        let offered = Instant::now();
        thread::yield_now();
        let back = Instant::now();
        if back - begin > SPIN || back - offered > TAKEN {
            return JOBS.load(Ordering::Relaxed) != jobs;
        }
    }
}
