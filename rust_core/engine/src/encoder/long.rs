//! A text of a causal decoder that is longer than a batch, computed in steps: a layer at a time, and in it so many tokens at a
//! time as a batch has. Between steps others may compute.
//!
//! Of a text its stream is kept, and the keys and values of one layer: a small part of what a KV cache of all layers takes,
//! which nothing would read again. Each token's numbers are the same bits as if the text had been read at once, so pooling
//! sees what it would have seen.

use std::ops::Range;
use std::sync::{Arc, PoisonError};

use pyagent_kernels::attention::{PartArgs, StoredHeads, attend_part, part_scratch_len};
use pyagent_kernels::elementwise::RopeTable;
use pyagent_kernels::thread_pool::Piece;

use super::config::{DecoderConfig, EncoderConfig, Layers};
use super::decoder::Decoder;
use super::forward::{Batch, Gives, Memory, Own, Pass, Place, Shared, Stages, Widths, Workspace, num_tiles};
use super::weights::LayerWeights;
use super::{Encoder, EncoderError};
use crate::config::invalid;

/// Queries of a head that a thread computes at once: a multiple of the rows that attention computes together, of which the
/// last would be filled up.
const PART_TOKENS: usize = 192;

/// A text on its way through the layers.
pub struct LongText {
    /// That of the encoder that began it.
    identity: Arc<()>,
    /// The text alone.
    batch: Batch,
    gives: Gives,
    space: Workspace,
    /// Keys and values of the layer.
    stored: StoredHeads,
    rope: [RopeTable; 2],
    layer: usize,
    /// Tokens that are through the layer.
    num_done: usize,
}

/// Bytes that a long text of so many tokens takes until it is computed, `most_at_once` of them together; None for a model
/// that reads every text whole.
pub fn long_text_bytes(
    config: &EncoderConfig,
    num_threads: usize,
    num_tokens: usize,
    most_at_once: usize,
) -> Option<usize> {
    let model = &config.causal()?.model;
    let widths = Widths::of(config);
    let of_token = widths.hidden * 4 + size_of::<Place>() + 2 * model.head_dim * 4; // and the angles
    let at_once = most_at_once.min(num_tokens) * (widths.projected + widths.context) * 4;
    let thread = widths.thread_bytes() + part_scratch_len(num_tokens) * 4;
    let stored = StoredHeads::bytes(model.num_kv_heads, num_tokens, model.head_dim);
    Some(num_tokens * of_token + stored + at_once + num_threads * thread)
}

impl Encoder {
    /// Takes a text that is longer than a batch: its vector, or those of its tokens, come of [`Encoder::advance`].
    ///
    /// Of a model that reads texts whole: `EncoderError::File`.
    pub fn begin(&self, text: &[u32], gives_tokens: bool) -> Result<LongText, EncoderError> {
        let Some(DecoderConfig { model, .. }) = self.config.causal() else {
            return Err(invalid("the model reads a text whole".to_owned()).into());
        };
        let gives = self.checked(if gives_tokens { Gives::Tokens } else { Gives::Texts })?;
        let batch = Batch::of(&[text.to_vec()], &self.config)?;
        let (num_tokens, threads) = (batch.num_tokens(), self.pool.num_threads());
        let mut rope = model.rope_tables()?;
        for table in &mut rope {
            table
                .grow_to(num_tokens)
                .expect("texts are no longer than the model takes");
        }
        let at_once = self.most_tokens.min(num_tokens);
        Ok(LongText {
            identity: Arc::clone(&self.identity),
            space: Workspace::new(&self.config, &self.weights, threads, num_tokens, at_once),
            stored: StoredHeads::new(model.num_kv_heads, num_tokens, model.head_dim),
            batch,
            gives,
            rope,
            layer: 0,
            num_done: 0,
        })
    }

    /// Computes a step of a text that this encoder began: some tokens in one layer. Returns what the text gives after the
    /// last one, as `compute` and `compute_tokens` do.
    ///
    /// Of a text that another encoder began, whose memory has other widths, or that has no step left: `EncoderError::File`.
    pub fn advance(&self, text: &mut LongText) -> Result<Option<Vec<f32>>, EncoderError> {
        if !Arc::ptr_eq(&self.identity, &text.identity) {
            return Err(invalid("the text was begun by another model".to_owned()).into());
        }
        if text.layer == self.config.num_layers {
            return Err(invalid("the text has been computed".to_owned()).into());
        }
        let num_tokens = text.batch.num_tokens();
        let end = (text.num_done + self.most_tokens).min(num_tokens);
        self.step(text, text.num_done..end)?;
        text.num_done = end;
        if end < num_tokens {
            return Ok(None);
        }
        (text.layer, text.num_done) = (text.layer + 1, 0);
        if text.layer < self.config.num_layers {
            return Ok(None);
        }
        self.finish(text).map(Some)
    }

