//! What the largest step takes: by allocating its buffers, or from a model's shape alone.

use super::{SCORED_ROWS, Workspace, beside_sizes, num_rope_tables, own_tile_len, separate_size, waiting_kv_size};
use crate::config::ModelConfig;
use crate::encoder::prompt_bytes;
use crate::forward::{
    FEW_ROWS, channel_sizes, indexer_sizes, kimi_sizes, latent_sizes, mixed_size, most_piece_state, most_slots,
    most_split_rows, mtp_sizes, num_delta_rows, num_kept_rows, num_ratings, output_size,
};
use crate::model::Weights;

/// The largest step a model is asked for.
#[derive(Clone, Copy, Debug)]
pub struct LargestStep {
    /// Threads that compute.
    pub threads: usize,
    /// Tokens of the step.
    pub tokens: usize,
    /// How many of them give logits.
    pub outputs: usize,
    /// Positions of a sequence.
    pub positions: usize,
}

impl LargestStep {
    /// Bytes that steps up to this one take beside weights and KV memory: the buffers of a pass, rotary tables, and for
    /// each row of logits its sampler's numbers. Allocates the buffers to learn it, but writes to none of them, so that
    /// they take no memory.
    pub fn bytes(&self, config: &ModelConfig, weights: &Weights) -> usize {
        let mut space = Workspace::new(config, weights, self.threads);
        for tokens in [self.tokens.min(FEW_ROWS), self.tokens] {
            let split_rows = self.split_rows(config);
            space.prepare(config, tokens, self.logit_rows(tokens), split_rows);
        }
        space.prepare_drafts(config, self.most_drafts());
        space.prepare_ratings(self.ratings(config));
        space.mtp.reserve_drafts(config, self.outputs.min(self.tokens));
        let bytes = space.bytes() as u128 + self.table_bytes(config) + self.prompt_bytes(config);
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }

    /// The same from a model's shape alone, and at least as much, as inputs are counted in both forms. The shape may
    /// come from a damaged file: nothing is allocated, and no number is too large.
    pub fn most_bytes(&self, config: &ModelConfig) -> usize {
        let [tokens, threads, hidden, query, ffn] = [
            self.tokens,
            self.threads,
            config.hidden_size,
            config.num_queries() * config.query_size(),
            config.ffn_size,
        ]
        .map(|number| number as u128);
        // Of each form a block or a cache line more than the columns, and a tile of rows more.
        let input = |rows: u128, columns: u128| match columns {
            0 => 0,
            _ => (rows + 16) * ((columns + 32) * 3 + (columns + 32) * 4),
        };
        let separate = separate_size(config) as u128;
        let stream = |rows: u128| rows * hidden * 4 + 2 * input(rows, hidden) + 2 * input(rows, separate);
        let deltas = tokens.max(num_delta_rows(config, FEW_ROWS) as u128);
        let mixed = config.num_gates() + mixed_size(config);
        let projected = query + 2 * waiting_kv_size(config) as u128 + mixed as u128;
        let vectors = (config.num_layers * config.per_layer_size()) as u128;
        let kept = num_kept_rows(config, self.most_drafts()) as u128 * mixed_size(config) as u128;
        let rows = 4 * (tokens * (projected + vectors) + deltas * (hidden + separate) + kept);
        let of_indexer = tokens * indexer_sizes(config).iter().map(|size| *size as u128).sum::<u128>();
        let rows = rows + self.thread_bytes(config) + 4 * (of_indexer + self.ratings(config) as u128);
        let slots = most_slots(config, self.tokens) as u128;
        // Of a token, its experts' weights; of a slot, its token and at most a run; of a layer, its experts' loads.
        let num_layers = config.all_layers().len() as u128;
        let of_experts = config.experts.map_or(0, |experts| {
            let num_experts = experts.num_experts as u128;
            4 * tokens * (num_experts + 1) + 64 * slots + 8 * num_layers * num_experts
        });
        let beside: [usize; 2] = beside_sizes(config).into();
        let beside = beside.map(|size| input(tokens, size as u128)).iter().sum::<u128>();
        let per_layer = match config.per_layer_size() {
            0 => 0,
            size => input(tokens, hidden) + input(tokens, size as u128),
        };
        let channels = channel_sizes(config).map_or(0, |(inputs, selected)| {
            let inputs = inputs.map(|columns| input(tokens, columns as u128));
            inputs.iter().sum::<u128>() + 4 * tokens * selected as u128
        });
        let kimi = kimi_sizes(config).map(|columns| input(tokens, columns as u128));
        let mixer = channels + kimi.sum::<u128>() + input(tokens, output_size(config) as u128);
        let latent = latent_sizes(config, self.tokens).map(|(rows, cols)| input(rows as u128, cols as u128));
        let heads = config.heads_sizes().map(|size| input(tokens, size as u128));
        let heads = heads.iter().sum::<u128>() + latent.sum::<u128>();
        let inputs = heads + mixer + input(slots, ffn) + of_experts + beside + per_layer;
        let of_mtp = mtp_sizes(config).map_or(0, |(rows, joined)| {
            let drafted = self.outputs.min(self.tokens) as u128;
            let own = threads * 4 * joined as u128;
            (tokens + drafted) * 4 * rows as u128 + own + stream(tokens) + input(tokens, joined as u128)
        });
        let streams = stream(tokens) + threads * stream(FEW_ROWS as u128) + of_mtp;
        let logits = self.logit_rows(self.tokens) as u128 * config.vocab_size as u128 * 4;
        let chunks = self.split_rows(config) as u128 * config.num_heads as u128;
        let chunks = chunks * (config.value_dim() as u128 + 48) * 4;
        let bytes = rows + chunks + inputs + streams + logits + self.table_bytes(config);
        let bytes = bytes + self.prompt_bytes(config);
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }

