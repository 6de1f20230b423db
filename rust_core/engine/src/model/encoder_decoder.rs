//! An encoder-decoder's tensors: looked up and measured before memory is taken, then packed.

use std::collections::HashSet;
use std::sync::Arc;

use pyagent_kernels::attention::ScoreBias;
use pyagent_kernels::thread_pool::ThreadPool;

use super::names::{Names, Place};
use super::unread::refuse_others;
use super::{Attention, FeedForward, Gated, Layer, Linear, Loader, Mixer, Norm, Weights, vector};
use crate::config::{EncoderDecoder, ModelConfig, invalid};
use crate::encoder::distances::{Buckets, Distances};
use crate::quantised::Matrices;
use crate::weights::{ModelFile, ModelFileError};

/// Where the embedding may be in a folder: all three are one matrix.
const EMBEDDINGS: [&str; 3] = ["shared", "decoder.embed_tokens", "encoder.embed_tokens"];
/// What the ends of names are of tables that the original has and never reads.
const UNUSED: [&str; 2] = [
    ".EncDecAttention.relative_attention_bias.weight",
    ".cross_attn_rel_b.weight",
];

/// The layers that read a prompt, and what makes of it the keys and values that the decoder attends to.
pub(crate) struct PromptWeights {
    /// The encoder's layers; their embedding is the decoder's.
    pub(crate) layers: Weights,
    /// What is added to their scores by distance.
    pub(crate) distances: Vec<Distances>,
    /// Of each of the file's decoder layers, the matrices of keys and of values.
    pub(crate) cross: Vec<[Linear; 2]>,
}

impl PromptWeights {
    /// Bytes held by matrices, without the embedding.
    pub(crate) fn bytes(&self) -> usize {
        let cross = self.cross.iter().flatten();
        let embedding = self.layers.embedding.bytes();
        let distances: usize = self.distances.iter().map(Distances::held_bytes).sum();
        self.layers.bytes() - embedding + distances + cross.map(|linear| linear.weight.bytes()).sum::<usize>()
    }
}

/// Which half a tensor is of.
#[derive(Clone, Copy, PartialEq)]
enum Half {
    Encoder,
    Decoder,
}

/// A part of a layer of either half.
#[derive(Clone, Copy, PartialEq)]
enum Part {
    Query,
    Key,
    Value,
    Output,
    Norm,
    CrossQuery,
    CrossKey,
    CrossValue,
    CrossOutput,
    CrossNorm,
    Gate,
    Up,
    Down,
    FfnNorm,
    Distances,
}

/// What tensors are called, without `.weight`.
struct T5Names {
    is_gguf: bool,
    has_gate: bool,
}

impl T5Names {
    fn of(file: &ModelFile, config: &ModelConfig) -> Self {
        Self {
            is_gguf: matches!(file, ModelFile::Gguf(_)),
            has_gate: config.activation.has_gate(),
        }
    }

    fn part(&self, half: Half, layer: usize, part: Part) -> Place {
        if self.is_gguf {
            let half = if half == Half::Encoder { "enc" } else { "dec" };
            return Place::whole(format!("{half}.blk.{layer}.{}", gguf_name(part)));
        }
        let (place, ffn) = if half == Half::Encoder {
            ("encoder", 1)
        } else {
            ("decoder", 2)
        };
        let name = match part {
            Part::Query => "0.SelfAttention.q".to_owned(),
            Part::Key => "0.SelfAttention.k".to_owned(),
            Part::Value => "0.SelfAttention.v".to_owned(),
            Part::Output => "0.SelfAttention.o".to_owned(),
            Part::Norm => "0.layer_norm".to_owned(),
            Part::CrossQuery => "1.EncDecAttention.q".to_owned(),
            Part::CrossKey => "1.EncDecAttention.k".to_owned(),
            Part::CrossValue => "1.EncDecAttention.v".to_owned(),
            Part::CrossOutput => "1.EncDecAttention.o".to_owned(),
            Part::CrossNorm => "1.layer_norm".to_owned(),
            Part::Gate => format!("{ffn}.DenseReluDense.wi_0"),
            Part::Up if self.has_gate => format!("{ffn}.DenseReluDense.wi_1"),
            Part::Up => format!("{ffn}.DenseReluDense.wi"),
            Part::Down => format!("{ffn}.DenseReluDense.wo"),
            Part::FfnNorm => format!("{ffn}.layer_norm"),
            Part::Distances => "0.SelfAttention.relative_attention_bias".to_owned(),
        };
        Place::whole(format!("{place}.block.{layer}.layer.{name}"))
    }

