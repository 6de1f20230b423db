//! Adapters in a forward pass: a stage before each product whose rows name any, and an addition to what it gives.
//!
//! The stage multiplies the rows of each adapter by its `A` matrices; the product's own pieces then add `B` times that to
//! their columns. A batch without adapters has neither. A row's numbers depend on the row and its adapter alone.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use pyagent_kernels::elementwise;
use pyagent_kernels::low_rank::add_low_rank;
use pyagent_kernels::matmul::{self, Activations};
use pyagent_kernels::pack::ROWS_PER_GROUP;

use super::{Part, Pass, Plan, Stage};
use crate::adapters::{Adapter, LowRank, Projection, Site};
use crate::workspace::Patch;

/// Rows of a piece at most: for them `A` is read once.
const TILE_ROWS: usize = 16;

/// The adapters that rows of a batch name.
#[derive(Default)]
pub(super) struct AdapterPlan {
    groups: Vec<Group>,
    /// Of each row of the batch, its group and its slot; none without an adapter.
    places: Vec<Option<(u32, u32)>>,
    /// Pieces of the stage before a product: projections' places, of some rows of a group.
    pieces: Vec<(usize, Range<usize>)>,
    /// Numbers of a slot for each projection.
    width: usize,
    num_slots: usize,
}

/// An adapter, and the rows that name it.
struct Group {
    adapter: Arc<Adapter>,
    rows: Vec<u32>,
    /// The slot of the first row.
    first_slot: usize,
}

impl AdapterPlan {
    /// Puts the rows of a batch together by adapter.
    pub(super) fn new(plan: &Plan<'_>, adapters: &HashMap<u64, Arc<Adapter>>) -> Self {
        if plan.segments.iter().all(|segment| segment.adapter_id == 0) {
            return Self::default();
        }
        let mut id_to_group = HashMap::new();
        let mut groups: Vec<Group> = Vec::new();
        let mut found = Vec::with_capacity(plan.rows.len());
        for (row, (_, segment, _)) in plan.rows.iter().enumerate() {
            let id = plan.segments[*segment].adapter_id;
            let group = adapters.get(&id).map(|adapter| {
                let group = *id_to_group.entry(id).or_insert(groups.len());
                if group == groups.len() {
                    groups.push(Group {
                        adapter: Arc::clone(adapter),
                        rows: Vec::new(),
                        first_slot: 0,
                    });
                }
                groups[group].rows.push(row as u32);
                (group as u32, groups[group].rows.len() as u32 - 1)
            });
            found.push(group);
        }
        let mut num_slots = 0;
        let mut pieces = Vec::new();
        for (index, group) in groups.iter_mut().enumerate() {
            group.first_slot = num_slots;
            num_slots += group.rows.len();
            let starts = (0..group.rows.len()).step_by(TILE_ROWS);
            pieces.extend(starts.map(|start| (index, start..(start + TILE_ROWS).min(group.rows.len()))));
        }
        let widest = groups.iter().map(|group| group.adapter.rank()).max().unwrap_or(0);
        Self {
            width: slot_width(widest),
            num_slots,
            places: found,
            pieces,
            groups,
        }
    }

    /// Whether a row names any.
    pub(super) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Rows that name one, and the numbers of each that a stage hands to its product.
    pub(super) fn size(&self) -> (usize, usize) {
        (self.num_slots, Site::MOST_PROJECTIONS * self.width)
    }

    /// The stage before a product, where an adapter of the batch adds to it.
    pub(super) fn stage(&self, layer: usize, site: Site) -> Option<Stage> {
        let is_touched = self.groups.iter().any(|group| group.adapter.touches(layer, site));
        is_touched.then_some(Stage::Adapt(layer, site))
    }

    pub(super) fn num_pieces(&self, site: Site) -> usize {
        self.pieces.len() * site.projections().len()
    }
}

/// Numbers that a slot has for a projection: whole cache lines.
fn slot_width(rank: usize) -> usize {
    rank.div_ceil(16) * 16
}