    /// Bytes that all threads have to themselves at most, without what a head needs.
    pub(crate) fn thread_bytes(&self, config: &ModelConfig) -> u128 {
        let numbers = [config.hidden_size, separate_size(config), most_piece_state(config)];
        let tiles = 2 * own_tile_len(config, self.tokens) as u128;
        4 * self.threads as u128 * (numbers.iter().map(|number| *number as u128).sum::<u128>() + tiles)
    }

    /// Bytes that an encoder-decoder's prompts are read in.
    fn prompt_bytes(&self, config: &ModelConfig) -> u128 {
        prompt_bytes(config, self.threads, self.positions.min(config.context_length))
    }

    /// Drafts that a step verifies at most: each has logits, as the token before the first has.
    fn most_drafts(&self) -> usize {
        self.outputs.min(self.tokens).saturating_sub(1)
    }

    /// Rows of logits that a step of so many tokens has at once.
    fn logit_rows(&self, tokens: usize) -> usize {
        self.outputs.min(tokens) + SCORED_ROWS.min(tokens)
    }

    /// Query tokens times chunks that are computed apart, at most.
    fn split_rows(&self, config: &ModelConfig) -> usize {
        most_split_rows(self.tokens, self.positions.min(config.context_length), self.threads)
    }

    /// Ratings of positions, at most.
    fn ratings(&self, config: &ModelConfig) -> usize {
        num_ratings(
            config,
            self.tokens,
            self.positions.min(config.context_length),
            self.threads,
        )
    }

    /// Bytes of rotary tables, and of what samplers and scorers rank in.
    fn table_bytes(&self, config: &ModelConfig) -> u128 {
        let positions = config.num_places(self.positions.min(config.context_length)) as u128;
        let rotary_dims = config.rotary_dims.max(config.global_rotary_dims());
        let angles = num_rope_tables(config) as u128 * positions * rotary_dims as u128;
        let scorers = self.threads.min(SCORED_ROWS).min(self.tokens);
        let rankings = (self.outputs + scorers) as u128 * config.vocab_size as u128;
        (angles + rankings) * size_of::<f32>() as u128
    }
}
