//! Code metrics, duplicates, text scanning and replacing, nearest-neighbour search, an index of tokens. Knows nothing of Python objects, models or the
//! network.

pub mod code_metrics;
pub mod duplicates;
pub mod names;
pub mod nearest;
pub mod replace;
pub mod token_index;