    fn final_norm(&self, half: Half) -> &'static str {
        match (self.is_gguf, half) {
            (true, Half::Encoder) => "enc.output_norm.weight",
            (true, Half::Decoder) => "dec.output_norm.weight",
            (false, Half::Encoder) => "encoder.final_layer_norm.weight",
            (false, Half::Decoder) => "decoder.final_layer_norm.weight",
        }
    }

    fn output(&self) -> &'static str {
        if self.is_gguf { "output" } else { "lm_head" }
    }
}

fn gguf_name(part: Part) -> &'static str {
    match part {
        Part::Query => "attn_q",
        Part::Key => "attn_k",
        Part::Value => "attn_v",
        Part::Output => "attn_o",
        Part::Norm => "attn_norm",
        Part::CrossQuery => "cross_attn_q",
        Part::CrossKey => "cross_attn_k",
        Part::CrossValue => "cross_attn_v",
        Part::CrossOutput => "cross_attn_o",
        Part::CrossNorm => "cross_attn_norm",
        Part::Gate => "ffn_gate",
        Part::Up => "ffn_up",
        Part::Down => "ffn_down",
        Part::FfnNorm => "ffn_norm",
        Part::Distances => "attn_rel_b",
    }
}

/// Where the embedding is.
fn embedding(file: &ModelFile) -> Result<&'static str, ModelFileError> {
    if matches!(file, ModelFile::Gguf(_)) {
        return Ok("token_embd");
    }
    for name in EMBEDDINGS {
        if file.find_stored(&format!("{name}.weight"))?.is_some() {
            return Ok(name);
        }
    }
    Ok(EMBEDDINGS[0])
}

/// Refuses a folder whose halves have embeddings of their own.
fn check_embeddings(file: &ModelFile) -> Result<(), ModelFileError> {
    let mut found = Vec::new();
    for name in EMBEDDINGS {
        found.extend(file.find_tensor(&format!("{name}.weight"))?);
    }
    match found.windows(2).find(|pair| pair[0].bytes != pair[1].bytes) {
        None => Ok(()),
        Some(pair) => Err(invalid(format!(
            "tensors '{}' and '{}' differ, and halves with embeddings of their own are not implemented",
            pair[0].name, pair[1].name
        ))),
    }
}

/// Completes an encoder-decoder's configuration by what tensors say.
pub(super) fn with_tensors(file: &ModelFile, mut config: ModelConfig) -> Result<ModelConfig, ModelFileError> {
    let name = embedding(file)?;
    let tensor = file.tensor(&format!("{name}.weight"))?;
    let (rows, cols) = (tensor.rows(), tensor.cols());
    if cols != config.hidden_size {
        let hidden = config.hidden_size;
        return Err(invalid(format!(
            "tensor '{}' is {rows} x {cols}, but the hidden size is {hidden}",
            tensor.name
        )));
    }
    config.vocab_size = rows;
    let names = T5Names::of(file, &config);
    let has_output = file.find_stored(&format!("{}.weight", names.output()))?.is_some();
    config.is_output_tied = Some(!has_output);
    // No key says so: of a file whose embedding gives logits, those are scaled.
    if names.is_gguf && !has_output {
        config.logit_divisor = (config.hidden_size as f32).sqrt();
    }
    if let Some(own) = &mut config.encoder_decoder {
        let start = match own.decoder_start {
            Some(start) => start,
            None => said_beside(file)?.unwrap_or(own.pad),
        };
        if start as usize >= rows {
            return Err(invalid(format!(
                "'decoder_start_token_id' is {start}, but the vocabulary has {rows} tokens"
            )));
        }
        own.decoder_start = Some(start);
    }
    Ok(config)
}

/// The token after which answers begin, where a folder says it in `generation_config.json` alone.
fn said_beside(file: &ModelFile) -> Result<Option<u32>, ModelFileError> {
    let path = file.path().join("generation_config.json");
    if matches!(file, ModelFile::Gguf(_)) || !path.is_file() {
        return Ok(None);
    }
    let fields = crate::safetensors::read_object(&path)?;
    let start = fields.get("decoder_start_token_id").and_then(serde_json::Value::as_u64);
    Ok(start.and_then(|start| u32::try_from(start).ok()))
}

