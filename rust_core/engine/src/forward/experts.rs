//! Mixtures of experts: a router rates a layer's experts for each token, and a few of them compute it.
//!
//! A step's tokens are put in order of their experts, a token once for each it has, so that an expert's weights are read
//! once for all of its tokens. What a token gets is the sum of its experts' outputs in their order, each times its
//! weight: neither depends on the other tokens of the step, and so no bit of the sum does. An expert that all tokens share
//! comes after them.

mod choice;
mod loads;
mod separate;

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use pyagent_kernels::elementwise;
use pyagent_kernels::pack::{BLOCK_COLS, ROWS_PER_GROUP};

use super::{GATE_BLOCKS, MOST_GROUPS, PIECES_PER_THREAD, PRODUCT_TILE, Part, Pass, Plan, Tiling, part};
use crate::config::ModelConfig;
use crate::model::{FeedForward, Gated, Shared};
use crate::workspace::{Own, Patch, Rows};

pub use loads::ExpertLoads;

/// Groups of an output's columns in a piece at most: its tile is as wide as a gate's.
const OUTPUT_GROUPS: usize = GATE_BLOCKS * BLOCK_COLS / ROWS_PER_GROUP;

/// How much of a layer's routing is done.
#[derive(Default)]
pub(super) struct RoutingPlan {
    /// Of each tile of tokens, the pieces that are done.
    tiles: Vec<AtomicUsize>,
    /// Tiles that are done.
    num_done: AtomicUsize,
}

impl RoutingPlan {
    pub(super) fn new(plan: &Plan<'_>, config: &ModelConfig) -> Self {
        let num_tiles = config.experts.map_or(0, |_| router_tiling(plan, config).num_tiles);
        Self {
            tiles: (0..num_tiles).map(|_| AtomicUsize::new(0)).collect(),
            num_done: AtomicUsize::new(0),
        }
    }
}

/// Which experts the tokens of a step have in the layer that is computed.
pub struct Routing {
    /// Of each token and expert, the expert's weight: 0 where the token has it not. Before, the router's ratings.
    pub weights: Rows,
    /// How much of the shared expert each token gets, where that is weighed.
    pub shared: Rows,
    /// How many tokens each expert has had.
    pub loads: Arc<ExpertLoads>,
    slots: RwLock<Slots>,
}

/// Tokens in order of their experts.
#[derive(Default)]
struct Slots {
    /// The token of each slot.
    tokens: Vec<u32>,
    /// Neighbouring slots of one expert, each a tile at most.
    runs: Vec<Run>,
}

struct Run {
    expert: usize,
    slots: Range<usize>,
}

/// Slots of an expert.
#[derive(Clone, Copy)]
pub(super) struct Routed<'a> {
    /// The token of each slot.
    pub(super) tokens: &'a [u32],
    pub(super) expert: usize,
}

impl Routing {
    /// No token's.
    pub fn new(config: &ModelConfig) -> Self {
        Self {
            weights: Rows::new(config.experts.map_or(0, |experts| experts.num_experts)),
            shared: Rows::new(usize::from(
                config.experts.is_some_and(|experts| experts.is_shared_gated),
            )),
            loads: Arc::new(ExpertLoads::new(config)),
            slots: RwLock::default(),
        }
    }

    /// Makes room for so many tokens.
    pub fn reserve(&mut self, config: &ModelConfig, tokens: usize) {
        self.weights.reserve(tokens);
        self.shared.reserve(tokens);
        if config.experts.is_some() {
            let Slots { tokens: of_slots, runs } = self.slots.get_mut().unwrap_or_else(PoisonError::into_inner);
            of_slots.clear();
            of_slots.reserve_exact(most_slots(config, tokens));
            runs.clear();
            runs.reserve_exact(most_runs(config, tokens));
        }
    }

    /// Bytes held.
    pub fn bytes(&mut self) -> usize {
        let slots = self.slots.get_mut().unwrap_or_else(PoisonError::into_inner);
        let runs = slots.runs.capacity() * size_of::<Run>();
        let slots = slots.tokens.capacity() * size_of::<u32>() + runs;
        self.weights.bytes() + self.shared.bytes() + self.loads.bytes() + slots
    }

    /// Puts the first `num_tokens` tokens in order of a layer's experts, and counts them.
    ///
    /// # Safety
    /// Their weights are complete, and nobody writes them.
    unsafe fn order(&self, layer: usize, num_tokens: usize) {
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let Slots { tokens, runs } = &mut *slots;
        tokens.clear();
        runs.clear();
        for expert in 0..self.weights.width() {
            let first = tokens.len();
            // SAFETY: as the caller's.
            let has_it = |token: &usize| unsafe { self.weights.shared_row(*token)[expert] != 0.0 };
            tokens.extend((0..num_tokens).filter(has_it).map(|token| token as u32));
            self.loads.note(layer, expert, tokens.len() - first);
            let starts = (first..tokens.len()).step_by(PRODUCT_TILE);
            runs.extend(starts.map(|start| Run {
                expert,
                slots: start..tokens.len().min(start + PRODUCT_TILE),
            }));
        }
    }
}

