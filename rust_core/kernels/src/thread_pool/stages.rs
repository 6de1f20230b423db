//! The stages of a run and who computes their pieces, without locks.
//!
//! One word says which stage is current and how many pieces it has; it changes when all of them are reported. A claim
//! names the stage it is for, so one by a thread that slept since fails, and a claim that is not reported yet keeps the
//! stage, and with it the run and everything it borrows, from ending.

use std::hint::spin_loop;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;

use super::stint::Stint;
use super::{Piece, lock};

/// Bits of a word that count pieces; the others count stages, for months of the quickest.
const PIECE_BITS: u32 = 24;
/// Pieces of a stage at most.
pub(super) const MAX_PIECES: usize = (1 << PIECE_BITS) - 1;

/// Rounds of spinning for the next stage before a thread offers its core.
const STAGE_SPINS: usize = 4_000;
/// Rounds of offering its core before it sleeps: who holds the last piece may need it.
const STAGE_YIELDS: usize = 400;
/// Rounds of spinning for the next run before a thread sleeps: some 50 microseconds.
const RUN_SPINS: usize = 2_000;
/// The same where there are more threads than cores, when spinning only keeps others from working.
const CROWDED_SPINS: usize = 32;

/// What a run computes.
pub(super) struct Job<'a> {
    /// Of each stage.
    pub(super) num_pieces: &'a [usize],
    pub(super) compute: &'a (dyn Fn(Piece) + Sync),
}

impl Job<'_> {
    /// The first stage from `index` on that has pieces, and how many: none at the end.
    fn stage_from(&self, index: usize) -> (usize, usize) {
        let rest = self.num_pieces.iter().enumerate().skip(index);
        rest.map(|(index, &count)| (index, count))
            .find(|&(_, count)| count > 0)
            .unwrap_or((0, 0))
    }
}

/// A stage of a run: its number since the pool began, and how many pieces it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stage(u64);

impl Stage {
    fn number(self) -> u64 {
        self.0 >> PIECE_BITS
    }

    fn num_pieces(self) -> usize {
        self.0 as usize & MAX_PIECES
    }

    /// The stage after this one; one without pieces is the time between two runs.
    fn next(self, num_pieces: usize) -> Self {
        assert!(num_pieces <= MAX_PIECES, "a stage of {num_pieces} pieces");
        Self((self.number() + 1) << PIECE_BITS | num_pieces as u64)
    }
}

/// The right and the duty to compute a piece, and then to report it.
pub(super) struct Claim<'a> {
    job: &'a Job<'a>,
    stage: usize,
    index: usize,
}

impl Claim<'_> {
    pub(super) fn compute(&self, thread: usize) {
        let (stage, index) = (self.stage, self.index);
        (self.job.compute)(Piece { stage, index, thread });
    }
}

/// Puts a counter on a cache line (and its prefetched neighbour) of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Padded<T>(T);

#[derive(Debug)]
pub(super) struct Stages {
    num_threads: usize,
    is_crowded: bool,
    /// A [`Stage`].
    current: Padded<AtomicU64>,
    /// Pieces of the current stage that were reported.
    num_done: Padded<AtomicUsize>,
    /// Per thread, the stage in which a piece of its run was last claimed, and how many were: the bits of a [`Stage`].
    claimed: Vec<Padded<AtomicU64>>,
    /// The current stage's number in its run.
    index: AtomicUsize,
    /// What is run, as long as a stage is current.
    job: AtomicPtr<Job<'static>>,
    is_closed: AtomicBool,
    has_sleepers: AtomicBool,
    sleep: Mutex<()>,
    changed: Condvar,
}

impl Stages {
    pub(super) fn new(num_threads: usize) -> Self {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        Self {
            num_threads,
            is_crowded: num_threads > cores,
            current: Padded::default(),
            num_done: Padded::default(),
            claimed: (0..num_threads).map(|_| Padded::default()).collect(),
            index: AtomicUsize::new(0),
            job: AtomicPtr::new(ptr::null_mut()),
            is_closed: AtomicBool::new(false),
            has_sleepers: AtomicBool::new(false),
            sleep: Mutex::new(()),
            changed: Condvar::new(),
        }
    }

    pub(super) fn num_threads(&self) -> usize {
        self.num_threads
    }

    /// Begins a run; it is over when [`Self::current`] is none.
    ///
    /// # Safety
    /// No run is under way, and the job stays where it is until this one is over.
    pub(super) unsafe fn begin(&self, job: &Job<'_>) {
        self.job.store(ptr::from_ref(job).cast_mut().cast(), Ordering::Relaxed);
        let (index, num_pieces) = job.stage_from(0);
        self.open(index, num_pieces);
    }

