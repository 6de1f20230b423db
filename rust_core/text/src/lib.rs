//! Code metrics and text scanning. Knows nothing of Python objects, models or the network.

pub mod code_metrics;
