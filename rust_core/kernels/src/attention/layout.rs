//! Where a token's keys and values lie in a block, and how they get there.

use crate::elementwise::f32_to_f16;
use crate::isa::Isa;

/// Tokens whose keys and values share a block.
pub const BLOCK_TOKENS: usize = 16;

/// How numbers are kept in key-value memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvType {
    /// As computed.
    F32,
    /// Rounded to half precision: half the memory and half the reading.
    F16,
}

impl KvType {
    /// Bytes of one number.
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 => 2,
        }
    }
}

/// The shape of one layer's part of a block.
///
/// A block holds its keys as `[kv_head][head_dim][token]` (transposed, so that a register is one dimension of
/// sixteen keys) and then its values as `[kv_head][token][head_dim]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayout {
    /// Key-value heads.
    pub num_kv_heads: usize,
    /// Numbers in a head; multiples of 16 are fast.
    pub head_dim: usize,
    /// How a number is kept.
    pub dtype: KvType,
}

impl KvLayout {
    /// Bytes of one layer's part of a block: its keys and values.
    pub const fn block_bytes(&self) -> usize {
        2 * self.num_kv_heads * self.head_bytes()
    }

    /// Bytes of one head's keys, or of its values, in a block.
    pub(super) const fn head_bytes(&self) -> usize {
        self.head_dim * BLOCK_TOKENS * self.dtype.bytes()
    }

    /// Bytes from the start of a block to a head's keys.
    pub(super) const fn keys_at(&self, kv_head: usize) -> usize {
        kv_head * self.head_bytes()
    }

    /// Bytes from the start of a block to a head's values.
    pub(super) const fn values_at(&self, kv_head: usize) -> usize {
        (self.num_kv_heads + kv_head) * self.head_bytes()
    }
}

/// Stores one token's keys and values of one head (`head_dim` numbers each) into a slot of a block.
///
/// # Panics
/// When there is no such head or slot, or a row has not `head_dim` numbers.
///
/// # Safety
/// `layer_base` is the first byte of at least `block + 1` blocks of `layout`, aligned for its numbers, and
/// nobody else uses the slot of this head meanwhile.
#[expect(
    clippy::too_many_arguments,
    reason = "a place of four coordinates and what to put there"
)]
pub unsafe fn store_kv(
    isa: Isa,
    layout: &KvLayout,
    layer_base: *mut u8,
    block: u32,
    slot: usize,
    kv_head: usize,
    k: &[f32],
    v: &[f32],
) {
    let is_whole = k.len() == layout.head_dim && v.len() == layout.head_dim;
    assert!(
        slot < BLOCK_TOKENS && kv_head < layout.num_kv_heads && is_whole,
        "keys or values do not fit the block"
    );
    // SAFETY: the caller promises this block.
    let base = unsafe { layer_base.add(block as usize * layout.block_bytes()) };
    // SAFETY: the head and the slot are in the block, so each write is inside it.
    unsafe {
        match layout.dtype {
            KvType::F32 => scatter_run(layout, base.cast::<f32>(), slot, (kv_head, 0), k, v),
            KvType::F16 => {
                // Converted in runs that fit the stack: a head may be long.
                let mut halves = [[0_u16; 256]; 2];
                for start in (0..layout.head_dim).step_by(256) {
                    let count = (layout.head_dim - start).min(256);
                    f32_to_f16(isa, &k[start..start + count], &mut halves[0][..count]);
                    f32_to_f16(isa, &v[start..start + count], &mut halves[1][..count]);
                    let (k, v) = (&halves[0][..count], &halves[1][..count]);
                    scatter_run(layout, base.cast::<u16>(), slot, (kv_head, start), k, v);
                }
            }
        }
    }
}

/// Writes the part of a head that begins at dimension `start`.
unsafe fn scatter_run<T: Copy>(
    layout: &KvLayout,
    base: *mut T,
    slot: usize,
    (head, start): (usize, usize),
    k: &[T],
    v: &[T],
) {
    // SAFETY: the caller promises the block; head, slot and dimensions are inside it.
    unsafe {
        let keys = base.byte_add(layout.keys_at(head)).add(start * BLOCK_TOKENS + slot);
        for (i, number) in k.iter().enumerate() {
            *keys.add(i * BLOCK_TOKENS) = *number;
        }
        let values = base
            .byte_add(layout.values_at(head))
            .add(slot * layout.head_dim + start);
        std::ptr::copy_nonoverlapping(v.as_ptr(), values, v.len());
    }
}
