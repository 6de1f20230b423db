//! When a thread offers its core to others.

use std::thread;
use std::time::{Duration, Instant};

/// How long a thread computes before it offers its core. Linux takes it at a tick, 1 to 4 ms apart (`CONFIG_HZ`), when
/// the slice of some 1.5 to 3 ms is used up. Who goes earlier loses the rest of the slice: beside a busy loop, with 250
/// ticks a second, a thread that went after 2 ms kept its share of the core, after 0.3 ms a quarter of that.
const STINT: Duration = Duration::from_millis(2);
/// A thread for which so much more time passed than its last pieces would take was away, and begins anew.
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
    /// What a piece took then.
    piece: Duration,
}

impl Stint {
    pub(super) fn begin() -> Self {
        let now = Instant::now();
        Self {
            began: now,
            read: now,
            unread: 1,
            period: 1,
            piece: Duration::ZERO,
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
        if passed >= AWAY + 2 * self.piece * self.period {
            self.began = now;
        }
        self.read = now;
        self.piece = passed / self.period;
        let pieces = READ_EVERY.as_nanos() / self.piece.as_nanos().max(1);
        self.period = u32::try_from(pieces).unwrap_or(MOST_UNREAD).clamp(1, MOST_UNREAD);
        self.unread = self.period;
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
