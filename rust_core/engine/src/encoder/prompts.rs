//! The encoder of an encoder-decoder: it reads a prompt whole, and makes the keys and values that the decoder attends to.
//!
//! These lie in the sequence's own pages, at the prompt's positions, in the places of the layers that attend to the answer:
//! no other key lies there. What the layers give of a prompt is kept while parts of it are still asked for.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, PoisonError};

use pyagent_kernels::attention::{BLOCK_TOKENS, store_kv};
use pyagent_kernels::isa::Isa;
use pyagent_kernels::thread_pool::{Piece, ThreadPool};

use super::config::{DecoderConfig, EncoderConfig, Layers};
use super::forward::{Batch, Gives, Pass, TILE_TOKENS, Widths, Workspace, fill, multiply_into, num_tiles};
use super::weights::{DecoderWeights, EncoderWeights, LayerWeights, input_forms};
use super::{EncoderError, workspace_bytes};
use crate::config::{EncoderDecoder, ModelConfig};
use crate::kv::KvMemory;
use crate::model::{Linear, PromptWeights};
use crate::weights::ModelFileError;

/// Prompts of so many times the context's tokens are kept at once.
const KEPT_CONTEXTS: usize = 2;

/// Some positions of a prompt whose keys and values a sequence needs.
pub(crate) struct PromptPart<'a> {
    /// All of the prompt's tokens.
    pub(crate) prompt: &'a [u32],
    /// The positions.
    pub(crate) positions: Range<usize>,
    /// The sequence's tables.
    pub(crate) tables: &'a [Arc<Vec<u32>>],
}

/// What the layers gave of a prompt.
struct ReadPrompt {
    tokens: Vec<u32>,
    stream: Vec<f32>,
}

/// The layers that read prompts.
pub(crate) struct PromptEncoder {
    config: EncoderConfig,
    weights: EncoderWeights,
    cross: Vec<[Linear; 2]>,
    weight_bytes: usize,
    /// Whether the matrices of keys and values take their input as integers, and whether as numbers.
    cross_forms: (bool, bool),
    space: Workspace,
    /// Tokens that the workspace has room for.
    room: usize,
    kept: VecDeque<ReadPrompt>,
}

/// The layers as an encoder's.
fn encoder_config(config: &ModelConfig, own: &EncoderDecoder) -> EncoderConfig {
    let model = config.of_encoder(own);
    EncoderConfig {
        vocab_size: model.vocab_size,
        hidden_size: model.hidden_size,
        num_layers: model.num_layers,
        max_tokens: model.context_length,
        layers: Layers::Decoder(Box::new(DecoderConfig {
            model,
            is_causal: false,
        })),
        pooling: Vec::new(),
        dense: Vec::new(),
        head: None,
        is_late: false,
        attention: None,
        closing_token: None,
        tasks: None,
    }
}

/// Bytes that prompts of so many tokens are read in, at most.
pub(crate) fn prompt_bytes(config: &ModelConfig, threads: usize, most_tokens: usize) -> u128 {
    let Some(own) = &config.encoder_decoder else { return 0 };
    let encoder = encoder_config(config, own);
    // Several prompts are kept, none of which is longer than `most_tokens`; all together may be.
    let kept = KEPT_CONTEXTS * config.context_length * config.hidden_size * size_of::<f32>();
    let tile = 2 * TILE_TOKENS * config.query_size() * size_of::<f32>();
    (workspace_bytes(&encoder, threads, most_tokens) + kept + threads * tile) as u128
}

impl PromptEncoder {
    pub(crate) fn new(
        config: &ModelConfig,
        own: &EncoderDecoder,
        weights: PromptWeights,
        threads: usize,
    ) -> Result<Self, ModelFileError> {
        let config = encoder_config(config, own);
        let Layers::Decoder(decoder) = &config.layers else {
            unreachable!("the layers are a decoder's")
        };
        let weight_bytes = weights.bytes();
        let PromptWeights {
            layers,
            distances,
            cross,
        } = weights;
        let rope = decoder.model.rope_tables()?;
        let weights = EncoderWeights {
            layers: LayerWeights::Decoder(Box::new(DecoderWeights {
                model: layers,
                rope,
                distances,
            })),
            dense: Vec::new(),
            attention: None,
            head: None,
        };
        let space = Workspace::new(&config, &weights, threads, 0, 0);
        Ok(Self {
            cross_forms: input_forms(cross.iter().flatten().map(|linear| &linear.weight)),
            config,
            weights,
            cross,
            weight_bytes,
            space,
            room: 0,
            kept: VecDeque::new(),
        })
    }

    /// Bytes held by weights.
    pub(crate) fn weight_bytes(&self) -> usize {
        self.weight_bytes
    }

