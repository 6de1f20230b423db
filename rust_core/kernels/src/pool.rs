//! Threads that run one closure together, meeting at barriers: a whole forward pass is one [`Pool::run`].
//!
//! A barrier costs about a microsecond when every thread has a core: waiting threads spin, then yield, and only
//! between runs do they sleep. Knows nothing of what is computed. A panic in any thread ends the run on all of
//! them and comes back as an error; the pool can be used again.
//!
//! A process has one pool for each number of threads ([`Pool::shared`]): two models that compute at the same time would
//! only wait for each other's threads at every barrier, so their runs take turns, in the order in which they came.

use std::any::Any;
use std::cell::Cell;
use std::hint::spin_loop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, JoinHandle};

/// Rounds of spinning at a barrier before the thread offers its core to others.
const BARRIER_SPINS: usize = 4_000;
/// Rounds of spinning for the next run before a thread sleeps: some 50 microseconds.
const IDLE_SPINS: usize = 2_000;
/// The same where there are more threads than cores, when spinning only keeps others from working.
const CROWDED_SPINS: usize = 32;

/// Why a run did not finish.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// A thread panicked; the others left the run at their next barrier.
    #[error("worker {worker} panicked: {message}")]
    Panicked {
        /// The first thread that did.
        worker: usize,
        /// What it said.
        message: String,
    },
}

/// A fixed number of threads; the one that calls [`Self::run`] is worker 0.
#[derive(Debug)]
pub struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    turns: Turns,
}

/// Lets one caller run at a time, in the order in which they came: a plain lock would go to whoever asks again first.
#[derive(Debug, Default)]
struct Turns {
    /// The next ticket, and the one whose turn it is.
    tickets: Mutex<(u64, u64)>,
    passed: Condvar,
}

/// A turn; the next begins when it is dropped.
struct Turn<'a>(&'a Turns);

/// The pools that are in use: threads, process (a forked child has the entries but not the threads), pool.
static SHARED: Mutex<Vec<(usize, u32, Weak<Pool>)>> = Mutex::new(Vec::new());

/// A thread's place in a run.
#[derive(Debug)]
pub struct Worker<'a> {
    shared: &'a Shared,
    index: usize,
    /// How often this thread has called [`Self::share`] in this run.
    shares: Cell<usize>,
}

/// Puts a counter on a cache line (and its prefetched neighbour) of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Padded<T>(T);

type Job<'a> = &'a (dyn Fn(&Worker) + Sync);

struct Shared {
    num_threads: usize,
    is_crowded: bool,
    /// Counts runs; a change wakes the threads.
    run: Padded<AtomicUsize>,
    /// Threads that have not finished the current run.
    unfinished: Padded<AtomicUsize>,
    /// Threads that wait at the current barrier.
    arrived: Padded<AtomicUsize>,
    /// Counts barriers passed.
    generation: Padded<AtomicUsize>,
    /// Per thread, how many of its chunks are taken in the current share and in the one after it.
    taken: Vec<Padded<[AtomicUsize; 2]>>,
    is_poisoned: AtomicBool,
    is_closed: AtomicBool,
    job: Mutex<Option<Job<'static>>>,
    failure: Mutex<Option<PoolError>>,
}

/// What a thread unwinds with when another has panicked.
struct Abandoned;

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("num_threads", &self.num_threads)
            .finish_non_exhaustive()
    }
}

impl Pool {
    /// Starts `threads - 1` threads (at least one thread takes part: the caller).
    ///
    /// # Panics
    /// If the system refuses a thread.
    pub fn new(threads: usize) -> Self {
        let num_threads = threads.max(1);
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let shared = Arc::new(Shared {
            num_threads,
            is_crowded: num_threads > cores,
            run: Padded::default(),
            unfinished: Padded::default(),
            arrived: Padded::default(),
            generation: Padded::default(),
            taken: (0..num_threads).map(|_| Padded::default()).collect(),
            is_poisoned: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            job: Mutex::new(None),
            failure: Mutex::new(None),
        });
        let threads = (1..num_threads)
            .map(|index| {
                let shared = Arc::clone(&shared);
                thread::Builder::new()
                    .name(format!("pyagent-{index}"))
                    .spawn(move || shared.serve(index))
                    .expect("a thread for the pool")
            })
            .collect();
        Self {
            shared,
            threads,
            turns: Turns::default(),
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
        self.shared.num_threads
    }

    /// Runs `job` once on every thread and returns when all have finished.
    ///
    /// All threads must pass the same sequence of [`Worker::barrier`] and [`Worker::share`]. A run inside a run
    /// of the same pool never ends. Runs of several callers follow one another.
    pub fn run(&self, job: impl Fn(&Worker) + Sync) -> Result<(), PoolError> {
        let _turn = self.turns.take();
        let shared = &*self.shared;
        let job: Job<'_> = &job;
        // SAFETY: only the lifetime changes. The threads use the job no later than they count themselves out
        // of `unfinished`, which is awaited below before this function can return or unwind.
        let job: Job<'static> = unsafe { std::mem::transmute::<Job<'_>, Job<'static>>(job) };
        shared.begin(job);
        for thread in &self.threads {
            thread.thread().unpark();
        }
        shared.work(0, job);
        shared.wait(|| shared.unfinished.0.load(Ordering::Acquire) == 0);
        shared.end()
    }
}

impl Turns {
    fn take(&self) -> Turn<'_> {
        let mut tickets = lock(&self.tickets);
        let mine = tickets.0;
        tickets.0 += 1;
        while tickets.1 != mine {
            tickets = self.passed.wait(tickets).unwrap_or_else(PoisonError::into_inner);
        }
        Turn(self)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut tickets = lock(&self.0.tickets);
        tickets.1 += 1;
        if tickets.0 != tickets.1 {
            self.0.passed.notify_all();
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.is_closed.store(true, Ordering::Release);
        self.shared.run.0.fetch_add(1, Ordering::Release);
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            // A worker catches the panics of jobs, so joining only fails if the pool itself is broken.
            let _ = thread.join();
        }
    }
}

