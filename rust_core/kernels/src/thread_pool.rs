//! Threads that compute the pieces of one stage after another: a whole forward pass is one [`ThreadPool::run`].
//!
//! A piece is computed by whoever claims it, and a stage is over when its pieces are computed, not when every thread has
//! come: one that the operating system took off its core between two pieces holds up nobody, and finds its way when it
//! is back. So that it is taken off there and not inside a piece, a thread offers its core to others of its own accord
//! before its time slice ends ([`Stint`]). Who waits spins for some microseconds, as the next stage is usually that near, then
//! offers its core, then sleeps, which lets the scheduler put whoever holds the last piece on this core.
//!
//! Knows nothing of what is computed. A panic in any piece ends the run and comes back as an error; the pool can be
//! used again.
//!
//! A process has one pool for each number of threads ([`ThreadPool::shared`]): two models that compute at the same time would
//! only take each other's cores, so their runs take turns, in the order in which they came.

mod stages;
mod stint;
mod turns;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, JoinHandle};

use stages::{Job, Stages};
use stint::Stint;
use turns::Turns;

/// Why a run did not finish.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ThreadPoolError {
    /// A piece panicked; those that were not yet claimed were left out.
    #[error("thread {thread} panicked: {message}")]
    Panicked {
        /// The first thread that did.
        thread: usize,
        /// What it said.
        message: String,
    },
}

/// A part of a stage, to be computed by one thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The stage's number, from 0.
    pub stage: usize,
    /// The piece's number in its stage, from 0.
    pub index: usize,
    /// The thread that computes it, from 0: no two pieces with the same number here are computed at the same time.
    pub thread: usize,
}

/// A fixed number of threads; the one that calls [`Self::run`] is thread 0.
#[derive(Debug)]
pub struct ThreadPool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    turns: Turns,
    /// The callers' stint, one after the other.
    stint: Mutex<Stint>,
}

/// The pools that are in use: threads, process (a forked child has the entries but not the threads), pool.
static SHARED: Mutex<Vec<(usize, u32, Weak<ThreadPool>)>> = Mutex::new(Vec::new());

#[derive(Debug)]
struct Shared {
    stages: Stages,
    is_running: AtomicBool,
    is_poisoned: AtomicBool,
    failure: Mutex<Option<ThreadPoolError>>,
}

impl ThreadPool {
    /// Starts `threads - 1` threads (at least one thread takes part: the caller).
    ///
    /// # Panics
    /// If the system refuses a thread.
    pub fn new(threads: usize) -> Self {
        let shared = Arc::new(Shared {
            stages: Stages::new(threads.max(1)),
            is_running: AtomicBool::new(false),
            is_poisoned: AtomicBool::new(false),
            failure: Mutex::new(None),
        });
        let threads = (1..shared.stages.num_threads())
            .map(|thread| {
                let shared = Arc::clone(&shared);
                thread::Builder::new()
                    .name(format!("pyagent-{thread}"))
                    .spawn(move || shared.serve(thread))
                    .expect("a thread for the pool")
            })
            .collect();
        Self {
            shared,
            threads,
            turns: Turns::default(),
            stint: Mutex::new(Stint::begin()),
        }
    }

    /// The process's pool of so many threads; started if nobody uses one, stopped when nobody does any more.
    pub fn shared(threads: usize) -> Arc<Self> {
        let key = (threads.max(1), std::process::id());
        let find = |pools: &[(usize, u32, Weak<Self>)]| {
            let same = pools.iter().filter(|(threads, process, _)| (*threads, *process) == key);
            same.filter_map(|(.., pool)| pool.upgrade()).next()
        };
        if let Some(pool) = find(&lock(&SHARED)) {
            return pool;
        }
        // Not under the lock, which a child forked meanwhile would find locked for ever.
        let pool = Arc::new(Self::new(key.0));
        let mut pools = lock(&SHARED);
        if let Some(other) = find(&pools) {
            return other;
        }
        pools.retain(|(.., pool)| pool.strong_count() > 0);
        pools.push((key.0, key.1, Arc::downgrade(&pool)));
        pool
    }

