//! A pass of an assistant: a small decoder that drafts for a larger one, whose keys and values its layers read.
//!
//! Its stream begins as a product of the other model's embedding of a token and of that model's output for the token before;
//! from the second draft on, its own output goes back in the place of the latter. All drafts of a round are made at the
//! position of the first one's token, and see what lies before it: of a draft itself there are no keys and values.

use std::ops::Range;

use pyagent_kernels::attention::BLOCK_TOKENS;
use pyagent_kernels::matmul::{self, Activations};
use pyagent_kernels::pack::ROWS_PER_GROUP;

use super::{HeadPass, MOST_GROUPS, Part, Pass, Plan, Segment, Stage, Taps, Tiling};
use crate::config::AssistantConfig;
use crate::model::{AssistantWeights, ClusterWeights};
use crate::workspace::{Forms, Rows};

/// What a pass has to do with what drafts from another file.
#[derive(Clone, Copy)]
pub enum Role<'a> {
    /// Nothing.
    None,
    /// It is of a model that has one: the outputs of rows that give logits are kept for it here.
    Drafted(&'a Rows),
    /// It is the assistant's.
    Assistant(&'a AssistantPass<'a>),
    /// It is of a model that a head of another file drafts for: places of its stream are kept for that here.
    Tapped(&'a Taps),
    /// It is such a head's.
    Head(&'a HeadPass<'a>),
}

/// What an assistant's pass has beside a decoder's.
pub struct AssistantPass<'a> {
    /// Its weights.
    pub weights: &'a AssistantWeights,
    /// Its buffers, prepared for the plan; the inputs are written.
    pub buffers: &'a AssistantBuffers,
    /// Of each layer, the one of the other model whose keys and values it reads.
    pub layers: &'a [usize],
}

/// What an assistant's stages hand to each other.
pub struct AssistantBuffers {
    /// Tokens' embeddings by the other model, and its outputs for the tokens before.
    pub joined: Activations,
    /// The streams at their beginning.
    start: Rows,
    /// What goes on in the place of the other model's output.
    pub drafted: Rows,
    rates: Rows,
    /// The clusters that a draft looks at, as bits.
    chosen: Rows,
    forms: Forms,
}

impl AssistantBuffers {
    /// Empty buffers.
    pub fn new(config: &AssistantConfig, weights: &AssistantWeights) -> Self {
        let (clusters, num_chosen) = config.clusters.map_or((0, 0), |all| (all.count, all.num_chosen));
        Self {
            joined: Activations::new(),
            start: Rows::new(config.decoder.hidden_size),
            drafted: Rows::new(config.backbone_size),
            rates: Rows::new(clusters),
            chosen: Rows::new(num_chosen),
            forms: Forms::of([&weights.entry.weight]),
        }
    }

    /// Makes room for so many rows. What was drafted before is kept where there is room.
    pub fn reserve(&mut self, config: &AssistantConfig, rows: usize) {
        let columns = 2 * config.backbone_size;
        self.joined
            .resize(rows, columns, self.forms.is_quantised, self.forms.is_dense);
        for buffer in [&mut self.start, &mut self.drafted, &mut self.rates, &mut self.chosen] {
            buffer.reserve(rows);
        }
    }

    /// Bytes held.
    pub fn bytes(&mut self) -> usize {
        let rows = [&mut self.start, &mut self.drafted, &mut self.rates, &mut self.chosen];
        self.joined.bytes() + rows.map(Rows::bytes).iter().sum::<usize>()
    }
}

/// A stage of an assistant's pass, or of the model's that it drafts for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AssistantStage {
    /// The beginnings of the streams.
    Enter,
    /// The ratings of clusters.
    Rate,
    /// Which clusters are looked at.
    Choose,
    /// The logits of these clusters' tokens.
    Score,
    /// What goes on in the place of the other model's output.
    Leave,
    /// The model's outputs, for its assistant.
    Keep,
}

impl AssistantStage {
    /// Whether it reads a stream that is past all layers.
    pub(super) fn is_after_layers(self) -> bool {
        !matches!(self, Self::Enter | Self::Choose)
    }
}