impl Worker<'_> {
    /// This thread's number, from 0.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Threads that take part in the run.
    pub fn num_threads(&self) -> usize {
        self.shared.num_threads
    }

    /// Waits until every thread has come here; what they wrote before is then visible to all.
    pub fn barrier(&self) {
        let shared = self.shared;
        if shared.num_threads == 1 {
            return;
        }
        let generation = shared.generation.0.load(Ordering::Relaxed);
        if shared.arrived.0.fetch_add(1, Ordering::AcqRel) + 1 == shared.num_threads {
            shared.arrived.0.store(0, Ordering::Relaxed);
            shared.generation.0.store(generation.wrapping_add(1), Ordering::Release);
            return;
        }
        shared.wait(|| {
            shared.generation.0.load(Ordering::Acquire) != generation || shared.is_poisoned.load(Ordering::Acquire)
        });
        if shared.generation.0.load(Ordering::Acquire) == generation {
            resume_unwind(Box::new(Abandoned));
        }
    }

    /// Runs `work` for each of `0..num_chunks`, then meets the others at a barrier.
    ///
    /// Each thread has an equal run of neighbouring chunks, the same every time, and takes them in order; one that
    /// is done helps the others. So memory is read in sequence, and a thread that was held up holds up nobody.
    pub fn share(&self, num_chunks: usize, mut work: impl FnMut(usize)) {
        let Shared { num_threads, taken, .. } = self.shared;
        let share = self.shares.get();
        self.shares.set(share + 1);
        // Everyone left the last share at its barrier and nobody starts the next before this one's, so the
        // counter of both can be prepared now.
        taken[self.index].0[(share + 1) % 2].store(0, Ordering::Relaxed);
        for owner in (self.index..*num_threads).chain(0..self.index) {
            let first = owner * num_chunks / num_threads;
            let end = (owner + 1) * num_chunks / num_threads;
            loop {
                let chunk = first + taken[owner].0[share % 2].fetch_add(1, Ordering::Relaxed);
                if chunk >= end {
                    break;
                }
                work(chunk);
            }
        }
        self.barrier();
    }
}

impl Shared {
    fn begin(&self, job: Job<'static>) {
        *lock(&self.job) = Some(job);
        self.arrived.0.store(0, Ordering::Relaxed);
        for counter in self.taken.iter().flat_map(|taken| &taken.0) {
            counter.store(0, Ordering::Relaxed);
        }
        self.is_poisoned.store(false, Ordering::Relaxed);
        self.unfinished.0.store(self.num_threads, Ordering::Relaxed);
        self.run.0.fetch_add(1, Ordering::Release);
    }

    fn end(&self) -> Result<(), PoolError> {
        *lock(&self.job) = None;
        lock(&self.failure).take().map_or(Ok(()), Err)
    }

    /// A thread's life: wait for a run, take part, count oneself out.
    fn serve(&self, index: usize) {
        let mut seen = 0;
        loop {
            self.sleep_until_run_after(seen);
            seen = seen.wrapping_add(1);
            if self.is_closed.load(Ordering::Acquire) {
                return;
            }
            let job = *lock(&self.job);
            if let Some(job) = job {
                self.work(index, job);
            }
        }
    }

    fn sleep_until_run_after(&self, seen: usize) {
        let spins = if self.is_crowded { CROWDED_SPINS } else { IDLE_SPINS };
        for _ in 0..spins {
            if self.run.0.load(Ordering::Acquire) != seen {
                return;
            }
            spin_loop();
        }
        while self.run.0.load(Ordering::Acquire) == seen {
            thread::park();
        }
    }

    /// Runs the job on this thread; a panic poisons the run, so that nobody waits for this thread any more.
    fn work(&self, index: usize, job: Job<'_>) {
        let worker = Worker {
            shared: self,
            index,
            shares: Cell::new(0),
        };
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| job(&worker))) {
            if !payload.is::<Abandoned>() {
                lock(&self.failure).get_or_insert(PoolError::Panicked {
                    worker: index,
                    message: message_of(&*payload),
                });
            }
            self.is_poisoned.store(true, Ordering::Release);
        }
        self.unfinished.0.fetch_sub(1, Ordering::AcqRel);
    }

    fn wait(&self, is_over: impl Fn() -> bool) {
        let spins = if self.is_crowded { CROWDED_SPINS } else { BARRIER_SPINS };
        for _ in 0..spins {
            if is_over() {
                return;
            }
            spin_loop();
        }
        while !is_over() {
            thread::yield_now();
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
