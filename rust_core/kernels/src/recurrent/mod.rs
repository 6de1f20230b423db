//! What recurrent layers keep instead of keys and values: a short convolution's last inputs, and matrices that each token
//! decays and adds to.
//!
//! Sixteen channels, or sixteen columns of a matrix, are a *cell* of state, which a kernel reads and writes in place for
//! any number of tokens of one sequence. A lane is one channel or one column and sums in one fixed order, token by token,
//! so that a text's state has the same bits whether its tokens come at once, in chunks or one by one, on every
//! instruction set.

mod channels;
mod convolution;
mod delta;
mod selective;
#[cfg(test)]
mod tests;

pub use channels::{ChannelScan, scan_channels};
pub use convolution::{Convolution, MOST_TAPS, convolve, history_len};
pub use delta::{Decays, DeltaRule, fade, l2_normalise, matrix_len, scan};
pub use selective::{SelectiveScan, selective_scan};

/// Channels of a convolution, or columns of a matrix, that share a cell.
pub const CELL_CHANNELS: usize = crate::lanes::LANES;
