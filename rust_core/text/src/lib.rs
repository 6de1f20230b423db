//! Code metrics, text scanning and replacing, nearest-neighbour search. Knows nothing of Python objects, models or the
//! network.

pub mod code_metrics;
pub mod nearest;
pub mod replace;
