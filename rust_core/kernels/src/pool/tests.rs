//! Chunks, barriers and panics.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use proptest::prelude::*;

use super::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Every chunk of every share runs exactly once, and a share is complete when it returns on any thread.
    #[test]
    fn shares_run_each_chunk_once(threads in 1_usize..=8, shares in prop::collection::vec(0_usize..40, 1..20)) {
        let pool = Pool::new(threads);
        let counts: Vec<Vec<AtomicU32>> = shares
            .iter()
            .map(|chunks| (0..*chunks).map(|_| AtomicU32::new(0)).collect())
            .collect();
        for round in 1..=2 {
            pool.run(|worker| {
                for counts in &counts {
                    worker.share(counts.len(), |chunk| {
                        counts[chunk].fetch_add(1, Ordering::Relaxed);
                    });
                    for count in counts {
                        assert_eq!(count.load(Ordering::Relaxed), round);
                    }
                    worker.barrier();
                }
            })
            .expect("no panic");
        }
    }
}

/// No thread passes a barrier before all have reached it.
#[test]
fn barriers_separate_phases() {
    const PHASES: usize = 500;
    for threads in [1, 2, 5] {
        let pool = Pool::new(threads);
        let arrivals = AtomicUsize::new(0);
        pool.run(|worker| {
            assert_eq!(worker.num_threads(), threads);
            for phase in 1..=PHASES {
                arrivals.fetch_add(1, Ordering::Relaxed);
                worker.barrier();
                assert_eq!(arrivals.load(Ordering::Relaxed), phase * threads);
                worker.barrier();
            }
        })
        .expect("no panic");
    }
}

/// A panic in any worker, wherever the others are, comes back as an error, and the pool runs again.
#[test]
fn panics_come_back_as_errors() {
    let pool = Pool::new(4);
    for culprit in 0..4 {
        let result = pool.run(|worker| {
            worker.barrier();
            if worker.index() == culprit {
                resume_unwind(Box::new(format!("culprit {culprit}")));
            }
            worker.share(100, |_| {});
        });
        assert_eq!(
            result,
            Err(PoolError::Panicked {
                worker: culprit,
                message: format!("culprit {culprit}")
            })
        );
        pool.run(|worker| worker.share(9, |_| {})).expect("usable again");
    }
}

/// Runs of several callers follow one another.
#[test]
fn callers_take_turns() {
    let pool = Pool::new(2);
    let total = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..50 {
                    pool.run(|worker| {
                        worker.share(4, |_| {
                            total.fetch_add(1, Ordering::Relaxed);
                        });
                    })
                    .expect("no panic");
                }
            });
        }
    });
    assert_eq!(total.into_inner(), 3 * 50 * 4);
}

/// Whoever asks for the same number of threads gets the same pool, until nobody holds it; another number is another.
#[test]
fn pools_of_equal_size_are_one() {
    let first = Pool::shared(3);
    assert!(Arc::ptr_eq(&first, &Pool::shared(3)));
    assert!(!Arc::ptr_eq(&first, &Pool::shared(2)));
    let weak = Arc::downgrade(&first);
    drop(first);
    assert!(weak.upgrade().is_none());
    assert_eq!(Pool::shared(3).num_threads(), 3);
}

/// A caller who comes again at once is behind one who waits already.
#[test]
fn turns_go_to_who_waits_longest() {
    let (turns, order) = (Turns::default(), Mutex::new(String::new()));
    thread::scope(|scope| {
        let first = turns.take();
        scope.spawn(|| {
            let _turn = turns.take();
            lock(&order).push('b');
        });
        while lock(&turns.tickets).0 < 2 {
            thread::yield_now();
        }
        lock(&order).push('a');
        drop(first);
        let _turn = turns.take();
        lock(&order).push('a');
    });
    assert_eq!(*lock(&order), "aba");
}