/// Slots that a step of so many tokens has at most: one for each token and expert of its; one for each token without.
pub(crate) fn most_slots(config: &ModelConfig, tokens: usize) -> usize {
    tokens.saturating_mul(config.experts.map_or(1, |experts| experts.num_used))
}

/// Runs of them at most.
fn most_runs(config: &ModelConfig, tokens: usize) -> usize {
    let num_slots = most_slots(config, tokens);
    let num_experts = config.experts.map_or(0, |experts| experts.num_experts);
    num_slots.div_ceil(PRODUCT_TILE) + num_experts.min(num_slots)
}

/// Columns of a piece of the experts' outputs at most.
pub(super) fn most_output_columns(config: &ModelConfig) -> usize {
    let most = OUTPUT_GROUPS * ROWS_PER_GROUP;
    config.experts.map_or(0, |_| config.hidden_size.min(most))
}

/// How the product of a router is cut.
pub(super) fn router_tiling(plan: &Plan<'_>, config: &ModelConfig) -> Tiling {
    let num_experts = config.experts.map_or(0, |experts| experts.num_experts);
    let groups = num_experts.div_ceil(ROWS_PER_GROUP);
    Tiling::new(plan.num_rows(), groups, MOST_GROUPS, plan.num_threads)
}

/// How experts' outputs are cut: a piece adds up some columns of all tokens.
pub(super) fn output_tiling(plan: &Plan<'_>, config: &ModelConfig) -> Tiling {
    let groups = config.hidden_size.div_ceil(ROWS_PER_GROUP);
    Tiling::new(plan.num_rows(), groups, OUTPUT_GROUPS, plan.num_threads).of_columns(plan.num_threads)
}

/// How the inside of the expert is cut that all tokens share.
fn shared_tiling(plan: &Plan<'_>, config: &ModelConfig) -> Tiling {
    let size = config.experts.map_or(0, |experts| experts.shared_size);
    Tiling::new(
        plan.num_rows(),
        size.div_ceil(BLOCK_COLS),
        GATE_BLOCKS,
        plan.num_threads,
    )
}

/// Pieces of the experts' insides: first the shared one's.
pub(super) fn num_gate_pieces(plan: &Plan<'_>, config: &ModelConfig) -> usize {
    shared_tiling(plan, config).num_pieces() + num_routed_pieces(plan, config)
}

/// Pieces of the insides of experts that tokens choose. How much there is to do is known when the tokens are routed: each
/// piece does an equal part of it.
fn num_routed_pieces(plan: &Plan<'_>, config: &ModelConfig) -> usize {
    (plan.num_threads * PIECES_PER_THREAD).max(most_runs(config, plan.num_rows()))
}