impl Pass<'_> {
    /// The layer in KV memory whose keys and values a layer reads.
    pub(super) fn kv_layer(&self, layer: usize) -> usize {
        match self.role {
            Role::Assistant(assistant) => assistant.layers[layer],
            Role::Head(head) => head.layer,
            _ => layer,
        }
    }

    /// The last position that a segment's first token sees.
    pub(super) fn last_seen(&self, segment: &Segment<'_>) -> usize {
        match self.role {
            Role::Assistant(_) => segment.first_position - 1,
            _ => segment.first_position,
        }
    }

    /// How many positions an assistant's layer sees up to that one: those of a window as wide as the other model's, as far as
    /// its next token sees their blocks.
    pub(super) fn seen_by_assistant(&self, layer: usize, segment: &Segment<'_>) -> Option<usize> {
        let (window, position) = (self.config.window(layer)?, segment.first_position);
        let first_block = (position + 1).saturating_sub(window) / BLOCK_TOKENS;
        let first = position.saturating_sub(window).max(first_block * BLOCK_TOKENS);
        Some(position - first)
    }

    /// The stages before the first layer.
    pub(super) fn entry_stage(&self) -> Option<Stage> {
        matches!(self.role, Role::Assistant(_)).then_some(Stage::Assistant(AssistantStage::Enter))
    }

    /// Whether a pass computes logits of a few clusters alone.
    pub(super) fn has_clusters(&self) -> bool {
        self.clusters().is_some()
    }

    fn clusters(&self) -> Option<&ClusterWeights> {
        match self.role {
            Role::Assistant(assistant) => assistant.weights.clusters.as_ref(),
            _ => None,
        }
    }

    /// The stages after the last layer and its norm.
    pub(super) fn exit_stages(&self) -> impl Iterator<Item = Stage> + use<> {
        use AssistantStage::{Choose, Keep, Leave, Rate, Score};
        let stages: &[AssistantStage] = match self.role {
            Role::None | Role::Tapped(_) | Role::Head(_) => &[],
            Role::Drafted(_) => &[Keep],
            Role::Assistant(_) if self.has_clusters() => &[Rate, Choose, Score, Leave],
            Role::Assistant(_) => &[Leave],
        };
        stages.iter().copied().map(Stage::Assistant)
    }

    pub(super) fn num_assistant_pieces(&self, plan: &Plan<'_>, stage: AssistantStage) -> usize {
        match stage {
            AssistantStage::Choose => plan.num_rows(),
            AssistantStage::Keep => plan.num_outputs(),
            AssistantStage::Score => plan.num_rows() * self.clusters().map_or(0, |clusters| clusters.num_chosen),
            _ => self.assistant_tiling(plan, stage).num_pieces(),
        }
    }

    fn assistant_tiling(&self, plan: &Plan<'_>, stage: AssistantStage) -> Tiling {
        let Role::Assistant(assistant) = self.role else {
            return Tiling::new(0, 0, MOST_GROUPS, plan.num_threads);
        };
        let columns = match stage {
            AssistantStage::Enter => self.config.hidden_size,
            AssistantStage::Rate => assistant.buffers.rates.width(),
            _ => assistant.buffers.drafted.width(),
        };
        let groups = columns.div_ceil(ROWS_PER_GROUP);
        Tiling::new(plan.num_rows(), groups, MOST_GROUPS, plan.num_threads)
    }
}

