//! A decoder's weights, arranged for the kernels.
//!
//! The file is mapped; each matrix is rearranged once into rows interleaved by sixteen, what the kernels and AMX tiles
//! read, and the pages of the mapping are given back at once, so that a model is resident once.

use std::path::Path;

use pyagent_kernels::elementwise::RopeScaling;
use pyagent_kernels::ggml::GgmlType;
use pyagent_kernels::pack::{PackError, PackedMatrix};
use pyagent_kernels::thread_pool::ThreadPool;

use crate::config::{Architecture, ModelConfig, invalid};
use crate::weights::{ModelFile, ModelFileError, TensorView};

/// Row groups one thread packs at a time.
const PACK_GROUPS: usize = 4;

/// A matrix and its optional bias.
pub struct Linear {
    /// The matrix, [out, in].
    pub weight: PackedMatrix,
    /// One value per row.
    pub bias: Option<Vec<f32>>,
}

/// One decoder layer's weights. The optional norms are Qwen3's and Gemma's.
#[expect(missing_docs, reason = "the fields are the names every model card uses")]
pub struct Layer {
    pub attention_norm: Vec<f32>,
    pub query: Linear,
    pub key: Linear,
    pub value: Linear,
    pub query_norm: Option<Vec<f32>>,
    pub key_norm: Option<Vec<f32>>,
    pub attention_output: Linear,
    pub post_attention_norm: Option<Vec<f32>>,
    pub ffn_norm: Vec<f32>,
    pub gate: Linear,
    pub up: Linear,
    pub down: Linear,
    pub post_ffn_norm: Option<Vec<f32>>,
}

/// A decoder's weights.
pub struct Weights {
    /// Token embeddings, [vocab, hidden]; also the output matrix when that is absent.
    pub embedding: PackedMatrix,
    /// The layers, in order.
    pub layers: Vec<Layer>,
    /// The norm before the output matrix.
    pub final_norm: Vec<f32>,
    /// The output matrix, [vocab, hidden], when it is not the embedding.
    pub output: Option<PackedMatrix>,
}

impl Weights {
    /// The matrix that gives logits.
    pub fn output_matrix(&self) -> &PackedMatrix {
        self.output.as_ref().unwrap_or(&self.embedding)
    }

    /// Bytes held by matrices.
    pub fn bytes(&self) -> usize {
        let layers = self.layers.iter().flat_map(|layer| {
            [
                &layer.query,
                &layer.key,
                &layer.value,
                &layer.attention_output,
                &layer.gate,
                &layer.up,
                &layer.down,
            ]
        });
        layers.map(|linear| linear.weight.bytes()).sum::<usize>()
            + self.embedding.bytes()
            + self.output.as_ref().map_or(0, PackedMatrix::bytes)
    }
}

/// Opens a model file and reads what it says about itself.
pub fn open(path: &Path) -> Result<(ModelFile, ModelConfig), ModelFileError> {
    let file = ModelFile::open(path)?;
    let config = configuration(&file).map_err(|error| error.in_file(path))?;
    Ok((file, config))
}

fn configuration(file: &ModelFile) -> Result<ModelConfig, ModelFileError> {
    let mut config = match file {
        ModelFile::Gguf(gguf) => ModelConfig::from_gguf(gguf)?,
        ModelFile::Safetensors(folder) => ModelConfig::from_hugging_face(folder.config())?,
    };
    let names = Names::of(file);
    let embedding = file.tensor(&names.embedding())?;
    let (rows, cols) = (embedding.rows(), embedding.cols());
    if cols != config.hidden_size {
        return Err(invalid(format!(
            "the embedding is {rows} x {cols}, but the hidden size is {}",
            config.hidden_size
        )));
    }
    config.vocab_size = rows;
    if let Some(factors) = file.find_tensor("rope_freqs.weight")? {
        config.rope_scaling = RopeScaling::Factors(vector(&factors, config.head_dim / 2)?);
        if config.architecture != Architecture::Gemma3 {
            config.local_rope_scaling = config.rope_scaling.clone();
        }
    }
    Ok(config)
}

/// Whether the embedding is the output matrix too.
pub fn is_output_tied(file: &ModelFile, config: &ModelConfig) -> Result<bool, ModelFileError> {
    match config.is_output_tied {
        Some(is_tied) => Ok(is_tied),
        None => Ok(file.find_tensor(&Names::of(file).output())?.is_none()),
    }
}

/// What the file calls a decoder's tensor that GGUF files call `name`; `None` where that is none of a decoder's.
pub fn name_in_file(file: &ModelFile, config: &ModelConfig, name: &str) -> Option<String> {
    let names = Names::of(file);
    match name {
        "token_embd.weight" => Some(names.embedding()),
        "output_norm.weight" => Some(names.final_norm()),
        "output.weight" => Some(names.output()),
        _ => {
            let (layer, rest) = name.strip_prefix("blk.")?.split_once('.')?;
            let layer = layer.parse().ok()?;
            PARTS.iter().find_map(|part| {
                let end = rest.strip_prefix(gguf_part(*part))?;
                let is_whole = end.is_empty() || end.starts_with('.');
                is_whole.then(|| names.layer(layer, *part, config) + end)
            })
        }
    }
}

