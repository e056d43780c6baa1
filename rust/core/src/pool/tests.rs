//! Stress: every index once, on any number of threads, whatever else runs.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::*;
use crate::error::ShapeError;

/// Enough bytes for several threads.
const LARGE: usize = SERIAL_BYTES + 1;

fn marks(count: usize) -> Vec<AtomicUsize> {
    (0..count).map(|_| AtomicUsize::new(0)).collect()
}

fn all_once(marks: &[AtomicUsize]) -> bool {
    marks.iter().all(|mark| mark.load(Ordering::Relaxed) == 1)
}

/// Counts around those that fill shares, and sizes of teams beyond the cores.
const COUNTS: [usize; 12] = [0, 1, 2, 3, 5, 7, 15, 31, 64, 97, 1000, 4099];

#[test]
fn every_index_is_worked_on_once() {
    for round in 0..60 {
        for threads in [1, 2, 3, 5, 16] {
            for count in COUNTS {
                let marks = marks(count);
                let answers = map_on(threads, count, |i| {
                    marks[i].fetch_add(1, Ordering::Relaxed);
                    (i, round)
                });
                assert_eq!(answers.unwrap(), (0..count).map(|i| (i, round)).collect::<Vec<_>>());
                assert!(all_once(&marks), "{threads} threads, {count} indices");
            }
        }
    }
}

#[test]
fn jobs_after_pauses_of_any_length_are_done() {
    for pause in [0, 20, 100, 190, 200, 210, 400, 2000] {
        for _ in 0..40 {
            let marks = marks(33);
            for_each(33, LARGE, |i| {
                marks[i].fetch_add(1, Ordering::Relaxed);
            })
            .unwrap();
            assert!(all_once(&marks));
            thread::sleep(Duration::from_micros(pause));
        }
    }
}

#[test]
fn items_and_chunks_are_given_out_once() {
    for count in COUNTS {
        let total = AtomicUsize::new(0);
        let items: Vec<String> = (0..count).map(|i| i.to_string()).collect();
        consume(items, LARGE, |item| {
            total.fetch_add(item.parse::<usize>().unwrap() + 1, Ordering::Relaxed);
        })
        .unwrap();
        assert_eq!(total.into_inner(), count * (count + 1) / 2);

        let mut values = vec![0u64; count * 50];
        for_each_chunk(&mut values, 7, |piece, values| values.iter_mut().for_each(|value| *value += piece as u64 + 1))
            .unwrap();
        assert!(values.iter().enumerate().all(|(i, &value)| value == i as u64 / 7 + 1));
    }
}

#[test]
fn a_panic_of_any_thread_reaches_the_caller_and_the_workers_go_on() {
    let text = |panic: Box<dyn std::any::Any + Send>| *panic.downcast::<String>().unwrap();
    for round in 0..200 {
        let bad = round % 64;
        let work = |i: usize| assert!(i != bad, "index {i}");
        let panic = catch_unwind(AssertUnwindSafe(|| for_each(64, LARGE, work))).unwrap_err();
        assert_eq!(text(panic), format!("index {bad}"));
        let panic = catch_unwind(AssertUnwindSafe(|| map_on(4, 64, |i| vec![work(i)]))).unwrap_err();
        assert_eq!(text(panic), format!("index {bad}"));
        let items: Vec<usize> = (0..64).collect();
        let panic = catch_unwind(AssertUnwindSafe(|| consume(items, LARGE, work))).unwrap_err();
        assert_eq!(text(panic), format!("index {bad}"));
        assert_eq!(map_on(4, 64, |i| i).unwrap(), (0..64).collect::<Vec<_>>());
    }
}

#[test]
fn an_error_of_any_index_is_the_answer() {
    for bad in 0..100 {
        let failed = try_for_each(100, LARGE, |i| match i == bad {
            true => Err(ShapeError::Bias { got: i, rows: 0 }.into()),
            false => Ok(()),
        });
        assert!(matches!(failed, Err(Error::Shape(ShapeError::Bias { got, .. })) if got == bad));
        assert!(try_for_each(100, LARGE, |_| Ok(())).is_ok());
    }
}

#[test]
fn nested_work_is_done_without_a_deadlock() {
    let sum = |depth: usize| {
        fn below(depth: usize) -> usize {
            if depth == 0 {
                return 1;
            }
            map_on(3, 3, |_| below(depth - 1)).unwrap().into_iter().sum()
        }
        below(depth)
    };
    for _ in 0..20 {
        assert_eq!(sum(5), 243);
        assert_eq!(alone(|| map(9, LARGE, |_| sum(2)).unwrap().len()), 9);
    }
}

#[test]
fn many_callers_at_once_all_get_their_answers() {
    thread::scope(|scope| {
        for caller in 0..24 {
            // More callers than slots, some of which panic.
            scope.spawn(move || {
                for round in 0..100 {
                    let count = 1 + (caller * 37 + round * 11) % 150;
                    let answers = map_on(2 + caller % 5, count, |i| i * caller).unwrap();
                    assert!(answers.iter().enumerate().all(|(i, &answer)| answer == i * caller));
                    if caller % 4 == 0 {
                        let work = |i: usize| assert!(i != count / 2);
                        assert!(catch_unwind(AssertUnwindSafe(|| for_each(count, LARGE, work))).is_err() || count == 0);
                    }
                }
            });
        }
    });
}

#[test]
fn a_second_caller_does_not_wait_for_the_first() {
    let go_on = AtomicBool::new(true);
    thread::scope(|scope| {
        let held = scope.spawn(|| {
            map_on(4, 4, |_| {
                while go_on.load(Ordering::Relaxed) {
                    thread::sleep(Duration::from_millis(1));
                }
            })
        });
        for _ in 0..50 {
            assert_eq!(map_on(4, 100, |i| i).unwrap().len(), 100);
        }
        go_on.store(false, Ordering::Relaxed);
        assert!(held.join().unwrap().is_ok());
    });
}

#[test]
fn a_free_worker_takes_what_a_slow_thread_leaves() {
    // One share holds an index that lasts; its others are worked on meanwhile.
    let begin = Instant::now();
    let done = AtomicUsize::new(0);
    map_on(2, 64, |i| {
        if i == 0 {
            while done.load(Ordering::Acquire) < 63 - 1 && begin.elapsed() < Duration::from_secs(20) {
                thread::yield_now();
            }
        } else {
            done.fetch_add(1, Ordering::Release);
        }
    })
    .unwrap();
    assert!(begin.elapsed() < Duration::from_secs(20), "{} of 63 were worked on", done.into_inner());
}

#[test]
fn work_runs_in_the_standard_state_on_every_thread() {
    let smallest = f32::from_bits(1);
    let found = map_on(3, 200, |_| std::hint::black_box(smallest) * 1.0 == smallest).unwrap();
    assert!(found.into_iter().all(|kept| kept));
}
