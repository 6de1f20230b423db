//! Attention in plain Rust.

use super::kernel::{self, Group};
use crate::lanes::scalar::Scalar;

/// # Safety
/// As [`super::attend`].
pub(super) unsafe fn attend(group: &Group<'_>) {
    // SAFETY: the caller's promise.
    unsafe {
        match group.num_rows {
            1 => kernel::attend::<Scalar, 1, 1, 1>(group),
            2 => kernel::attend::<Scalar, 2, 1, 1>(group),
            3 => kernel::attend::<Scalar, 3, 1, 1>(group),
            4 => kernel::attend::<Scalar, 4, 1, 1>(group),
            _ => unreachable!("more rows than a group takes"),
        }
    }
}