/// Loads every tensor, using the pool's threads. Raises when a tensor is missing, has another shape than the
/// configuration says, or is of a type that cannot be packed.
pub fn load(file: &ModelFile, config: &ModelConfig, pool: &ThreadPool) -> Result<Weights, ModelFileError> {
    weights(file, config, pool).map_err(|error| error.in_file(file.path()))
}

fn weights(file: &ModelFile, config: &ModelConfig, pool: &ThreadPool) -> Result<Weights, ModelFileError> {
    let loader = Loader {
        file,
        config,
        pool,
        names: Names::of(file),
    };
    let layers = (0..config.num_layers)
        .map(|layer| loader.layer(layer))
        .collect::<Result<_, _>>()?;
    let output_name = loader.names.output();
    let has_output = !is_output_tied(file, config)?;
    Ok(Weights {
        embedding: loader.matrix(&loader.names.embedding(), config.vocab_size, config.hidden_size)?,
        layers,
        final_norm: loader.norm(&loader.names.final_norm(), config.hidden_size)?,
        output: has_output
            .then(|| loader.matrix(&output_name, config.vocab_size, config.hidden_size))
            .transpose()?,
    })
}

struct Loader<'a> {
    file: &'a ModelFile,
    config: &'a ModelConfig,
    pool: &'a ThreadPool,
    names: Names,
}

impl Loader<'_> {
    fn layer(&self, layer: usize) -> Result<Layer, ModelFileError> {
        let config = self.config;
        let hidden = config.hidden_size;
        let name = |part: Part| self.names.layer(layer, part, config);
        Ok(Layer {
            attention_norm: self.norm(&name(Part::AttentionNorm), hidden)?,
            query: self.linear(&name(Part::Query), config.query_size(), hidden)?,
            key: self.linear(&name(Part::Key), config.kv_size(), hidden)?,
            value: self.linear(&name(Part::Value), config.kv_size(), hidden)?,
            query_norm: self.optional_norm(&name(Part::QueryNorm), config.head_dim)?,
            key_norm: self.optional_norm(&name(Part::KeyNorm), config.head_dim)?,
            attention_output: self.linear(&name(Part::AttentionOutput), hidden, config.query_size())?,
            post_attention_norm: self.optional_norm(&name(Part::PostAttentionNorm), hidden)?,
            ffn_norm: self.norm(&name(Part::FfnNorm), hidden)?,
            gate: self.linear(&name(Part::Gate), config.ffn_size, hidden)?,
            up: self.linear(&name(Part::Up), config.ffn_size, hidden)?,
            down: self.linear(&name(Part::Down), hidden, config.ffn_size)?,
            post_ffn_norm: self.optional_norm(&name(Part::PostFfnNorm), hidden)?,
        })
    }

    fn linear(&self, name: &str, rows: usize, cols: usize) -> Result<Linear, ModelFileError> {
        let bias = self
            .file
            .find_tensor(&format!("{name}.bias"))?
            .map(|tensor| vector(&tensor, rows))
            .transpose()?;
        Ok(Linear {
            weight: self.matrix(&format!("{name}.weight"), rows, cols)?,
            bias,
        })
    }

    fn matrix(&self, name: &str, rows: usize, cols: usize) -> Result<PackedMatrix, ModelFileError> {
        let tensor = self.file.tensor(name)?;
        if (tensor.rows(), tensor.cols()) != (rows, cols) {
            let got = (tensor.rows(), tensor.cols());
            return Err(invalid(format!(
                "tensor '{name}' is {} x {}; expected {rows} x {cols}",
                got.0, got.1
            )));
        }
        let refused = |error: PackError| invalid(format!("tensor '{name}' cannot be packed: {error}"));
        let packed = PackedMatrix::allocate(tensor.kind, rows, cols).map_err(refused)?;
        packed.check_source(tensor.bytes).map_err(refused)?;
        let num_groups = packed.num_groups();
        self.pool
            .run(&[num_groups.div_ceil(PACK_GROUPS)], |piece| {
                let groups = piece.index * PACK_GROUPS..((piece.index + 1) * PACK_GROUPS).min(num_groups);
                // SAFETY: each piece fills its own groups, and nobody reads them before the run ends.
                unsafe { packed.pack_groups(tensor.bytes, groups) };
            })
            .map_err(|error| invalid(format!("tensor '{name}' cannot be packed: {error}")))?;
        self.file.drop_pages(tensor.bytes);
        Ok(packed)
    }

    fn norm(&self, name: &str, size: usize) -> Result<Vec<f32>, ModelFileError> {
        let mut weight = vector(&self.file.tensor(name)?, size)?;
        weight
            .iter_mut()
            .for_each(|value| *value += self.config.norm_weight_offset);
        Ok(weight)
    }

    fn optional_norm(&self, name: &str, size: usize) -> Result<Option<Vec<f32>>, ModelFileError> {
        self.file
            .find_tensor(name)?
            .is_some()
            .then(|| self.norm(name, size))
            .transpose()
    }
}

