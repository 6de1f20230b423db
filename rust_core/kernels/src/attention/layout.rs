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

/// Stores one token's keys and values (all heads, `[kv_head][head_dim]`) into a slot of a block.
///
/// # Panics
/// When `slot` is not in the block or a row has not `num_kv_heads * head_dim` numbers.
///
/// # Safety
/// `layer_base` is the first byte of at least `block + 1` blocks of `layout`, aligned for its numbers, and
/// nobody else uses the slot meanwhile.
pub unsafe fn store_kv(
    isa: Isa,
    layout: &KvLayout,
    layer_base: *mut u8,
    block: u32,
    slot: usize,
    k: &[f32],
    v: &[f32],
) {
    let width = layout.num_kv_heads * layout.head_dim;
    assert!(
        slot < BLOCK_TOKENS && k.len() == width && v.len() == width,
        "keys or values do not fit the block"
    );
    // SAFETY: the caller promises this block.
    let base = unsafe { layer_base.add(block as usize * layout.block_bytes()) };
    // SAFETY: the rows hold every head, and the slot is in the block, so each write is inside it.
    unsafe {
        match layout.dtype {
            KvType::F32 => scatter(layout, base.cast::<f32>(), slot, k, v),
            KvType::F16 => {
                // Converted in runs that fit the stack: a row may be long.
                let mut halves = [[0_u16; 256]; 2];
                for head in 0..layout.num_kv_heads {
                    for start in (0..layout.head_dim).step_by(256) {
                        let count = (layout.head_dim - start).min(256);
                        let row = head * layout.head_dim + start;
                        f32_to_f16(isa, &k[row..row + count], &mut halves[0][..count]);
                        f32_to_f16(isa, &v[row..row + count], &mut halves[1][..count]);
                        let base = base.cast::<u16>();
                        scatter_run(
                            layout,
                            base,
                            slot,
                            (head, start),
                            &halves[0][..count],
                            &halves[1][..count],
                        );
                    }
                }
            }
        }
    }
}

/// Writes whole rows of keys and values.
unsafe fn scatter<T: Copy>(layout: &KvLayout, base: *mut T, slot: usize, k: &[T], v: &[T]) {
    let heads = k.chunks_exact(layout.head_dim).zip(v.chunks_exact(layout.head_dim));
    for (head, (k, v)) in heads.enumerate() {
        // SAFETY: the caller promises the block and rows of every head.
        unsafe { scatter_run(layout, base, slot, (head, 0), k, v) };
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
