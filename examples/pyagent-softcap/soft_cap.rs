//! Bounds logits softly: `cap * tanh(logit / cap)`, which keeps their order.

/// # Safety
/// `logits` is the address of `len` floats that nobody else uses meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn soft_cap(logits: *mut f32, len: usize, cap: f32) {
    // SAFETY: the caller says so.
    let logits = unsafe { std::slice::from_raw_parts_mut(logits, len) };
    for logit in logits {
        if *logit > f32::NEG_INFINITY {
            *logit = cap * (*logit / cap).tanh();
        }
    }
}