/// A tensor of `size` values, as f32.
fn vector(tensor: &TensorView<'_>, size: usize) -> Result<Vec<f32>, ModelFileError> {
    let count = tensor.rows() * tensor.cols();
    if count != size {
        return Err(invalid(format!(
            "tensor '{}' has {count} values; expected {size}",
            tensor.name
        )));
    }
    if !matches!(tensor.kind, GgmlType::F32 | GgmlType::F16 | GgmlType::BF16) {
        return Err(invalid(format!(
            "tensor '{}' is {}; a vector is F32, F16 or BF16",
            tensor.name,
            tensor.kind.name()
        )));
    }
    tensor
        .to_f32()
        .map_err(|error| invalid(format!("tensor '{}': {error}", tensor.name)))
}

#[derive(Clone, Copy)]
enum Part {
    AttentionNorm,
    Query,
    Key,
    Value,
    QueryNorm,
    KeyNorm,
    AttentionOutput,
    PostAttentionNorm,
    FfnNorm,
    Gate,
    Up,
    Down,
    PostFfnNorm,
}

const PARTS: [Part; 13] = [
    Part::AttentionNorm,
    Part::Query,
    Part::Key,
    Part::Value,
    Part::QueryNorm,
    Part::KeyNorm,
    Part::AttentionOutput,
    Part::PostAttentionNorm,
    Part::FfnNorm,
    Part::Gate,
    Part::Up,
    Part::Down,
    Part::PostFfnNorm,
];

/// How a file spells its tensors' names.
enum Names {
    Gguf,
    HuggingFace,
}

impl Names {
    fn of(file: &ModelFile) -> Self {
        match file {
            ModelFile::Gguf(_) => Self::Gguf,
            ModelFile::Safetensors(_) => Self::HuggingFace,
        }
    }

    fn embedding(&self) -> String {
        self.pick("token_embd.weight", "model.embed_tokens.weight")
    }

    fn final_norm(&self) -> String {
        self.pick("output_norm.weight", "model.norm.weight")
    }

    fn output(&self) -> String {
        self.pick("output.weight", "lm_head.weight")
    }

    fn pick(&self, gguf: &str, hugging_face: &str) -> String {
        match self {
            Self::Gguf => gguf.to_owned(),
            Self::HuggingFace => hugging_face.to_owned(),
        }
    }

    /// The name of a layer's tensor: whole for norms, without `.weight` for matrices.
    fn layer(&self, layer: usize, part: Part, config: &ModelConfig) -> String {
        let has_four_norms = config.architecture.is_gemma();
        match self {
            Self::Gguf => format!("blk.{layer}.{}", gguf_part(part)),
            Self::HuggingFace => format!("model.layers.{layer}.{}", hugging_face_part(part, has_four_norms)),
        }
    }
}

fn gguf_part(part: Part) -> &'static str {
    match part {
        Part::AttentionNorm => "attn_norm.weight",
        Part::Query => "attn_q",
        Part::Key => "attn_k",
        Part::Value => "attn_v",
        Part::QueryNorm => "attn_q_norm.weight",
        Part::KeyNorm => "attn_k_norm.weight",
        Part::AttentionOutput => "attn_output",
        Part::PostAttentionNorm => "post_attention_norm.weight",
        Part::FfnNorm => "ffn_norm.weight",
        Part::Gate => "ffn_gate",
        Part::Up => "ffn_up",
        Part::Down => "ffn_down",
        Part::PostFfnNorm => "post_ffw_norm.weight",
    }
}

/// In Hugging Face's Llama, `post_attention_layernorm` is the norm before the feed-forward block; in Gemma it is what
/// it says.
fn hugging_face_part(part: Part, has_four_norms: bool) -> &'static str {
    match part {
        Part::AttentionNorm => "input_layernorm.weight",
        Part::Query => "self_attn.q_proj",
        Part::Key => "self_attn.k_proj",
        Part::Value => "self_attn.v_proj",
        Part::QueryNorm => "self_attn.q_norm.weight",
        Part::KeyNorm => "self_attn.k_norm.weight",
        Part::AttentionOutput => "self_attn.o_proj",
        Part::PostAttentionNorm if has_four_norms => "post_attention_layernorm.weight",
        Part::PostAttentionNorm => "(none)",
        Part::FfnNorm if has_four_norms => "pre_feedforward_layernorm.weight",
        Part::FfnNorm => "post_attention_layernorm.weight",
        Part::Gate => "mlp.gate_proj",
        Part::Up => "mlp.up_proj",
        Part::Down => "mlp.down_proj",
        Part::PostFfnNorm => "post_feedforward_layernorm.weight",
    }
}
