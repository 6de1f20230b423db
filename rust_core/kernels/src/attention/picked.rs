//! Attention of one token to some of the positions before it: their keys are brought together in blocks of their own, chunk
//! by chunk, and attended to as a text of these alone.
//!
//! All heads of a call share what is brought together, which costs some of a key's arithmetic for each of them.

use super::partial::Partials;
use super::{
    AttentionArgs, AttentionScratch, BLOCK_TOKENS, CHUNK_TOKENS, KvLayout, KvType, LayerBlocks, reserve, run_group,
};
use crate::isa::Isa;

/// Blocks of a chunk.
const CHUNK_BLOCKS: usize = CHUNK_TOKENS / BLOCK_TOKENS;

/// Attention of one token to the positions that are `picked`, in this order, as [`super::attend`] gives it of a text that has
/// no others. `args` is of one token whose keys hold their values; its `first_position` is the last of as many positions as
/// are picked. The result may lie where the queries do.
///
/// # Panics
/// As [`super::attend`], and when the call is another.
///
/// # Safety
/// As [`super::attend`], for the positions that are picked, whose blocks are among `args.kv`.
pub unsafe fn attend_picked(
    isa: Isa,
    layout: &KvLayout,
    args: &AttentionArgs<'_>,
    picked: &[u32],
    scratch: &mut AttentionScratch,
) {
    let limit = check(isa, layout, args, picked);
    let whole = args.nothing_seen(layout, scratch);
    let here = reserve(&mut scratch.chunk, limit * Partials::row_len(layout.value_dim()));
    let here = Partials::new(here, layout.value_dim());
    // SAFETY: the caller's promises; the scratch was reserved.
    unsafe {
        args.transpose_queries(isa, layout, limit, scratch);
        for chunk in args.chunks() {
            with_gathered(layout, args, (picked, chunk), scratch, |layout, args, scratch| {
                args.each_group(layout, limit, chunk, scratch, |group, _, rows| {
                    group.partials = here;
                    run_group(isa, group);
                    whole.from(rows.start).fold(isa, here, rows.len());
                });
            });
        }
        whole.finish(isa, args, layout.value_dim());
    }
}

/// Computes one chunk of [`attend_picked`], to be given to [`super::merge_chunks`] with the same `args`.
///
/// # Panics
/// As [`attend_picked`].
///
/// # Safety
/// As [`attend_picked`] and [`super::attend_chunk`].
pub unsafe fn attend_picked_chunk(
    isa: Isa,
    layout: &KvLayout,
    args: &AttentionArgs<'_>,
    (picked, chunk): (&[u32], usize),
    results: *mut f32,
    scratch: &mut AttentionScratch,
) {
    let limit = check(isa, layout, args, picked);
    let results = Partials::new(results, layout.value_dim());
    // SAFETY: the caller's promises; the scratch was reserved.
    unsafe {
        args.transpose_queries(isa, layout, limit, scratch);
        with_gathered(layout, args, (picked, chunk), scratch, |layout, args, scratch| {
            args.each_group(layout, limit, chunk, scratch, |group, first_row, _| {
                group.partials = results.from(first_row);
                run_group(isa, group);
            });
        });
    }
}

fn check(isa: Isa, layout: &KvLayout, args: &AttentionArgs<'_>, picked: &[u32]) -> usize {
    let is_one_token = args.num_tokens == 1 && args.first_position + 1 == picked.len() && args.window.is_none();
    assert!(is_one_token && layout.values_in_keys.is_some(), "one token's latents");
    args.check(isa, layout)
}

/// Calls `work` with a chunk of picked keys in place of the sequence's.
unsafe fn with_gathered(
    layout: &KvLayout,
    args: &AttentionArgs<'_>,
    (picked, chunk): (&[u32], usize),
    scratch: &mut AttentionScratch,
    work: impl FnOnce(&KvLayout, &AttentionArgs<'_>, &mut AttentionScratch),
) {
    assert!(args.bias.is_none(), "picked positions have no distances");
    let layout = KvLayout {
        index_dim: 0,
        ..*layout
    };
    let num_blocks = picked.len().div_ceil(BLOCK_TOKENS);
    let base = reserve(
        &mut scratch.picked,
        CHUNK_BLOCKS * layout.block_bytes() / size_of::<f32>(),
    );
    let mut pages = std::mem::take(&mut scratch.picked_pages);
    let known = pages.len();
    pages.extend((known..num_blocks).map(|block| (block % CHUNK_BLOCKS) as u32));
    let positions = &picked[chunk * CHUNK_TOKENS..picked.len().min((chunk + 1) * CHUNK_TOKENS)];
    for (block, positions) in positions.chunks(BLOCK_TOKENS).enumerate() {
        // SAFETY: the caller promises the positions' blocks; the scratch has room for the chunk's.
        unsafe {
            let target = base.cast::<u8>().add(block * layout.block_bytes());
            match layout.dtype {
                KvType::F32 | KvType::Bf16 => gather::<u32>(&layout, args, positions, target),
                KvType::F16 => gather::<u16>(&layout, args, positions, target),
                KvType::Int8 => gather::<u8>(&layout, args, positions, target),
            }
        }
    }
    let gathered = AttentionArgs {
        kv: LayerBlocks {
            base: base.cast(),
            page_bytes: layout.block_bytes(),
            pages: &pages[..num_blocks],
            pages_per_block: 1,
            page_in_block: 0,
        },
        kv_head: 0,
        ..*args
    };
    work(&layout, &gathered, scratch);
    scratch.picked_pages = pages;
}

/// Brings a block of keys together; `T` is what lies in a register's lane.
unsafe fn gather<T: Copy>(layout: &KvLayout, args: &AttentionArgs<'_>, positions: &[u32], target: *mut u8) {
    let keys_at = layout.keys_at(args.kv_head);
    let num_registers = layout.head_dim.div_ceil(layout.dtype.width());
    // SAFETY: the caller promises the positions' blocks, and room for one; a place after the last position is the first's.
    unsafe {
        let source = |slot: usize| {
            let position = positions.get(slot).map_or(positions[0], |position| *position) as usize;
            (
                args.kv.block(position / BLOCK_TOKENS).add(keys_at),
                position % BLOCK_TOKENS,
            )
        };
        let sources: [(*mut u8, usize); BLOCK_TOKENS] = std::array::from_fn(source);
        let keys = sources.map(|(block, slot)| block.cast::<T>().add(slot));
        let out = target.cast::<T>();
        for register in 0..num_registers {
            for (slot, key) in keys.iter().enumerate() {
                *out.add(register * BLOCK_TOKENS + slot) = *key.add(register * BLOCK_TOKENS);
            }
        }
        if layout.dtype == KvType::Int8 {
            let scales = target.add(layout.scales_at()).cast::<f32>();
            for (place, (block, slot)) in sources.iter().enumerate() {
                *scales.add(place) = *block.add(layout.scales_at()).cast::<f32>().add(*slot);
            }
        }
    }
}
