//! An eviction policy that fails.

use pyagent_cache::{Content, ForeignPolicy};

/// What a faulty policy does when its calls are used up.
#[derive(Debug, Clone, Copy)]
pub enum Fault {
    Raises,
    ChoosesHeld,
    ChoosesNothing,
}

/// Evicts what was released last, and fails for good after some calls.
pub struct Faulty {
    pub calls_left: usize,
    pub fault: Fault,
    pub released: Vec<u32>,
}

impl Faulty {
    fn call(&mut self) -> Result<(), String> {
        match (self.calls_left, self.fault) {
            (0, Fault::Raises) => Err("out of calls".to_owned()),
            _ => {
                self.calls_left = self.calls_left.saturating_sub(1);
                Ok(())
            }
        }
    }
}

impl ForeignPolicy for Faulty {
    fn insert(&mut self, _block: u32, _content: Content) -> Result<(), String> {
        self.call()
    }

    fn hit(&mut self, _block: u32) -> Result<(), String> {
        self.call()
    }

    fn release(&mut self, block: u32) -> Result<(), String> {
        self.released.push(block);
        self.call()
    }

    fn hold(&mut self, block: u32) -> Result<(), String> {
        self.released.retain(|&other| other != block);
        self.call()
    }

    fn evict(&mut self) -> Result<Option<u32>, String> {
        self.call()?;
        Ok(match (self.calls_left, self.fault) {
            (0, Fault::ChoosesHeld) => Some(u32::MAX),
            (0, Fault::ChoosesNothing) => None,
            _ => self.released.pop(),
        })
    }

    fn forget(&mut self, block: u32) -> Result<(), String> {
        self.hold(block)
    }
}
