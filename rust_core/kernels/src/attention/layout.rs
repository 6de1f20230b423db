//! Where a token's keys and values lie in a block, and how they get there.

use super::kernel::prefetch;
use crate::elementwise::{f32_to_bf16, f32_to_f16, f32_to_i8, i8_scale};
use crate::isa::Isa;

/// Tokens whose keys and values share a block.
pub const BLOCK_TOKENS: usize = 16;
/// Numbers converted at a time.
const RUN: usize = 256;

/// How numbers are kept in key-value memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvType {
    /// As computed.
    F32,
    /// Rounded to half precision: half the memory and half the reading.
    F16,
    /// Rounded to bfloat16, as are the queries and the weights of the values: three bits fewer than half precision, and
    /// products that some CPUs take two at a time.
    Bf16,
    /// Integers of 8 bits, with one scale for each token's keys of a head and one for its values.
    Int8,
}

impl KvType {
    /// Every type, widest first.
    pub const ALL: [Self; 4] = [Self::F32, Self::F16, Self::Bf16, Self::Int8];

    /// The name that settings use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Int8 => "int8",
        }
    }

    /// Bytes of one number.
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Int8 => 1,
        }
    }

    /// Dimensions of a key, or tokens of a value, that lie side by side.
    pub(super) const fn width(self) -> usize {
        match self {
            Self::Bf16 => 2,
            _ => 1,
        }
    }

    /// Bytes of the scales of one head's keys, or of its values, in a block.
    const fn scale_bytes(self) -> usize {
        match self {
            Self::Int8 => BLOCK_TOKENS * size_of::<f32>(),
            _ => 0,
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

    /// The same blocks from so many bytes of a layer's part on.
    pub(super) const fn from(&self, offset: usize) -> Self {
        Self {
            base: self.base.wrapping_add(offset),
            ..*self
        }
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
/// sixteen keys) and then its values as `[kv_head][token][head_dim]`. Of integers, each head's numbers are followed by
/// the scales of the sixteen tokens. Of bfloat16, a register is two dimensions of sixteen keys, or sixteen dimensions of
/// two values, in turns: `[kv_head][head_dim / 2][token][2]` (an odd dimension more is 0) and
/// `[kv_head][token / 2][head_dim][2]`. Where values are the first numbers of keys, a block holds its keys alone. Index keys
/// follow them, laid out as the keys of one more head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayout {
    /// Key-value heads.
    pub num_kv_heads: usize,
    /// Numbers in a head; multiples of 16 are fast.
    pub head_dim: usize,
    /// Latent attention: how many of a key's first numbers are its value; `None` where values lie by themselves.
    pub values_in_keys: Option<usize>,
    /// Sparse attention: numbers of a token's index key, which lies behind all else; 0 where there is none.
    pub index_dim: usize,
    /// How a number is kept.
    pub dtype: KvType,
}

impl KvLayout {
    /// Bytes of one layer's part of a block: its keys and values, and its index keys.
    pub const fn block_bytes(&self) -> usize {
        match self.index() {
            Some(index) => self.index_at() + index.head_bytes(),
            None => self.index_at(),
        }
    }

    /// Bytes from the start of a block to its index keys.
    pub const fn index_at(&self) -> usize {
        let parts = if self.values_in_keys.is_some() { 1 } else { 2 };
        parts * self.num_kv_heads * self.head_bytes()
    }

    /// How index keys lie, from [`Self::index_at`] on: as one head's keys; `None` where there are none.
    pub const fn index(&self) -> Option<Self> {
        if self.index_dim == 0 {
            return None;
        }
        Some(Self {
            num_kv_heads: 1,
            head_dim: self.index_dim,
            values_in_keys: Some(self.index_dim),
            index_dim: 0,
            dtype: self.dtype,
        })
    }

    /// Numbers of a value.
    pub const fn value_dim(&self) -> usize {
        match self.values_in_keys {
            Some(count) => count,
            None => self.head_dim,
        }
    }

    /// Numbers of a value that lies by itself.
    const fn stored_value_dim(&self) -> usize {
        if self.values_in_keys.is_some() {
            0
        } else {
            self.head_dim
        }
    }

    /// Bytes of one head's keys, or of its values, in a block.
    const fn head_bytes(&self) -> usize {
        self.scales_at() + self.dtype.scale_bytes()
    }

    /// Bytes from the start of a head's keys, or of its values, to their scales.
    pub(super) const fn scales_at(&self) -> usize {
        self.head_dim.next_multiple_of(self.dtype.width()) * BLOCK_TOKENS * self.dtype.bytes()
    }

    /// Bytes from the start of a block to a head's keys.
    pub(super) const fn keys_at(&self, kv_head: usize) -> usize {
        kv_head * self.head_bytes()
    }

    /// Bytes from the start of a block to a head's values: its keys where these hold them.
    pub(super) const fn values_at(&self, kv_head: usize) -> usize {
        let before = if self.values_in_keys.is_some() {
            0
        } else {
            self.num_kv_heads
        };
        (before + kv_head) * self.head_bytes()
    }
}

/// Asks for the memory of a token's keys and values of one head, which are soon stored.
///
/// # Safety
/// As [`store_kv`].
pub unsafe fn expect_kv(layout: &KvLayout, block: *mut u8, slot: usize, kv_head: usize) {
    const LINE: usize = 64;
    let number = layout.dtype.bytes() * layout.dtype.width();
    let row = layout.stored_value_dim() * number;
    // SAFETY: the head and the slot are in the block.
    let (keys, values) = unsafe {
        let values = layout.values_at(kv_head) + slot / layout.dtype.width() * row;
        (block.add(layout.keys_at(kv_head)), block.add(values))
    };
    for at in (0..layout.scales_at()).step_by(LINE) {
        prefetch(keys.wrapping_add(at));
    }
    for at in (0..row).step_by(LINE) {
        prefetch(values.wrapping_add(at));
    }
}

/// Stores one token's keys and values of one head (`head_dim` numbers each; no values where keys hold them) into a slot
/// of a block.
///
/// # Panics
/// When there is no such head or slot, or a row has another length.
///
/// # Safety
/// `block` is the first byte of one layer's block of `layout`, aligned for its numbers, and nobody else uses the slot
/// of this head meanwhile.
pub unsafe fn store_kv(isa: Isa, layout: &KvLayout, block: *mut u8, slot: usize, kv_head: usize, k: &[f32], v: &[f32]) {
    let is_whole = k.len() == layout.head_dim && v.len() == layout.stored_value_dim();
    assert!(
        slot < BLOCK_TOKENS && kv_head < layout.num_kv_heads && is_whole,
        "keys or values do not fit the block"
    );
    let place = Slot {
        layout,
        block,
        slot,
        kv_head,
    };
    // SAFETY: the head and the slot are in the block, so each write is inside it.
    unsafe {
        match layout.dtype {
            KvType::F32 => place.scatter::<f32, 1>(0, k, v),
            KvType::F16 => place.convert::<u16, 1>([k, v], |row, _, out| f32_to_f16(isa, row, out)),
            KvType::Bf16 => place.convert::<u16, 2>([k, v], |row, _, out| f32_to_bf16(isa, row, out)),
            KvType::Int8 => {
                let scales = [i8_scale(isa, k), i8_scale(isa, v)];
                place.write_scales(scales);
                place.convert::<i8, 1>([k, v], |row, which, out| f32_to_i8(isa, row, scales[which], out));
            }
        }
    }
}

/// A token's place in a block, for one head.
struct Slot<'a> {
    layout: &'a KvLayout,
    block: *mut u8,
    slot: usize,
    kv_head: usize,
}

impl Slot<'_> {
    /// Converts keys (0) and values (1) in runs that fit the stack, as a head may be long, and writes them.
    unsafe fn convert<T: Copy + Default, const WIDTH: usize>(
        &self,
        rows: [&[f32]; 2],
        convert: impl Fn(&[f32], usize, &mut [T]),
    ) {
        let mut narrow = [[T::default(); RUN]; 2];
        for start in (0..self.layout.head_dim).step_by(RUN) {
            let count = (self.layout.head_dim - start).min(RUN);
            let counts = rows.map(|row| count.min(row.len()));
            for (which, count) in counts.into_iter().enumerate() {
                let first = start.min(rows[which].len());
                convert(&rows[which][first..first + count], which, &mut narrow[which][..count]);
            }
            // SAFETY: the caller promises the block; head, slot and dimensions are inside it.
            unsafe { self.scatter::<T, WIDTH>(start, &narrow[0][..counts[0]], &narrow[1][..counts[1]]) };
        }
    }

    /// Writes the dimensions from `start` on; `WIDTH` is that of the layout's type.
    unsafe fn scatter<T: Copy + Default, const WIDTH: usize>(&self, start: usize, k: &[T], v: &[T]) {
        let Self { layout, slot, .. } = *self;
        let key_index = |d: usize| (d / WIDTH * BLOCK_TOKENS + slot) * WIDTH + d % WIDTH;
        let value_index = |d: usize| (slot / WIDTH * layout.head_dim + d) * WIDTH + slot % WIDTH;
        // SAFETY: the caller promises the block; head, slot and dimensions are inside it.
        unsafe {
            let keys = self.block.add(layout.keys_at(self.kv_head)).cast::<T>();
            for (i, number) in k.iter().enumerate() {
                *keys.add(key_index(start + i)) = *number;
            }
            for pad in layout.head_dim..layout.head_dim.next_multiple_of(WIDTH) {
                *keys.add(key_index(pad)) = T::default();
            }
            let values = self.block.add(layout.values_at(self.kv_head)).cast::<T>();
            for (i, number) in v.iter().enumerate() {
                *values.add(value_index(start + i)) = *number;
            }
        }
    }

    /// Writes the scales of keys and values.
    unsafe fn write_scales(&self, scales: [f32; 2]) {
        let heads = [self.layout.keys_at(self.kv_head), self.layout.values_at(self.kv_head)];
        let has_values = self.layout.values_in_keys.is_none();
        for (head, scale) in heads.into_iter().zip(scales).take(1 + usize::from(has_values)) {
            // SAFETY: the caller promises the block, which has scales after the numbers of each head.
            unsafe {
                let first = self.block.add(head + self.layout.scales_at()).cast::<f32>();
                *first.add(self.slot) = scale;
            }
        }
    }
}
