//! When a thread offers its core to others.

use std::thread;
use std::time::{Duration, Instant};

/// How long a thread computes before it offers its core. Linux gives 1.4 to 4 ms before it takes the core at a tick,
/// which are 1 to 4 ms apart (`CONFIG_HZ`), and who goes of its own accord before loses the rest of its slice: with 250 ticks a second and
/// 2 ms a thread beside a busy loop still had its half of the core, with 1 ms two fifths, with 0.3 ms an eighth.
const STINT: Duration = Duration::from_millis(2);
/// A thread for which so much time passed within a few pieces was away, and begins anew.
const AWAY: Duration = Duration::from_millis(1);
/// How often the clock is read, about.
const READ_EVERY: Duration = Duration::from_micros(20);
/// Pieces between two looks at the clock at most.
const MOST_UNREAD: u32 = 64;

/// How long a thread has been on its core.
#[derive(Debug)]
pub(super) struct Stint {
    began: Instant,
    read: Instant,
    /// Pieces until the clock is read again, and how many that were when it was last read.
    unread: u32,
    period: u32,
}

impl Stint {
    pub(super) fn begin() -> Self {
        let now = Instant::now();
        Self {
            began: now,
            read: now,
            unread: 1,
            period: 1,
        }
    }

    /// Counts a piece; whether the thread should offer its core.
    pub(super) fn is_over(&mut self) -> bool {
        self.unread -= 1;
        if self.unread > 0 {
            return false;
        }
        let now = Instant::now();
        let passed = now.duration_since(self.read);
        let pieces = READ_EVERY.as_nanos() * u128::from(self.period) / passed.as_nanos().max(1);
        self.period = u32::try_from(pieces).unwrap_or(MOST_UNREAD).clamp(1, MOST_UNREAD);
        self.unread = self.period;
        self.read = now;
        if passed >= AWAY {
            self.began = now;
        }
        now.duration_since(self.began) >= STINT
    }

    /// Offers the core to others and begins anew.
    pub(super) fn pause(&mut self) {
        thread::yield_now();
        self.restart();
    }

    /// Begins anew, after the thread was off its core.
    pub(super) fn restart(&mut self) {
        self.began = Instant::now();
        self.read = self.began;
    }
}
