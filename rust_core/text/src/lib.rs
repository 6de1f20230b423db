//! Code metrics and text scanning.