/// Loads both halves, using the pool's threads. Raises as [`super::load`].
pub(crate) fn load_encoder_decoder(
    file: &ModelFile,
    config: &ModelConfig,
    own: &EncoderDecoder,
    pool: &ThreadPool,
) -> Result<(Weights, PromptWeights), ModelFileError> {
    load(file, config, own, pool).map_err(|error| error.in_file(file.path()))
}

fn load(
    file: &ModelFile,
    config: &ModelConfig,
    own: &EncoderDecoder,
    pool: &ThreadPool,
) -> Result<(Weights, PromptWeights), ModelFileError> {
    file.forget_asked();
    let halves = Halves::new(file, config, own, pool)?;
    check_embeddings(file)?;
    halves.check()?;
    let weights = halves.load()?;
    let known: HashSet<String> = EMBEDDINGS.iter().map(|name| format!("{name}.weight")).collect();
    refuse_others(file, config.architecture.name(), |name| {
        known.contains(name) || UNUSED.iter().any(|end| name.ends_with(end))
    })?;
    Ok(weights)
}

/// Refuses a file of which either half lacks a tensor, or has one of another size; reads none.
pub(super) fn check(
    file: &ModelFile,
    config: &ModelConfig,
    own: &EncoderDecoder,
    pool: &ThreadPool,
) -> Result<(), ModelFileError> {
    Halves::new(file, config, own, pool)?.check()
}

struct Halves<'a> {
    loader: Loader<'a>,
    names: T5Names,
    own: &'a EncoderDecoder,
    num_decoder_layers: usize,
}

impl<'a> Halves<'a> {
    fn new(
        file: &'a ModelFile,
        config: &'a ModelConfig,
        own: &'a EncoderDecoder,
        pool: &'a ThreadPool,
    ) -> Result<Self, ModelFileError> {
        Ok(Self {
            loader: Loader {
                file,
                config,
                pool,
                names: Names::of_model(file, config),
                matrices: Matrices::of(file)?,
                score_bias: None,
            },
            names: T5Names::of(file, config),
            own,
            num_decoder_layers: config.num_file_layers(),
        })
    }

    /// Refuses a file that lacks a tensor, or has one of another size.
    fn check(&self) -> Result<(), ModelFileError> {
        let ModelConfig {
            hidden_size: hidden,
            ffn_size: ffn,
            vocab_size,
            ..
        } = *self.loader.config;
        let inner = self.loader.config.query_size();
        let cross = [Part::CrossQuery, Part::CrossKey, Part::CrossValue, Part::CrossOutput];
        let own = [Part::Query, Part::Key, Part::Value, Part::Output];
        for (half, layers) in self.layers() {
            for layer in 0..layers {
                let is_decoder = half == Half::Decoder;
                let attention = own.iter().chain(cross.iter().filter(|_| is_decoder));
                for &part in attention {
                    let is_output = matches!(part, Part::Output | Part::CrossOutput);
                    let (rows, cols) = if is_output { (hidden, inner) } else { (inner, hidden) };
                    self.loader.check(&self.names.part(half, layer, part), rows, cols)?;
                }
                let gate = self.names.has_gate.then_some(Part::Gate);
                for part in gate.into_iter().chain([Part::Up]) {
                    self.loader.check(&self.names.part(half, layer, part), ffn, hidden)?;
                }
                self.loader
                    .check(&self.names.part(half, layer, Part::Down), hidden, ffn)?;
                let norms = [Part::Norm, Part::FfnNorm]
                    .into_iter()
                    .chain(is_decoder.then_some(Part::CrossNorm));
                for part in norms {
                    let tensor = self.loader.file.tensor(&self.names.part(half, layer, part).weight())?;
                    super::expect(tensor.name, (tensor.rows() * tensor.cols(), 1), (hidden, 1))?;
                }
            }
            for layer in 0..self.num_tables(layers) {
                let tensor = self
                    .loader
                    .file
                    .tensor(&self.names.part(half, layer, Part::Distances).weight())?;
                let size = (self.own.num_buckets, self.loader.config.num_heads);
                super::expect(tensor.name, (tensor.rows(), tensor.cols()), size)?;
            }
            let norm = self.loader.file.tensor(self.names.final_norm(half))?;
            super::expect(norm.name, (norm.rows() * norm.cols(), 1), (hidden, 1))?;
        }
        if self.loader.config.is_output_tied == Some(false) {
            let output = Place::whole(self.names.output().to_owned());
            self.loader.check(&output, vocab_size, hidden)?;
        }
        Ok(())
    }