impl Part<'_> {
    /// The router's ratings of some experts for some tokens; the last piece of a tile of tokens makes weights of them,
    /// and the last of all puts the tokens in order.
    pub(super) unsafe fn route(&self, layer: usize, piece: usize) {
        let Pass { config, space, isa, .. } = *self.pass;
        let FeedForward::Experts {
            router,
            correction,
            shared,
            ..
        } = &self.pass.weights.layers[layer].ffn
        else {
            return;
        };
        let Some(experts) = config.experts else { return };
        let (tiling, routing) = (router_tiling(self.plan, config), &space.routing);
        let (rows, groups) = tiling.ranges(piece);
        let columns = groups.start * ROWS_PER_GROUP..(groups.end * ROWS_PER_GROUP).min(experts.num_experts);
        let RoutingPlan { tiles, num_done } = &self.plan.routing;
        let tile = &tiles[piece / tiling.num_columns];
        // SAFETY: these columns of these rows are this piece's; who is last sees what the others have written.
        unsafe {
            let mut ratings = routing.weights.patch(rows.clone(), columns);
            self.multiply_columns(router, self.router_input(), None, &mut ratings);
            if tile.fetch_add(1, Ordering::AcqRel) + 1 < tiling.num_columns {
                return;
            }
            tile.store(0, Ordering::Relaxed);
            for row in rows.clone() {
                choice::weigh(isa, routing.weights.row(row), &experts, correction.as_deref());
                self.scale_weights(layer, routing.weights.row(row));
            }
            if let Some(gate) = shared.as_ref().and_then(|shared| shared.gate.as_ref()) {
                let mut shares = routing.shared.patch(rows, 0..1);
                self.multiply_columns(gate, &self.stream.hidden_input, None, &mut shares);
                shares.rows().for_each(|row| elementwise::sigmoid(isa, shares.row(row)));
            }
            if num_done.fetch_add(1, Ordering::AcqRel) + 1 == tiles.len() {
                num_done.store(0, Ordering::Relaxed);
                routing.order(layer, self.plan.num_rows());
            }
        }
    }

    /// A piece of the experts' insides: some of the shared one's, or an equal part of the blocks of columns of all runs.
    pub(super) unsafe fn gate_experts(&self, experts: &[Gated], shared: Option<&Shared>, piece: usize, own: &mut Own) {
        let Pass { config, space, .. } = *self.pass;
        let of_shared = shared_tiling(self.plan, config);
        let Some(piece) = piece.checked_sub(of_shared.num_pieces()) else {
            if let Some(Shared { gated, .. }) = shared {
                // SAFETY: these columns of these tokens are this piece's.
                unsafe { self.gate(gated, &space.shared_input, None, None, of_shared.ranges(piece), own) };
            }
            return;
        };
        let slots = space.routing.slots.read().unwrap_or_else(PoisonError::into_inner);
        let num_blocks = config.ffn_size.div_ceil(BLOCK_COLS);
        let num_pieces = num_routed_pieces(self.plan, config);
        let Range { mut start, end } = part(slots.runs.len() * num_blocks, num_pieces, piece);
        while start < end {
            let (run, first) = (&slots.runs[start / num_blocks], start % num_blocks);
            let blocks = first..num_blocks.min(first + (end - start).min(GATE_BLOCKS));
            start += blocks.len();
            // SAFETY: these columns of these slots are this piece's.
            unsafe {
                self.gate(
                    &experts[run.expert],
                    &space.ffn_input,
                    None,
                    Some(Routed {
                        tokens: &slots.tokens,
                        expert: run.expert,
                    }),
                    (run.slots.clone(), blocks),
                    own,
                )
            };
        }
    }

    /// What a slot's product with its expert's matrices is multiplied by, where weights are factors of experts' inputs. The
    /// products are linear, so that this is the same.
    ///
    /// # Safety
    /// The routing is complete.
    pub(super) unsafe fn input_weight(&self, Routed { tokens, expert }: Routed<'_>, slot: usize) -> Option<f32> {
        let Pass { config, space, .. } = *self.pass;
        config.experts.filter(|experts| experts.weighs_inputs)?;
        // SAFETY: by contract.
        Some(unsafe { space.routing.weights.shared_row(tokens[slot] as usize)[expert] })
    }

    /// Some columns of the block's output for all tokens: the sum of their experts', in the experts' order.
    pub(super) unsafe fn add_experts(
        &self,
        (experts, shared): (&[Gated], Option<&Shared>),
        block: usize,
        groups: Range<usize>,
        own: &mut Own,
    ) {
        let Pass { config, space, isa, .. } = *self.pass;
        let slots = space.routing.slots.read().unwrap_or_else(PoisonError::into_inner);
        let columns = groups.start * ROWS_PER_GROUP..(groups.end * ROWS_PER_GROUP).min(config.hidden_size);
        let first = self.delta_row(block);
        let weighs_inputs = config.experts.is_some_and(|experts| experts.weighs_inputs);
        // SAFETY: these columns of the output are this piece's; the inputs are complete.
        unsafe {
            let mut sums = space.delta.patch(first..first + self.plan.num_rows(), columns.clone());
            sums.rows().for_each(|row| sums.row(row).fill(0.0));
            for Run { expert, slots: run } in &slots.runs {
                let mut outputs = Patch::own(&mut own.first, run.clone(), columns.clone());
                self.multiply_columns(&experts[*expert].down, &space.ffn_input, None, &mut outputs);
                for slot in run.clone() {
                    let (token, output) = (slots.tokens[slot] as usize, outputs.row(slot));
                    if !weighs_inputs {
                        elementwise::scale(isa, output, space.routing.weights.shared_row(token)[*expert]);
                    }
                    elementwise::add(isa, sums.row(first + token), output);
                }
            }
            if let Some(shared) = shared {
                self.add_shared(shared, (block, first), &mut sums, own);
            }
        }
    }

    /// Adds the shared expert's output to a patch of the block's, of which the first row is `first`; or keeps it beside
    /// that, where the two have norms of their own.
    ///
    /// # Safety
    /// The shared expert's inside is complete.
    unsafe fn add_shared(&self, shared: &Shared, (block, first): (usize, usize), sums: &mut Patch<'_>, own: &mut Own) {
        let Pass { space, isa, config, .. } = *self.pass;
        let (num_rows, scale) = (
            self.plan.num_rows(),
            config.experts.map_or(1.0, |experts| experts.shared_scale),
        );
        for start in (0..num_rows).step_by(PRODUCT_TILE) {
            let rows = start..num_rows.min(start + PRODUCT_TILE);
            let mut outputs = Patch::own(&mut own.first, rows.clone(), sums.columns());
            // SAFETY: by contract; the routing is complete.
            unsafe {
                self.multiply_columns(&shared.gated.down, &space.shared_input, None, &mut outputs);
                for row in rows {
                    if shared.gate.is_some() {
                        elementwise::scale(isa, outputs.row(row), space.routing.shared.shared_row(row)[0]);
                    }
                    if scale != 1.0 {
                        elementwise::scale(isa, outputs.row(row), scale);
                    }
                    if config.has_separate_experts() {
                        self.keep_dense(block, row, outputs.columns(), outputs.row(row));
                    } else {
                        elementwise::add(isa, sums.row(first + row), outputs.row(row));
                    }
                }
            }
        }
    }
}
