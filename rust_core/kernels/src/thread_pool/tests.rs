//! Pieces, stages, panics and turns.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use proptest::prelude::*;

use super::*;

/// How long anything here may take on the busiest machine before it counts as hung.
const PATIENCE: Duration = Duration::from_secs(20);

/// Runs a test's body, which must return before long: one that hangs fails.
fn within_patience(body: impl FnOnce() + Send + 'static) {
    let (done, is_done) = mpsc::channel();
    let body = thread::spawn(move || {
        body();
        let _ = done.send(());
    });
    if is_done.recv_timeout(PATIENCE) == Err(mpsc::RecvTimeoutError::Timeout) {
        panic!("nothing for {PATIENCE:?}: the pool hangs");
    }
    if let Err(panic) = body.join() {
        std::panic::resume_unwind(panic);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Every piece of every stage is computed once, after those of the stages before.
    #[test]
    fn stages_compute_each_piece_once(threads in 1_usize..=8, stages in prop::collection::vec(0_usize..40, 0..20)) {
        let pool = ThreadPool::new(threads);
        let counts: Vec<Vec<AtomicU32>> = stages
            .iter()
            .map(|pieces| (0..*pieces).map(|_| AtomicU32::new(0)).collect())
            .collect();
        for round in 1..=2 {
            pool.run(&stages, |piece| {
                assert!(piece.thread < threads);
                for count in counts[..piece.stage].iter().flatten() {
                    assert_eq!(count.load(Ordering::Relaxed), round);
                }
                counts[piece.stage][piece.index].fetch_add(1, Ordering::Relaxed);
            })
            .expect("no panic");
            for count in counts.iter().flatten() {
                assert_eq!(count.load(Ordering::Relaxed), round);
            }
        }
    }
}

/// What a stage wrote without atomics is seen by the next, whoever computes it.
#[test]
fn stages_see_what_the_one_before_wrote() {
    const STAGES: usize = 2_000;
    for threads in [1, 2, 5] {
        let pool = ThreadPool::new(threads);
        let cells: Vec<Mutex<usize>> = (0..threads * 3).map(|_| Mutex::new(0)).collect();
        let sum = AtomicUsize::new(0);
        pool.run(&vec![cells.len(); STAGES], |piece| {
            let before = std::mem::replace(&mut *lock(&cells[piece.index]), piece.stage + 1);
            assert_eq!(before, piece.stage);
            sum.fetch_add(1, Ordering::Relaxed);
        })
        .expect("no panic");
        assert_eq!(sum.into_inner(), cells.len() * STAGES);
    }
}

/// Threads that never come hold up nobody, and one that comes late claims nothing of a stage that is over.
#[test]
fn absent_threads_hold_up_nobody() {
    let stages = Stages::new(3);
    let computed = Mutex::new(Vec::new());
    let compute = |piece: Piece| lock(&computed).push((piece.stage, piece.index));
    let job = Job {
        num_pieces: &[5, 0, 4],
        compute: &compute,
    };
    // SAFETY: the job lives until the end.
    unsafe { stages.begin(&job) };
    let first = stages.current().expect("a stage");
    while let Some(stage) = stages.current() {
        for owner in 0..3 {
            while let Some(claim) = stages.claim(stage, owner) {
                claim.compute(0);
                assert!(stage == first || stages.claim(first, owner).is_none());
                stages.report(stage, 1);
            }
        }
    }
    let expected: Vec<_> = (0..5)
        .map(|index| (0, index))
        .chain((0..4).map(|index| (2, index)))
        .collect();
    assert_eq!(*lock(&computed), expected);
    assert!((0..3).all(|owner| stages.claim(first, owner).is_none()));
}

/// A stage is not over before the last piece is reported, however long that takes; the others sleep meanwhile.
#[test]
fn stages_wait_for_the_slowest_piece() {
    within_patience(|| {
        let pool = ThreadPool::new(3);
        let num_done = AtomicUsize::new(0);
        pool.run(&[30, 500], |piece| {
            if piece.stage == 0 && piece.index == 29 {
                thread::sleep(Duration::from_millis(50));
            }
            let before = num_done.fetch_add(1, Ordering::Relaxed);
            assert!(piece.stage == 0 || before >= 30);
        })
        .expect("no panic");
        assert_eq!(num_done.into_inner(), 530);
    });
}

/// Many threads on few cores, which are away most of the time, compute every stage; those that come back too late find
/// nothing to do.
#[test]
fn crowds_of_threads_compute_every_stage() {
    within_patience(|| {
        let pool = ThreadPool::new(16);
        let counts: Vec<AtomicUsize> = (0..300).map(|_| AtomicUsize::new(0)).collect();
        for round in 1..=20 {
            pool.run(&vec![7; counts.len()], |piece| {
                counts[piece.stage].fetch_add(1, Ordering::Relaxed);
                if (piece.stage + piece.index).is_multiple_of(13) {
                    thread::yield_now();
                }
            })
            .expect("no panic");
            assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 7 * round));
        }
    });
}