    fn load(&self) -> Result<(Weights, PromptWeights), ModelFileError> {
        let config = self.loader.config;
        let embedding = format!("{}.weight", embedding(self.loader.file)?);
        let embedding = Arc::new(self.loader.matrix(&embedding, config.vocab_size, config.hidden_size)?);
        let output = (config.is_output_tied == Some(false)).then(|| {
            let name = format!("{}.weight", self.names.output());
            self.loader.matrix(&name, config.vocab_size, config.hidden_size)
        });
        let whole = |half, layers, output| {
            Ok::<_, ModelFileError>(Weights {
                embedding: Arc::clone(&embedding),
                layers,
                positions: None,
                embedding_norm: None,
                final_norm: Norm::Rms(self.loader.norm(self.names.final_norm(half), config.hidden_size)?),
                output,
                output_bias: None,
                per_layer: None,
                mtp: None,
            })
        };
        let biases = self.score_biases()?;
        let layers = (0..config.num_layers).map(|layer| self.decoder_layer(layer, &biases));
        let layers = layers.collect::<Result<_, _>>()?;
        let decoder = whole(Half::Decoder, layers, output.transpose()?)?;
        let layers = (0..self.own.num_encoder_layers).map(|layer| {
            let attention = self.attention(Half::Encoder, layer, [Part::Query, Part::Output], true)?;
            self.layer(Half::Encoder, layer, Part::Norm, attention, true)
        });
        let encoder = whole(Half::Encoder, layers.collect::<Result<_, _>>()?, None)?;
        let cross = (0..self.num_decoder_layers).map(|layer| {
            let of = |part| self.inner(Half::Decoder, layer, part);
            Ok::<_, ModelFileError>([of(Part::CrossKey)?, of(Part::CrossValue)?])
        });
        let prompts = PromptWeights {
            layers: encoder,
            distances: self.distances()?,
            cross: cross.collect::<Result<_, _>>()?,
        };
        Ok((decoder, prompts))
    }

    fn layers(&self) -> [(Half, usize); 2] {
        [
            (Half::Encoder, self.own.num_encoder_layers),
            (Half::Decoder, self.num_decoder_layers),
        ]
    }

    /// Tables of distances of a half: one for all layers, or one for each.
    fn num_tables(&self, layers: usize) -> usize {
        if self.own.has_own_distances { layers } else { 1 }
    }

    /// The tables of a half, of a number for each bucket and head, with their buckets.
    fn tables(&self, half: Half) -> Result<(Buckets, Vec<Vec<f32>>), ModelFileError> {
        let layers = self.layers().into_iter().find(|(other, _)| *other == half);
        let buckets = Buckets {
            count: self.own.num_buckets,
            farthest: self.own.farthest,
            is_causal: half == Half::Decoder,
        };
        let tables = (0..self.num_tables(layers.map_or(0, |(_, layers)| layers))).map(|layer| {
            let name = self.names.part(half, layer, Part::Distances).weight();
            let size = buckets.count * self.loader.config.num_heads;
            let table = vector(&self.loader.file.tensor(&name)?, size)?;
            match table.iter().all(|number| number.is_finite()) {
                true => Ok(table),
                false => Err(invalid(format!("tensor '{name}' has numbers that are not finite"))),
            }
        });
        Ok((buckets, tables.collect::<Result<_, _>>()?))
    }

    /// What is added to the encoder's scores, in texts of any length that there may be.
    fn distances(&self) -> Result<Vec<Distances>, ModelFileError> {
        let config = self.loader.config;
        let (buckets, tables) = self.tables(Half::Encoder)?;
        let tables = tables.into_iter().map(|table| {
            let mut distances = Distances::of_table(config.num_heads, buckets, table);
            distances.grow_to(config.context_length);
            distances
        });
        Ok(tables.collect())
    }