    /// Brings tokens through a layer; those before them are.
    fn step(&self, text: &mut LongText, tokens: Range<usize>) -> Result<(), EncoderError> {
        let (Layers::Decoder(config), LayerWeights::Decoder(weights)) = (&self.config.layers, &self.weights.layers)
        else {
            unreachable!("other models begin no long text")
        };
        let LongText {
            batch,
            space,
            stored,
            rope,
            layer,
            ..
        } = text;
        let layer = *layer;
        let widths = Widths::of(&self.config);
        let hidden = Shared::of(&mut space.hidden, widths.hidden);
        let projected = Shared::of(&mut space.projected, widths.projected);
        let context = Shared::of(&mut space.context, widths.context);
        let (own, forms, isa) = (&space.own, space.forms, self.isa);
        let decoder = Decoder {
            config,
            weights,
            isa,
            batch,
            rope,
        };
        let (model, count) = (&config.model, tokens.len());
        let num_tiles = num_tiles(count, self.pool.num_threads());
        let num_parts = count.div_ceil(PART_TOKENS);
        let shared_by = model.num_heads / model.num_kv_heads;
        let tile = |index: usize| index * count / num_tiles..(index + 1) * count / num_tiles;
        let stages = [num_tiles, model.num_kv_heads, model.num_heads * num_parts, num_tiles];
        self.pool.run(&stages, |Piece { stage, index, thread }| {
            // A thread that panicked leaves memory that the next step writes anew.
            let mut own = own[thread].lock().unwrap_or_else(PoisonError::into_inner);
            let own: &mut Own = &mut own;
            // SAFETY: a tile's rows, a head's keys and values and a head's columns of some rows are this piece's alone in
            // its stage, and what else it reads is written in an earlier one, or by an earlier step.
            unsafe {
                match stage {
                    0 => {
                        let rows = tile(index);
                        let places = tokens.start + rows.start..tokens.start + rows.end;
                        let hidden = hidden.rows(places.clone());
                        own.resize(rows.len(), widths, forms);
                        if layer == 0 {
                            decoder.embed(places.clone(), hidden);
                        }
                        decoder.project(layer, hidden, places, (projected, rows.start), own);
                    }
                    1 => {
                        let head = decoder.head(layer, index * shared_by);
                        let (key, value) = (projected.at(0).add(head.key), projected.at(0).add(head.value));
                        stored.store(index, tokens.clone(), key, value, projected.width);
                    }
                    2 => {
                        let (index, part) = (index / num_parts, index % num_parts);
                        let rows = part * PART_TOKENS..((part + 1) * PART_TOKENS).min(count);
                        let head = decoder.head(layer, index);
                        let args = PartArgs {
                            first: tokens.start + rows.start,
                            num_queries: rows.len(),
                            num_keys: batch.seen[0].min(tokens.end),
                            head_dim: model.head_dim,
                            before: head.before,
                            behind: head.behind,
                            scale: head.scale,
                            bias: head.bias,
                            query: projected.at(rows.start).add(index * model.head_dim),
                            stride: projected.width,
                            out: context.at(rows.start).add(index * model.head_dim),
                            out_stride: context.width,
                        };
                        attend_part(isa, &args, stored, index / shared_by, &mut own.attention);
                    }
                    _ => {
                        let rows = tile(index);
                        let hidden = hidden.rows(tokens.start + rows.start..tokens.start + rows.end);
                        own.resize(rows.len(), widths, forms);
                        decoder.finish_layer(&weights.model.layers[layer], hidden, context.rows(rows), own);
                        if layer + 1 == model.num_layers {
                            decoder.finish(hidden);
                        }
                    }
                }
            }
        })?;
        Ok(())
    }

    /// What the text gives, of which all tokens are through all layers.
    fn finish(&self, text: &mut LongText) -> Result<Vec<f32>, EncoderError> {
        let LongText {
            batch, gives, space, ..
        } = text;
        let pass = Pass {
            config: &self.config,
            weights: &self.weights,
            isa: self.isa,
            batch,
            gives: *gives,
        };
        let (widths, width) = (Widths::of(&self.config), self.config.num_outputs());
        let mut vectors = vec![0.0; pass.num_given() * width];
        let memory = Memory {
            hidden: Shared::of(&mut space.hidden, widths.hidden),
            projected: Shared::of(&mut space.projected, widths.projected),
            context: Shared::of(&mut space.context, widths.context),
            numbers: Shared::of(&mut vectors, width),
        };
        let (own, forms) = (&space.own, space.forms);
        self.pool.run(&[pass.num_given()], |Piece { index, thread, .. }| {
            let mut own = own[thread].lock().unwrap_or_else(PoisonError::into_inner);
            // SAFETY: a text's or a token's numbers are this piece's alone; the streams are written.
            unsafe { pass.finish_text(&memory, index, forms, &mut own) };
        })?;
        self.finite(vectors, batch, *gives)
    }
}