/// A panic in any piece, wherever the others are, comes back as an error, and the pool runs again.
#[test]
fn panics_come_back_as_errors() {
    within_patience(|| {
        let pool = ThreadPool::new(4);
        for culprit in [0, 1, 57, 99] {
            let result = pool.run(&[4, 100, 4], |piece| {
                assert_ne!(piece.stage, 2, "a stage after the panic");
                if piece.stage == 1 && piece.index == culprit {
                    std::panic::resume_unwind(Box::new(format!("culprit {culprit}")));
                }
            });
            let ThreadPoolError::Panicked { message, .. } = result.expect_err("a panic");
            assert_eq!(message, format!("culprit {culprit}"));
            pool.run(&[9], |_| {}).expect("usable again");
        }
    });
}

/// Runs of several callers follow one another: none begins before the last has ended.
#[test]
fn callers_take_turns() {
    within_patience(|| {
        let pool = Arc::new(ThreadPool::new(2));
        let (total, num_running) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let callers: Vec<_> = (0..3)
            .map(|caller| {
                let (pool, total, num_running) = (Arc::clone(&pool), Arc::clone(&total), Arc::clone(&num_running));
                thread::spawn(move || {
                    for _ in 0..200 {
                        pool.run(&[4, 4], |_| {
                            let before = num_running.swap(caller + 1, Ordering::Relaxed);
                            assert!(before == 0 || before == caller + 1, "another's run");
                            total.fetch_add(1, Ordering::Relaxed);
                            thread::yield_now();
                            num_running.store(0, Ordering::Relaxed);
                        })
                        .expect("no panic");
                    }
                })
            })
            .collect();
        for caller in callers {
            caller.join().expect("no panic");
        }
        assert_eq!(total.load(Ordering::Relaxed), 3 * 200 * 8);
    });
}

/// Whoever asks for the same number of threads gets the same pool, until nobody holds it; another number is another.
#[test]
fn pools_of_equal_size_are_one() {
    let first = ThreadPool::shared(3);
    assert!(Arc::ptr_eq(&first, &ThreadPool::shared(3)));
    assert!(!Arc::ptr_eq(&first, &ThreadPool::shared(2)));
    let weak = Arc::downgrade(&first);
    drop(first);
    assert!(weak.upgrade().is_none());
    assert_eq!(ThreadPool::shared(3).num_threads(), 3);
}

/// A caller who comes again at once is behind one who waits already.
#[test]
fn turns_go_to_who_waits_longest() {
    within_patience(|| {
        let (turns, order) = (Arc::new(Turns::default()), Arc::new(Mutex::new(String::new())));
        let first = turns.take();
        let other = {
            let (turns, order) = (Arc::clone(&turns), Arc::clone(&order));
            thread::spawn(move || {
                let _turn = turns.take();
                lock(&order).push('b');
            })
        };
        while lock(&turns.tickets).0 < 2 {
            thread::yield_now();
        }
        lock(&order).push('a');
        drop(first);
        let turn = turns.take();
        lock(&order).push('a');
        drop(turn);
        other.join().expect("no panic");
        assert_eq!(*lock(&order), "aba");
    });
}