    /// What is added to the decoder's: from the farthest distance on it is the same.
    fn score_biases(&self) -> Result<Vec<Arc<ScoreBias>>, ModelFileError> {
        let num_heads = self.loader.config.num_heads;
        let (buckets, tables) = self.tables(Half::Decoder)?;
        let biases = tables.iter().map(|table| {
            let heads = (0..num_heads).flat_map(|head| {
                (0..=buckets.farthest).map(move |distance| table[buckets.row(distance, false) * num_heads + head])
            });
            let heads: Vec<f32> = heads.collect();
            let bias = ScoreBias::from_table(&heads, num_heads).map_err(|error| invalid(error.to_string()))?;
            Ok(Arc::new(bias))
        });
        biases.collect()
    }

    /// One of two layers that are one of the file's: the first attends to the answer, the second to the prompt.
    fn decoder_layer(&self, layer: usize, biases: &[Arc<ScoreBias>]) -> Result<Layer, ModelFileError> {
        let (half, of_file) = (Half::Decoder, layer / 2);
        if self.loader.config.is_cross(layer) {
            let attention = self.attention(half, of_file, [Part::CrossQuery, Part::CrossOutput], false)?;
            self.layer(half, of_file, Part::CrossNorm, attention, true)
        } else {
            let attention = self.attention(half, of_file, [Part::Query, Part::Output], true)?;
            let bias = biases.get(of_file).or_else(|| biases.first());
            Ok(Layer {
                score_bias: bias.cloned(),
                ..self.layer(half, of_file, Part::Norm, attention, false)?
            })
        }
    }

    fn layer(
        &self,
        half: Half,
        of_file: usize,
        first_norm: Part,
        (attention, output): (Attention, Linear),
        has_ffn: bool,
    ) -> Result<Layer, ModelFileError> {
        let size = self.loader.config.hidden_size;
        let norm = |part| {
            let place = self.names.part(half, of_file, part);
            self.loader.norm(&place.weight(), size).map(Norm::Rms)
        };
        Ok(Layer {
            attention_norm: Some(norm(first_norm)?),
            mixer: Mixer::Attention(Box::new(attention)),
            attention_output: Some(output),
            sinks: None,
            score_bias: None,
            post_attention_norm: None,
            ffn_norm: has_ffn.then(|| norm(Part::FfnNorm)).transpose()?,
            ffn: match has_ffn {
                true => FeedForward::Dense(self.feed_forward(half, of_file)?),
                false => FeedForward::Absent,
            },
            post_ffn_norm: None,
            separate_experts: None,
            per_layer: None,
            scale: 1.0,
        })
    }

    fn attention(
        &self,
        half: Half,
        layer: usize,
        [query, output]: [Part; 2],
        has_kv: bool,
    ) -> Result<(Attention, Linear), ModelFileError> {
        let config = self.loader.config;
        let of_kv = |part| has_kv.then(|| self.inner(half, layer, part)).transpose();
        let attention = Attention {
            query: self.inner(half, layer, query)?,
            key: of_kv(Part::Key)?,
            value: of_kv(Part::Value)?,
            gate: None,
            query_norm: None,
            key_norm: None,
            value_norm: None,
        };
        let output = self.names.part(half, layer, output);
        let output = self.loader.linear(&output, config.hidden_size, config.query_size())?;
        Ok((attention, output))
    }

    /// A matrix from the stream to all heads.
    fn inner(&self, half: Half, layer: usize, part: Part) -> Result<Linear, ModelFileError> {
        let config = self.loader.config;
        let place = self.names.part(half, layer, part);
        self.loader.linear(&place, config.query_size(), config.hidden_size)
    }

    fn feed_forward(&self, half: Half, layer: usize) -> Result<Gated, ModelFileError> {
        let (hidden, ffn) = (self.loader.config.hidden_size, self.loader.config.ffn_size);
        let linear = |part, rows, cols| self.loader.linear(&self.names.part(half, layer, part), rows, cols);
        let gate = self.names.has_gate.then(|| linear(Part::Gate, ffn, hidden));
        Ok(Gated {
            gate: gate.transpose()?,
            up: linear(Part::Up, ffn, hidden)?,
            down: linear(Part::Down, hidden, ffn)?,
            curve: None,
        })
    }
}
