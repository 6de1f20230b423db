//! A policy from elsewhere, which may fail or err: it is asked as long as it is right, then LRU goes on.

use super::{Content, EvictionPolicy, Lru, Place};

/// A policy that may fail; the text says how.
pub trait ForeignPolicy: Send {
    /// As [`EvictionPolicy::insert`].
    ///
    /// # Errors
    /// Whatever went wrong in it.
    fn insert(&mut self, block: u32, content: Content) -> Result<(), String>;
    /// As [`EvictionPolicy::hit`].
    ///
    /// # Errors
    /// Whatever went wrong in it.
    fn hit(&mut self, block: u32) -> Result<(), String>;
    /// As [`EvictionPolicy::release`].
    ///
    /// # Errors
    /// Whatever went wrong in it.
    fn release(&mut self, block: u32) -> Result<(), String>;
    /// As [`EvictionPolicy::hold`].
    ///
    /// # Errors
    /// Whatever went wrong in it.
    fn hold(&mut self, block: u32) -> Result<(), String>;
    /// As [`EvictionPolicy::evict`].
    ///
    /// # Errors
    /// Whatever went wrong in it.
    fn evict(&mut self) -> Result<Option<u32>, String>;
    /// As [`EvictionPolicy::forget`].
    ///
    /// # Errors
    /// Whatever went wrong in it.
    fn forget(&mut self, block: u32) -> Result<(), String>;
}

/// Keeps the order of release itself. The first failure or wrong answer of the foreign policy ends its use.
pub struct Supervised {
    foreign: Option<Box<dyn ForeignPolicy>>,
    error: Option<String>,
    order: Lru,
}

impl Supervised {
    /// For blocks below `num_pages`.
    pub fn new(foreign: Box<dyn ForeignPolicy>, num_pages: u32) -> Self {
        Self {
            foreign: Some(foreign),
            error: None,
            order: Lru::new(num_pages),
        }
    }

    fn tell(&mut self, call: impl FnOnce(&mut dyn ForeignPolicy) -> Result<(), String>) {
        let told = match &mut self.foreign {
            Some(foreign) => call(foreign.as_mut()),
            None => Ok(()),
        };
        if let Err(error) = told {
            self.retire(error);
        }
    }

    fn retire(&mut self, error: String) {
        self.foreign = None;
        self.error = Some(error);
    }

    /// The foreign policy's choice, if it made one that is released.
    fn ask(&mut self) -> Option<u32> {
        let fault = match self.foreign.as_deref_mut()?.evict() {
            Ok(Some(block)) if self.order.is_released(block) => return Some(block),
            Ok(Some(block)) => format!("evict() chose block {block}, which is not among those released"),
            Ok(None) if self.order.is_empty() => return None,
            Ok(None) => "evict() chose nothing although blocks are released".to_owned(),
            Err(error) => error,
        };
        self.retire(fault);
        None
    }
}

impl EvictionPolicy for Supervised {
    fn insert(&mut self, block: u32, content: Content) {
        self.tell(|foreign| foreign.insert(block, content));
        self.order.insert(block, content);
    }

    fn hit(&mut self, block: u32, _priority: i64) {
        self.tell(|foreign| foreign.hit(block));
    }

    fn release(&mut self, block: u32, place: Place) {
        self.tell(|foreign| foreign.release(block));
        self.order.release(block, place);
    }

    fn hold(&mut self, block: u32) {
        self.tell(|foreign| foreign.hold(block));
        self.order.hold(block);
    }

    fn evict(&mut self) -> Option<u32> {
        match self.ask() {
            Some(block) => {
                self.order.forget(block);
                Some(block)
            }
            None => self.order.evict(),
        }
    }

    fn forget(&mut self, block: u32) {
        self.tell(|foreign| foreign.forget(block));
        self.order.forget(block);
    }

    fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }

    fn check(&self, num_held: usize, num_released: usize) -> Result<(), String> {
        self.order.check(num_held, num_released)
    }
}
