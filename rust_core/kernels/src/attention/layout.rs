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

/// One layer's blocks of one sequence: which pages hold them, and where in a page the layer lies.
///
/// A page is one piece of memory for the blocks of a few layers. Layers that do not fit one page share several: then a
/// block of the sequence has `pages_per_block` pages, of which the layer lies in one.
#[derive(Clone, Copy, Debug)]
pub struct LayerBlocks<'a> {
    /// The first byte of the layer in page 0.
    pub base: *mut u8,
    /// Bytes from one page to the next.
    pub page_bytes: usize,
    /// The pages of the sequence's blocks, in order.
    pub pages: &'a [u32],
    /// Pages of one block.
    pub pages_per_block: usize,
    /// Which of a block's pages holds the layer.
    pub page_in_block: usize,
}

impl LayerBlocks<'_> {
    /// How many blocks there are: positions `16 i` to `16 i + 15` are in block `i`.
    pub const fn len(&self) -> usize {
        self.pages.len() / self.pages_per_block
    }

    /// Whether there is no block.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The first byte of block `block`.
    ///
    /// # Safety
    /// The block is one of [`Self::len`], and its page exists.
    #[inline(always)]
    pub unsafe fn block(&self, block: usize) -> *mut u8 {
        // SAFETY: the caller promises the block and its page.
        unsafe {
            let page = *self
                .pages
                .get_unchecked(block * self.pages_per_block + self.page_in_block);
            self.base.add(page as usize * self.page_bytes)
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
/// `block` is the first byte of one layer's block of `layout`, aligned for its numbers, and nobody else uses the slot
/// of this head meanwhile.
pub unsafe fn store_kv(isa: Isa, layout: &KvLayout, block: *mut u8, slot: usize, kv_head: usize, k: &[f32], v: &[f32]) {
    let is_whole = k.len() == layout.head_dim && v.len() == layout.head_dim;
    assert!(
        slot < BLOCK_TOKENS && kv_head < layout.num_kv_heads && is_whole,
        "keys or values do not fit the block"
    );
    // SAFETY: the head and the slot are in the block, so each write is inside it.
    unsafe {
        match layout.dtype {
            KvType::F32 => scatter_run(layout, block.cast::<f32>(), slot, (kv_head, 0), k, v),
            KvType::F16 => {
                // Converted in runs that fit the stack: a head may be long.
                let mut halves = [[0_u16; 256]; 2];
                for start in (0..layout.head_dim).step_by(256) {
                    let count = (layout.head_dim - start).min(256);
                    f32_to_f16(isa, &k[start..start + count], &mut halves[0][..count]);
                    f32_to_f16(isa, &v[start..start + count], &mut halves[1][..count]);
                    let (k, v) = (&halves[0][..count], &halves[1][..count]);
                    scatter_run(layout, block.cast::<u16>(), slot, (kv_head, start), k, v);
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