/// Bytes that steps of so many tokens take for adapters of up to a rank, beside what they take without: what a stage hands
/// to its product, and inputs in the form that `A` matrices need.
pub(crate) fn most_adapter_bytes(
    config: &crate::config::ModelConfig,
    tokens: usize,
    threads: usize,
    rank: usize,
) -> usize {
    let inputs = [config.query_size(), config.ffn_size.max(config.dense_size())];
    let dense = |rows: usize, columns: usize| (rows + 16).saturating_mul(columns + 32);
    let own = threads.saturating_mul(dense(super::FEW_ROWS, config.hidden_size));
    let shared = dense(tokens, config.hidden_size);
    let handed = tokens.saturating_mul(Site::MOST_PROJECTIONS * slot_width(rank));
    let numbers = inputs.iter().map(|columns| dense(tokens, *columns)).sum::<usize>();
    size_of::<f32>() * (numbers + own + shared + handed)
}

impl Part<'_> {
    /// Multiplies some rows of one adapter by its `A` of one projection.
    ///
    /// # Safety
    /// The input's rows are complete; no other thread has this piece.
    pub(super) unsafe fn reduce(&self, layer: usize, site: Site, piece: usize) {
        let Pass { isa, space, .. } = *self.pass;
        let plan = &self.plan.adapters;
        let projections = site.projections();
        let (group, tile) = &plan.pieces[piece / projections.len()];
        let (group, place) = (&plan.groups[*group], piece % projections.len());
        let Some(low) = group.adapter.of(layer, projections[place]) else {
            return;
        };
        let stride = space.low.width();
        let origin = space
            .low
            .base()
            .wrapping_add(group.first_slot * stride + place * plan.width);
        let groups = 0..low.rank().div_ceil(ROWS_PER_GROUP);
        let input = self.site_input(layer, site);
        // SAFETY: these slots' numbers for the projection are this piece's, and the input is complete.
        unsafe {
            matmul::matmul_gathered(isa, &low.down, groups, input, &group.rows, tile.clone(), origin, stride);
            for slot in tile.clone() {
                let start = origin.wrapping_add(slot * stride);
                let reduced = std::slice::from_raw_parts_mut(start, low.rank());
                elementwise::scale(isa, reduced, low.scale);
            }
        }
    }

    fn site_input(&self, layer: usize, site: Site) -> &Activations {
        match site {
            Site::Attention | Site::FeedForward => &self.stream.hidden_input,
            Site::AttentionOutput => self.block_input(self.pass.config.blocks_per_layer() * layer),
            Site::Down => self.block_input(self.pass.config.blocks_per_layer() * layer + 1),
        }
    }

    /// Adds to a product's columns what the rows' adapters add to it. The rows of `out` are the batch's, `first_row` on.
    ///
    /// # Safety
    /// The stage before the product is over.
    pub(super) unsafe fn adapt(&self, layer: usize, projection: Projection, out: &mut Patch<'_>, first_row: usize) {
        let Pass { isa, space, .. } = *self.pass;
        let plan = &self.plan.adapters;
        if plan.is_empty() {
            return;
        }
        let (_, place) = Site::of(projection);
        let first = out.columns().start;
        for row in out.rows() {
            let Some((group, slot)) = plan.places[row - first_row] else {
                continue;
            };
            let group = &plan.groups[group as usize];
            let Some(low) = group.adapter.of(layer, projection) else {
                continue;
            };
            // SAFETY: the slot was written in the stage before, and is only read.
            let slot = unsafe { space.low.shared_row(group.first_slot + slot as usize) };
            let reduced = &slot[place * plan.width..][..low.rank()];
            add(isa, low, reduced, out.row(row), first);
        }
    }
}

fn add(isa: pyagent_kernels::isa::Isa, low: &LowRank, reduced: &[f32], out: &mut [f32], first: usize) {
    add_low_rank(isa, out, reduced, &low.up, first);
    let columns = first..first + out.len();
    if let Some(resizing) = &low.resizing {
        elementwise::mul(isa, out, &resizing.factors[columns.clone()]);
        if let Some(shift) = &resizing.shift {
            elementwise::add(isa, out, &shift[columns]);
        }
    }
}