impl Part<'_> {
    /// A piece of a stage.
    ///
    /// # Safety
    /// As [`Pass::compute`]; where it is of those after the layers, the thread's stream is past them.
    pub(super) unsafe fn assist(&self, stage: AssistantStage, piece: usize) {
        // SAFETY: pieces of a stage have rows and columns of their own, and stages before are complete.
        unsafe {
            match (self.pass.role, stage) {
                (Role::Drafted(kept), _) => self.keep_for_assistant(kept, piece),
                (Role::Assistant(assistant), AssistantStage::Choose) => self.choose(assistant, piece),
                (Role::Assistant(assistant), AssistantStage::Score) => self.score_cluster(assistant, piece),
                (Role::Assistant(assistant), _) => {
                    let ranges = self.pass.assistant_tiling(self.plan, stage).ranges(piece);
                    self.multiply_for_assistant(assistant, stage, ranges);
                }
                _ => {}
            }
        }
    }

    /// The stream of a row of an assistant at its beginning; whether it is one's.
    ///
    /// # Safety
    /// The beginnings are complete.
    pub(super) unsafe fn enter(&self, row: usize, residual: &mut [f32]) -> bool {
        let Role::Assistant(assistant) = self.pass.role else {
            return false;
        };
        // SAFETY: by contract.
        residual.copy_from_slice(unsafe { assistant.buffers.start.shared_row(row) });
        true
    }

    unsafe fn keep_for_assistant(&self, kept: &Rows, output: usize) {
        let Pass {
            weights, isa, config, ..
        } = *self.pass;
        // SAFETY: the row of the stream is complete, and what is kept of it is this piece's.
        unsafe {
            let residual = self.stream.residual.shared_row(self.plan.outputs[output]);
            weights
                .final_norm
                .apply(isa, residual, config.norm_epsilon, kept.row(output));
        }
    }

    unsafe fn multiply_for_assistant(
        &self,
        assistant: &AssistantPass<'_>,
        stage: AssistantStage,
        (rows, groups): (Range<usize>, Range<usize>),
    ) {
        let (weights, buffers) = (assistant.weights, assistant.buffers);
        let output = &self.stream.output_input;
        let (linear, input, out) = match (stage, &weights.clusters) {
            (AssistantStage::Enter, _) => (&weights.entry, &buffers.joined, &buffers.start),
            (AssistantStage::Rate, Some(clusters)) => (&clusters.centroids, output, &buffers.rates),
            _ => (&weights.exit, output, &buffers.drafted),
        };
        let columns = groups.start * ROWS_PER_GROUP..(groups.end * ROWS_PER_GROUP).min(out.width());
        // SAFETY: as the caller's: these columns of these rows are this piece's.
        unsafe { self.multiply_columns(linear, input, None, &mut out.patch(rows, columns)) };
    }

    /// The clusters of a row with the best ratings, in order of their numbers.
    unsafe fn choose(&self, assistant: &AssistantPass<'_>, row: usize) {
        let buffers = assistant.buffers;
        // SAFETY: ratings are complete, and the row of what is chosen is this piece's.
        let (rates, chosen) = unsafe { (buffers.rates.shared_row(row), buffers.chosen.row(row)) };
        let mut order: Vec<u32> = (0..rates.len() as u32).collect();
        let best_first = |a: &u32, b: &u32| rates[*b as usize].total_cmp(&rates[*a as usize]).then(a.cmp(b));
        order.select_nth_unstable_by(chosen.len() - 1, best_first);
        order.truncate(chosen.len());
        order.sort_unstable();
        for (place, cluster) in chosen.iter_mut().zip(order) {
            *place = f32::from_bits(cluster);
        }
    }

    /// The logits of the tokens of one of a row's clusters, behind those of the clusters chosen before it.
    unsafe fn score_cluster(&self, assistant: &AssistantPass<'_>, piece: usize) {
        let Some(ClusterWeights { num_chosen, size, .. }) = assistant.weights.clusters else {
            return;
        };
        let (row, place) = (piece / num_chosen, piece % num_chosen);
        let (logits, isa) = (&self.pass.space.logits, self.pass.isa);
        // SAFETY: what is chosen is complete, and these logits are this piece's.
        unsafe {
            let cluster = assistant.buffers.chosen.shared_row(row)[place].to_bits() as usize;
            let groups = cluster * size / ROWS_PER_GROUP..(cluster + 1) * size / ROWS_PER_GROUP;
            let first = logits.base().wrapping_add(place * size).wrapping_sub(cluster * size);
            let (input, matrix) = (&self.stream.output_input, assistant.weights.decoder.output_matrix());
            matmul::matmul(isa, matrix, groups, input, row..row + 1, first, logits.width());
        }
    }
}

impl AssistantBuffers {
    /// The token that a place among a row's logits is of.
    ///
    /// # Safety
    /// The pass is over.
    pub(crate) unsafe fn token_at(&self, clusters: &ClusterWeights, row: usize, place: usize) -> u32 {
        // SAFETY: by contract.
        let cluster = unsafe { self.chosen.shared_row(row)[place / clusters.size].to_bits() } as usize;
        clusters.tokens[cluster * clusters.size + place % clusters.size]
    }
}