    /// The stage whose pieces can be claimed.
    pub(super) fn current(&self) -> Option<Stage> {
        let stage = self.load();
        (stage.num_pieces() > 0).then_some(stage)
    }

    /// Claims the next piece of a thread's run of the stage, if one is left and the stage is still the current one.
    pub(super) fn claim(&self, stage: Stage, owner: usize) -> Option<Claim<'_>> {
        let first = owner * stage.num_pieces() / self.num_threads;
        let end = (owner + 1) * stage.num_pieces() / self.num_threads;
        let claimed = &self.claimed[owner].0;
        let mut last = Stage(claimed.load(Ordering::Relaxed));
        loop {
            let count = match last.number().cmp(&stage.number()) {
                std::cmp::Ordering::Less => 0,
                std::cmp::Ordering::Equal => last.num_pieces(),
                std::cmp::Ordering::Greater => return None,
            };
            // A stage that is over has no piece left: so nobody claims one of it.
            if first + count >= end {
                return None;
            }
            let next = stage.number() << PIECE_BITS | (count + 1) as u64;
            match claimed.compare_exchange_weak(last.0, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => {
                    // SAFETY: the run cannot end before this piece is reported.
                    let job = unsafe { &*self.job.load(Ordering::Relaxed) };
                    let stage = self.index.load(Ordering::Relaxed);
                    let index = first + count;
                    return Some(Claim { job, stage, index });
                }
                Err(other) => last = Stage(other),
            }
        }
    }

    /// Reports pieces as computed; who reports the last of a stage opens the next.
    pub(super) fn report(&self, stage: Stage, num_pieces: usize) {
        if num_pieces == 0 {
            return;
        }
        // Releases what was written for these pieces; the last to report acquires all.
        let num_done = self.num_done.0.fetch_add(num_pieces, Ordering::AcqRel) + num_pieces;
        if num_done == stage.num_pieces() {
            // SAFETY: the run is not over before `open`, which is not lent the job.
            let job = unsafe { &*self.job.load(Ordering::Relaxed) };
            let (index, num_pieces) = job.stage_from(self.index.load(Ordering::Relaxed) + 1);
            self.open(index, num_pieces);
        }
    }

    /// Opens a stage; without pieces the run is over.
    fn open(&self, index: usize, num_pieces: usize) {
        self.index.store(index, Ordering::Relaxed);
        self.num_done.0.store(0, Ordering::Relaxed);
        self.publish(self.load().next(num_pieces));
    }

    fn load(&self) -> Stage {
        Stage(self.current.0.load(Ordering::Acquire))
    }

    fn publish(&self, stage: Stage) {
        // In one order with `has_sleepers`: either this sees who goes to sleep, or that one sees the change.
        self.current.0.swap(stage.0, Ordering::SeqCst);
        if self.has_sleepers.load(Ordering::SeqCst) {
            let _guard = lock(&self.sleep);
            self.has_sleepers.store(false, Ordering::Relaxed);
            self.changed.notify_all();
        }
    }

    /// Ends the waiting of all threads for good.
    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
        self.publish(self.load().next(0));
    }

    /// Returns when the stage is over.
    pub(super) fn wait_in_run(&self, stage: Stage, stint: &mut Stint) {
        if self.spin(stage, STAGE_SPINS) {
            return;
        }
        for _ in 0..STAGE_YIELDS {
            thread::yield_now();
            if self.load() != stage {
                return stint.restart();
            }
        }
        self.sleep(stage);
        stint.restart();
    }

    /// Returns when a run is under way; false when the pool is closed.
    pub(super) fn wait_for_run(&self) -> bool {
        let now = self.load();
        if now.num_pieces() == 0 && !self.spin(now, RUN_SPINS) {
            self.sleep(now);
        }
        !self.is_closed.load(Ordering::Acquire)
    }

    fn spin(&self, stage: Stage, rounds: usize) -> bool {
        let rounds = if self.is_crowded { CROWDED_SPINS } else { rounds };
        (0..rounds).any(|_| {
            spin_loop();
            self.load() != stage
        })
    }

    fn sleep(&self, stage: Stage) {
        let mut guard = lock(&self.sleep);
        loop {
            // Said again after each wake-up: who published the stage before may have been off its core since, and has
            // only now taken back what this thread said for the stage after it.
            self.has_sleepers.store(true, Ordering::SeqCst);
            if self.current.0.load(Ordering::SeqCst) != stage.0 || self.is_closed.load(Ordering::Relaxed) {
                return;
            }
            guard = self.changed.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
