//! Queries, keys and values: the stages of the forward pass before attention.

use std::ops::Range;

use pyagent_kernels::attention::{BLOCK_TOKENS, KvLayout, expect_kv, store_kv};
use pyagent_kernels::elementwise;

use super::{Part, Pass};
use crate::adapters::Projection;
use crate::config::QueryGrowth;
use crate::model::{Attention, Linear, Mixer};
use crate::workspace::{Own, Patch};

impl Part<'_> {
    /// Queries, keys and values, head by head: multiplied, biased, normalised where the family does, rotated, stored.
    /// Where the norm is over all heads, the last three wait for [`Self::normalise_heads`].
    pub(super) unsafe fn project(
        &self,
        index: usize,
        layer: &Attention,
        (rows, units): (Range<usize>, Range<usize>),
        own: &mut Own,
    ) {
        let Pass { config, space, .. } = *self.pass;
        let input = self.attention_input(index);
        let head_dim = config.head_dim_of(index);
        let columns = |heads: Range<usize>| heads.start * head_dim..heads.end * head_dim;
        let (heads, kv_heads) = self.heads_of_units(index, units);
        // SAFETY: these heads' columns of these rows, and their KV slots, are this piece's.
        unsafe {
            self.each_slot(
                index,
                rows.clone(),
                kv_heads.clone(),
                |layout, _, block, slot, kv_head| {
                    expect_kv(layout, block, slot, kv_head);
                },
            );
            let mut query = space.query.patch(rows.clone(), columns(heads.clone()));
            if let Some(gate) = &layer.gate {
                self.gate_heads(gate, rows.clone(), heads, head_dim);
            }
            self.multiply_columns(&layer.query, input, None, &mut query);
            self.adapt(index, Projection::Query, &mut query, 0);
            let is_norm_wide = config.architecture.is_qk_norm_wide();
            let (mut key, mut value) = if is_norm_wide {
                let columns = columns(kv_heads);
                let key = space.key.patch(rows.clone(), columns.clone());
                (key, space.value.patch(rows, columns))
            } else {
                self.turn_for_earlier_chunks(index, layer.query_norm.as_deref(), &mut query);
                self.rotate_heads(index, layer.query_norm.as_deref(), &mut query, 0);
                self.grow_queries(index, &mut query);
                let key = Patch::own(&mut own.first, rows.clone(), columns(kv_heads.clone()));
                (key, Patch::own(&mut own.second, rows, columns(kv_heads)))
            };
            let Some(key_matrix) = &layer.key else { return };
            self.multiply_columns(key_matrix, input, None, &mut key);
            self.adapt(index, Projection::Key, &mut key, 0);
            match &layer.value {
                Some(matrix) => {
                    self.multiply_columns(matrix, input, None, &mut value);
                    self.adapt(index, Projection::Value, &mut value, 0);
                }
                None => key.rows().for_each(|row| value.row(row).copy_from_slice(key.row(row))),
            }
            if !is_norm_wide {
                self.rotate_heads(index, layer.key_norm.as_deref(), &mut key, 0);
                self.normalise_values(layer.value_norm.as_deref(), &mut value);
                self.store_heads(index, key, value);
            }
        }
    }

    /// Gates of some heads; where each has one, the piece with the first head computes those of all.
    ///
    /// # Safety
    /// As [`Self::project`].
    unsafe fn gate_heads(&self, gate: &Linear, rows: Range<usize>, heads: Range<usize>, head_dim: usize) {
        let Pass { config, space, .. } = *self.pass;
        let columns = match config.architecture.are_gates_of_heads() {
            true if heads.contains(&0) => 0..config.num_heads,
            true => return,
            false => heads.start * head_dim..heads.end * head_dim,
        };
        // SAFETY: no other piece has these columns.
        unsafe {
            let mut gates = space.gate.patch(rows, columns);
            self.multiply_columns(gate, &self.stream.hidden_input, None, &mut gates);
        }
    }

    /// The query heads and the key-value heads of some units of a layer's projections. A key-value head weighs as much as
    /// two query heads: spread between them, so that equal runs are equal work.
    fn heads_of_units(&self, index: usize, units: Range<usize>) -> (Range<usize>, Range<usize>) {
        let num_kv_heads = self.pass.own_kv_heads(index);
        if num_kv_heads == 0 {
            return (units, 0..0);
        }
        if self.pass.stores_alone(self.plan, index) {
            return (0..0, units);
        }
        let run = self.pass.config.num_heads / num_kv_heads + 1;
        let heads_before = |unit: usize| unit / run * (run - 1) + (unit % run).saturating_sub(1);
        let heads = heads_before(units.start)..heads_before(units.end);
        (heads, units.start.div_ceil(run)..units.end.div_ceil(run))
    }

    /// Normalises values head by head, where the family does.
    fn normalise_values(&self, norm: Option<&[f32]>, value: &mut Patch<'_>) {
        let Pass { config, isa, .. } = *self.pass;
        let Some(norm) = norm else { return };
        for row in value.rows() {
            elementwise::rms_norm_in_place(isa, value.row(row), norm, config.norm_epsilon);
        }
    }

    /// Queries and keys of a row, normalised over all heads, rotated; the keys stored, with the values.
    ///
    /// # Safety
    /// All of the row's heads are projected, and no other thread uses the row or its KV slots in this stage.
    pub(super) unsafe fn normalise_heads(&self, index: usize, row: usize) {
        let Pass { config, space, .. } = *self.pass;
        let Mixer::Attention(layer) = &self.pass.weights.layers[index].mixer else {
            return;
        };
        let rows = row..row + 1;
        // SAFETY: as the caller's.
        unsafe {
            let mut query = space.query.patch(rows.clone(), 0..config.query_size());
            self.rotate_heads(index, layer.query_norm.as_deref(), &mut query, 0);
            let mut key = space.key.patch(rows.clone(), 0..config.kv_size());
            self.rotate_heads(index, layer.key_norm.as_deref(), &mut key, 0);
            self.store_heads(index, key, space.value.patch(rows, 0..config.kv_size()));
        }
    }

    /// Stores keys and values of whole heads.
    ///
    /// # Safety
    /// Their KV slots are this thread's in this stage.
    unsafe fn store_heads(&self, index: usize, mut key: Patch<'_>, mut value: Patch<'_>) {
        let Pass { config, isa, .. } = *self.pass;
        let head_dim = config.head_dim_of(index);
        let kv_heads = key.columns().start / head_dim..key.columns().end / head_dim;
        self.each_slot(index, key.rows(), kv_heads, |layout, row, block, slot, kv_head| {
            let columns = kv_head * head_dim..(kv_head + 1) * head_dim;
            let (key, value) = (key.part(row, columns.clone()), value.part(row, columns));
            // SAFETY: as the caller's.
            unsafe { store_kv(isa, layout, block, slot, kv_head, key, value) };
        });
    }

    /// Calls `work` with the block and the slot of each row that is to be stored, for each key-value head.
    pub(super) fn each_slot(
        &self,
        index: usize,
        rows: Range<usize>,
        kv_heads: Range<usize>,
        mut work: impl FnMut(&KvLayout, usize, *mut u8, usize, usize),
    ) {
        if kv_heads.is_empty() {
            return; // the row's block may have no page yet
        }
        let (kv, layer) = (self.pass.kv, self.pass.kv_layer(index));
        for row in rows {
            // SAFETY: records are written in a stage of their own.
            if unsafe { self.has_slot(index, row) } {
                continue;
            }
            let (_, segment, position) = self.plan.rows[row];
            let blocks = kv.layer(layer, self.plan.segments[segment].tables);
            // SAFETY: the table covers the position by contract.
            let block = unsafe { blocks.block(position / BLOCK_TOKENS) };
            for kv_head in kv_heads.clone() {
                work(kv.pages.layout(layer), row, block, position % BLOCK_TOKENS, kv_head);
            }
        }
    }

    /// Makes queries larger at later positions, where the family does.
    pub(super) fn grow_queries(&self, index: usize, query: &mut Patch<'_>) {
        let config = self.pass.config;
        let is_meant = |growth: &QueryGrowth| !(growth.is_of_unrotated && config.rotary_layers[index]);
        let Some(growth) = config.query_growth.filter(is_meant) else {
            return;
        };
        for row in query.rows() {
            let factor = growth.at(self.plan.rows[row].2);
            elementwise::scale(self.pass.isa, query.row(row), factor);
        }
    }

    /// Makes of queries as they were projected those that keys of earlier chunks meet, where there are any: they lie behind
    /// all heads' own.
    ///
    /// # Safety
    /// As [`Self::project`].
    unsafe fn turn_for_earlier_chunks(&self, index: usize, norm: Option<&[f32]>, query: &mut Patch<'_>) {
        let Pass { config, space, .. } = *self.pass;
        let Some(dual) = config.dual_chunks else { return };
        for row in query.rows() {
            for chunks_before in dual.earlier_queries(self.plan.rows[row].2) {
                let behind = chunks_before * config.query_size();
                let columns = query.columns().start + behind..query.columns().end + behind;
                // SAFETY: as the caller's.
                let mut other = unsafe { space.query.patch(row..row + 1, columns) };
                other.row(row).copy_from_slice(query.row(row));
                self.rotate_heads(index, norm, &mut other, chunks_before);
            }
        }
    }

    /// Normalises heads where the family does, one by one or all together, and applies rotary positions where the layer
    /// has any, before that or after; of queries, those that keys of so many chunks before meet.
    fn rotate_heads(&self, index: usize, norm: Option<&[f32]>, heads: &mut Patch<'_>, chunks_before: usize) {
        let Pass { config, isa, .. } = *self.pass;
        let rope = &self.pass.rope[usize::from(config.window(index).is_some())];
        let is_norm_last = config.architecture.is_norm_after_rope();
        let normalise = |values: &mut [f32]| {
            if let Some(norm) = norm {
                elementwise::rms_norm_in_place(isa, values, norm, config.norm_epsilon);
            }
        };
        for row in heads.rows() {
            if !is_norm_last {
                normalise(heads.row(row));
            }
            if config.rotary_layers[index] {
                let position = self.plan.rows[row].2;
                let dual = config.dual_chunks;
                let (cos, sin) = rope.row(dual.map_or(position, |dual| dual.query_place(position, chunks_before)));
                for values in heads.row(row).chunks_exact_mut(config.head_dim_of(index)) {
                    elementwise::rope(isa, values, cos, sin, config.rope_style);
                }
            }
            if is_norm_last {
                normalise(heads.row(row));
            }
            let growth = config.dual_chunks.map(|dual| dual.growth(self.plan.rows[row].2));
            if let Some(growth) = growth.filter(|growth| *growth != 1.0) {
                elementwise::scale(isa, heads.row(row), growth);
            }
        }
    }
}