    /// Threads that take part in a run.
    pub fn num_threads(&self) -> usize {
        self.shared.stages.num_threads()
    }

    /// Computes the pieces of each stage, `num_pieces` of them, when those of the stage before are computed; what was
    /// written for them is then visible to all.
    ///
    /// Each thread has an equal run of neighbouring pieces, the same every time, and takes them in order; one that is
    /// done helps the others. So memory is read in sequence. A run inside a run of the same pool never ends; runs of
    /// several callers follow one another.
    ///
    /// # Panics
    /// When a stage has more than 16 million pieces.
    pub fn run(&self, num_pieces: &[usize], compute: impl Fn(Piece) + Sync) -> Result<(), ThreadPoolError> {
        let _turn = self.turns.take();
        let shared = &*self.shared;
        assert!(!shared.is_running.swap(true, Ordering::Acquire), "one run at a time");
        let compute: &(dyn Fn(Piece) + Sync) = &compute;
        let job = Job { num_pieces, compute };
        // SAFETY: the job outlives the run: this function leaves when no stage is current, and nothing between
        // unwinds, as `work` catches what pieces throw.
        unsafe { shared.stages.begin(&job) };
        let mut stint = lock(&self.stint);
        while let Some(stage) = shared.stages.current() {
            shared.work(stage, 0, &mut stint);
            shared.stages.wait_in_run(stage, &mut stint);
        }
        shared.end()
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.shared.stages.close();
        for thread in self.threads.drain(..) {
            // A thread catches the panics of pieces, so joining only fails if the pool itself is broken.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn end(&self) -> Result<(), ThreadPoolError> {
        self.is_poisoned.store(false, Ordering::Relaxed);
        let failure = lock(&self.failure).take();
        self.is_running.store(false, Ordering::Release);
        failure.map_or(Ok(()), Err)
    }

    /// A thread's life: take part in every stage it comes to see, sleep between runs.
    fn serve(&self, thread: usize) {
        let mut stint = Stint::begin();
        while self.stages.wait_for_run() {
            while let Some(stage) = self.stages.current() {
                self.work(stage, thread, &mut stint);
                self.stages.wait_in_run(stage, &mut stint);
            }
        }
    }

    /// Computes pieces of a stage until none is left to claim.
    fn work(&self, stage: stages::Stage, thread: usize, stint: &mut Stint) {
        let mut num_done = 0;
        for owner in (thread..self.stages.num_threads()).chain(0..thread) {
            while let Some(claim) = self.stages.claim(stage, owner) {
                self.compute(&claim, thread);
                num_done += 1;
                if stint.is_over() {
                    // Nothing may hang on a thread that is away.
                    self.stages.report(stage, std::mem::take(&mut num_done));
                    stint.pause();
                }
            }
        }
        self.stages.report(stage, num_done);
    }

    /// Computes a piece; after a panic, which is kept, the run's other pieces are only counted.
    fn compute(&self, claim: &stages::Claim<'_>, thread: usize) {
        if self.is_poisoned.load(Ordering::Relaxed) {
            return;
        }
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| claim.compute(thread))) {
            let message = message_of(&*payload);
            lock(&self.failure).get_or_insert(ThreadPoolError::Panicked { thread, message });
            self.is_poisoned.store(true, Ordering::Relaxed);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while holding one of these, and what they hold is whole at any time.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn message_of(payload: &(dyn Any + Send)) -> String {
    if let Some(text) = payload.downcast_ref::<&str>() {
        (*text).to_owned()
    } else if let Some(text) = payload.downcast_ref::<String>() {
        text.clone()
    } else {
        "no message".to_owned()
    }
}

#[cfg(test)]
mod tests;