    /// Bytes held to compute in.
    pub(crate) fn workspace_bytes(&self, threads: usize) -> usize {
        let kept: usize = self
            .kept
            .iter()
            .map(|prompt| prompt.stream.len() * size_of::<f32>())
            .sum();
        workspace_bytes(&self.config, threads, self.room) + kept
    }

    /// Stores the keys and values of a part of a prompt, for all layers that attend to it.
    ///
    /// # Safety
    /// The part's tables have pages for its positions, which nobody else uses meanwhile; the prompt's tokens are of the
    /// vocabulary.
    pub(crate) unsafe fn store(
        &mut self,
        part: &PromptPart<'_>,
        kv: &KvMemory,
        pool: &ThreadPool,
        isa: Isa,
    ) -> Result<(), EncoderError> {
        self.read(part.prompt, pool, isa)?;
        let prompt = self.kept.back().expect("the prompt was read");
        let (hidden, inner) = (self.config.hidden_size, self.cross[0][0].weight.rows());
        let head_dim = self.config.head_dim();
        let (first, count) = (part.positions.start, part.positions.len());
        let num_tiles = num_tiles(count, pool.num_threads());
        let widths = Widths::of(&self.config);
        let (own, forms) = (&self.space.own, self.cross_forms);
        pool.run(&[self.cross.len() * num_tiles], |Piece { index, thread, .. }| {
            let mut own = own[thread].lock().unwrap_or_else(PoisonError::into_inner);
            let own = &mut *own;
            let (layer, tile) = (index / num_tiles, index % num_tiles);
            let rows = first + tile * count / num_tiles..first + (tile + 1) * count / num_tiles;
            own.resize(rows.len(), widths, forms);
            let most = rows.len() * inner;
            own.out.resize(own.out.len().max(most), 0.0);
            own.gate.resize(own.gate.len().max(most), 0.0);
            fill(isa, &own.input, &prompt.stream[rows.start * hidden..rows.end * hidden]);
            let [key, value] = &self.cross[layer];
            // SAFETY: the thread's own memory, which has room.
            unsafe {
                multiply_into(isa, key, &own.input, own.out.as_mut_ptr(), inner);
                multiply_into(isa, value, &own.input, own.gate.as_mut_ptr(), inner);
            }
            let kv_layer = 2 * layer;
            let (layout, blocks) = (kv.pages.layout(kv_layer), kv.layer(kv_layer, part.tables));
            let vectors = own.out.chunks_exact(inner).zip(own.gate.chunks_exact(inner));
            for (position, (keys, values)) in rows.zip(vectors) {
                let heads = keys.chunks_exact(head_dim).zip(values.chunks_exact(head_dim));
                for (head, (key, value)) in heads.enumerate() {
                    // SAFETY: the table has the position's page by contract; this piece has the layer's slot to itself.
                    unsafe {
                        let block = blocks.block(position / BLOCK_TOKENS);
                        store_kv(isa, layout, block, position % BLOCK_TOKENS, head, key, value);
                    }
                }
            }
        })?;
        if part.positions.end == part.prompt.len() {
            self.kept.pop_back();
        }
        Ok(())
    }

    /// Has what the layers give of a prompt, as the last one kept.
    fn read(&mut self, tokens: &[u32], pool: &ThreadPool, isa: Isa) -> Result<(), EncoderError> {
        if let Some(place) = self.kept.iter().position(|prompt| prompt.tokens == tokens) {
            let prompt = self.kept.remove(place).expect("it is there");
            self.kept.push_back(prompt);
            return Ok(());
        }
        let most = KEPT_CONTEXTS * self.config.max_tokens;
        let num_kept = |kept: &VecDeque<ReadPrompt>| kept.iter().map(|prompt| prompt.tokens.len()).sum::<usize>();
        while num_kept(&self.kept) + tokens.len() > most && self.kept.pop_front().is_some() {}
        if tokens.len() > self.room {
            let count = tokens.len();
            // The memory is freed before there is more of it.
            (self.room, self.space) = (0, Workspace::new(&self.config, &self.weights, 0, 0, 0));
            self.space = Workspace::new(&self.config, &self.weights, pool.num_threads(), count, count);
            self.room = count;
        }
        let batch = Batch::of(&[tokens.to_vec()], &self.config)?;
        let pass = Pass {
            config: &self.config,
            weights: &self.weights,
            isa,
            batch: &batch,
            gives: Gives::Stream,
        };
        pass.run(pool, &mut self.space, &mut [])?;
        let stream = self.space.hidden[..tokens.len() * self.config.hidden_size].to_vec();
        self.kept.push_back(ReadPrompt {
            tokens: tokens.to_vec(),
            stream,
        });
        Ok(())
    }
}
