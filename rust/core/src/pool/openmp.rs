//! The OpenMP threads of the host program as helpers, where it has some: PyTorch's spin for milliseconds after each of its
//! operations, and workers of our own would share their cores.
//!
//! One caller at a time has them; others, and work inside work, take workers of our own. A team whose join keeps its
//! caller waiting, since something else has a core, is left alone for a while: no job of ours needs a helper.

use std::ffi::{c_uint, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::job::Job;

/// `GOMP_parallel` of libgomp, which LLVM's and Intel's libraries have as well: calls the function with the data on so
/// many threads, of which the caller is one, and returns when all are done.
type Parallel = unsafe extern "C" fn(unsafe extern "C" fn(*mut c_void), *mut c_void, c_uint, c_uint);

/// A caller that has waited longer for its helpers than this has a team that cannot run.
const PATIENCE: Duration = Duration::from_millis(1);
/// A team is left alone for so many times what its caller has waited.
const REST: u32 = 16;

static PARALLEL: AtomicUsize = AtomicUsize::new(0);
/// The process that gave it: threads do not survive `fork`.
static PROCESS: AtomicU32 = AtomicU32::new(0);
static TAKEN: AtomicBool = AtomicBool::new(false);
/// Microseconds of [`now`] until which the team is left alone.
static RESTS_UNTIL: AtomicU64 = AtomicU64::new(0);

/// Shares later work with the OpenMP threads of this process, whose `GOMP_parallel` is at an address; 0 ends that.
///
/// # Safety
/// The address must be that of `GOMP_parallel`, and stay so for the life of the process.
pub unsafe fn use_openmp(parallel: usize) {
    PROCESS.store(std::process::id(), Ordering::Relaxed);
    PARALLEL.store(parallel, Ordering::Release);
}

/// Microseconds since the first call.
fn now() -> u64 {
    static BEGIN: OnceLock<Instant> = OnceLock::new();
    BEGIN.get_or_init(Instant::now).elapsed().as_micros() as u64
}

/// A job with the threads that come to it.
struct Team<'a> {
    job: &'a Job<'a>,
    /// Shares given out, but the caller's.
    given: AtomicUsize,
    /// When the caller had nothing left to do, in microseconds.
    done: AtomicU64,
}

/// Works on a job in the OpenMP threads; returns when all have left it. False, with nothing done, where there are none.
/// `process`: the one that this is.
pub(super) fn share(job: &Job<'_>, process: u32) -> bool {
    let parallel = PARALLEL.load(Ordering::Acquire);
    if parallel == 0 || PROCESS.load(Ordering::Relaxed) != process || now() < RESTS_UNTIL.load(Ordering::Relaxed) {
        return false;
    }
    if TAKEN.swap(true, Ordering::Relaxed) {
        return false;
    }
    // SAFETY: whoever gave the address has promised that it is this function.
    let parallel = unsafe { std::mem::transmute::<usize, Parallel>(parallel) };
    let team = Team { job, given: AtomicUsize::new(0), done: AtomicU64::new(0) };
    let threads = job.helpers() as c_uint + 1;
    // SAFETY: the team outlives the call, which returns when all threads have; what they write is seen then.
    unsafe { parallel(part, std::ptr::from_ref(&team).cast_mut().cast(), threads, 0) };
    let end = now();
    let waited = end - team.done.load(Ordering::Relaxed).min(end);
    if waited > PATIENCE.as_micros() as u64 {
        RESTS_UNTIL.store(end + waited * u64::from(REST), Ordering::Relaxed);
    }
    TAKEN.store(false, Ordering::Relaxed);
    true
}

/// What each thread of a team does. Nothing unwinds: the job keeps panics for its caller.
///
/// # Safety
/// The address must be that of a [`Team`] that outlives the call.
unsafe extern "C" fn part(team: *mut c_void) {
    // SAFETY: `share` gives a team, which lives until all threads have returned.
    let team = unsafe { &*team.cast::<Team<'_>>() };
    let is_caller = thread::current().id() == team.job.caller.id();
    // The caller always has the first share: what it leaves in its cache is the same at each call.
    let share = if is_caller { 0 } else { team.given.fetch_add(1, Ordering::Relaxed) + 1 };
    if share <= team.job.helpers() {
        team.job.take_part(share);
    }
    if is_caller {
        team.done.store(now(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::pool::{SERIAL_BYTES, for_each, map_on};

    /// An OpenMP of fresh threads, of which one comes late.
    ///
    /// # Safety
    /// The function must take the address.
    unsafe extern "C" fn parallel(
        work: unsafe extern "C" fn(*mut c_void),
        team: *mut c_void,
        threads: c_uint,
        _: c_uint,
    ) {
        let team = team as usize;
        thread::scope(|scope| {
            for helper in 1..threads {
                scope.spawn(move || {
                    thread::sleep(Duration::from_micros(u64::from(helper % 2) * 300));
                    // SAFETY: the scope ends before the caller goes on.
                    unsafe { work(team as *mut c_void) };
                });
            }
            // SAFETY: as above.
            unsafe { work(team as *mut c_void) };
        });
    }

    #[test]
    fn work_of_an_openmp_team_is_done_once_and_its_panics_reach_the_caller() {
        // SAFETY: the function does what that of OpenMP does.
        unsafe { use_openmp(parallel as *const () as usize) };
        for threads in [2, 3, 9] {
            for count in [2, 5, 97, 1000] {
                let inside = |i: usize| map_on(2, 3, |j| i + j).unwrap().iter().sum::<usize>();
                let answers = map_on(threads, count, inside).unwrap();
                assert_eq!(answers, (0..count).map(|i| 3 * i + 3).collect::<Vec<_>>());
            }
        }
        let panicking = || for_each(100, SERIAL_BYTES + 1, |i| assert!(i != 40)).unwrap();
        assert!(catch_unwind(AssertUnwindSafe(panicking)).is_err());
        assert_eq!(map_on(4, 9, |i| i).unwrap(), (0..9).collect::<Vec<_>>());
        // SAFETY: 0 is always right.
        unsafe { use_openmp(0) };
    }
}
