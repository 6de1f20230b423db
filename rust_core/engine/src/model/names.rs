//! What files call a decoder's tensors, and where one lies that is part of another.

mod families;
mod hybrid;
mod mtp;

use std::ops::Range;

use self::families::{falcon_norm, family_part};
use self::hybrid::{
    bamba_part, gate_up_rows, gguf_part_of, granite_part, kimi_part, lfm2_part, lfm3_part, mamba_rows, minimax_part,
    nemotron_part,
};
use crate::config::{Architecture, ModelConfig, Rating, invalid};
use crate::quantised::{Matrices, Matrix};
use crate::weights::{ModelFile, ModelFileError, TensorView};

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
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
    MixerInput,
    MixerGate,
    MixerRate,
    MixerDecay,
    MixerConvolution,
    MixerDecayBase,
    MixerDecayBias,
    MixerNorm,
    MixerOutput,
    MixerSkip,
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

/// Where a layer's tensor is: its name in the file, whole for norms, without `.weight` for matrices.
pub(super) struct Place {
    pub(super) name: String,
    /// Which rows, where several matrices lie in one.
    pub(super) rows: Option<Range<usize>>,
    /// Which row the bias is, where those of several experts lie in one.
    pub(super) bias_row: Option<usize>,
    /// Whether the name is whole without `.weight`; there is no bias then.
    pub(super) is_bare: bool,
    /// Whether the file has its columns as rows.
    pub(super) is_transposed: bool,
}

impl Place {
    /// A tensor that is not part of another.
    pub(super) fn whole(name: String) -> Self {
        Self {
            name,
            rows: None,
            bias_row: None,
            is_bare: false,
            is_transposed: false,
        }
    }

    /// The bias, if the file has one.
    pub(super) fn bias<'a>(&self, file: &'a ModelFile) -> Result<Option<TensorView<'a>>, ModelFileError> {
        if self.is_bare {
            return Ok(None);
        }
        let Some(row) = self.bias_row else {
            return self.find(file, ".bias");
        };
        let biases = file.find_tensor(&format!("{}.bias", self.name))?;
        Ok(biases.and_then(|biases| biases.part(&(row..row + 1))))
    }

    /// What the matrix is called.
    pub(super) fn weight(&self) -> String {
        format!("{}{}", self.name, if self.is_bare { "" } else { ".weight" })
    }

    /// The matrix of so many columns, if the file has it, plain or quantised. An error where it has not all of the rows.
    pub(super) fn matrix<'a>(
        &self,
        file: &'a ModelFile,
        matrices: &Matrices<'a>,
        cols: usize,
    ) -> Result<Option<Matrix<'a>>, ModelFileError> {
        if self.is_transposed {
            let tensor = file.find_tensor(&self.weight())?;
            return tensor.map(|tensor| self.transposed(tensor)).transpose();
        }
        let quantised = if self.is_bare {
            None
        } else {
            matrices.quantised(&self.name, cols)?
        };
        let Some(matrix) = quantised else {
            return Ok(self.find(file, ".weight")?.map(Matrix::Plain));
        };
        let Some(rows) = &self.rows else {
            return Ok(Some(matrix));
        };
        let (name, (found, _)) = (matrix.name(), matrix.size());
        let part = matrix.part(rows);
        part.map(Some).ok_or_else(|| too_few_rows(name, found, rows))
    }

    /// The matrix that a tensor is the columns of. An error where it has not all of the rows.
    fn transposed<'a>(&self, tensor: TensorView<'a>) -> Result<Matrix<'a>, ModelFileError> {
        let rows = self.rows.clone().unwrap_or(0..tensor.cols());
        if rows.end > tensor.cols() {
            return Err(too_few_rows(tensor.name, tensor.cols(), &rows));
        }
        Ok(Matrix::Transposed(tensor, rows))
    }

    /// The tensor, if the file has it, its name ending in `end`. An error where it has not all of the rows.
    pub(super) fn find<'a>(&self, file: &'a ModelFile, end: &str) -> Result<Option<TensorView<'a>>, ModelFileError> {
        let name = format!("{}{}", self.name, if self.is_bare { "" } else { end });
        let Some(tensor) = file.find_tensor(&name)? else {
            return Ok(None);
        };
        let Some(rows) = &self.rows else {
            return Ok(Some(tensor));
        };
        let (part, found) = (tensor.part(rows), tensor.rows());
        part.map(Some).ok_or_else(|| too_few_rows(&name, found, rows))
    }
}

fn too_few_rows(name: &str, found: usize, rows: &Range<usize>) -> ModelFileError {
    invalid(format!(
        "tensor '{name}' has {found} rows; expected at least {}",
        rows.end
    ))
}

/// How a file spells its tensors' names.
pub(super) enum Names {
    Gguf,
    /// With what the decoder's names begin with; and where a head that drafts has its own, which layer that is and what its
    /// names begin with.
    HuggingFace(Spelling, Option<(usize, &'static str)>),
}

/// What names of safetensors begin with, and what the embedding and layers are called after that.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Spelling {
    begin: &'static str,
    embedding: &'static str,
    layers: &'static str,
}

impl Spelling {
    /// As most families have it.
    pub(super) const fn of(begin: &'static str) -> Self {
        Self {
            begin,
            embedding: "embed_tokens.weight",
            layers: "layers.",
        }
    }

    const fn with_embedding(self, embedding: &'static str) -> Self {
        Self { embedding, ..self }
    }

    const fn with_layers(self, layers: &'static str) -> Self {
        Self { layers, ..self }
    }
}

/// What the decoder's names begin with, unless it was saved without what gives logits.
const DECODER: Spelling = Spelling::of("model.");
/// What the decoder's names begin with where it is the text half of a model of pictures.
const TEXT_HALF: Spelling = Spelling::of("model.language_model.");
/// What Llama 4's names begin with where it is the text half of a model of pictures, and the matrix that gives logits.
const LANGUAGE_MODEL: Spelling = Spelling::of("language_model.model.");
const LANGUAGE_MODEL_OUTPUT: &str = "language_model.lm_head.weight";
/// What Nemotron-H's names begin with.
const BACKBONE: Spelling = Spelling::of("backbone.").with_embedding("embeddings.weight");
/// What the body's names begin with in models that pool by attention: NV-Embed's, and CodeFuse's.
const EMBEDDING_MODEL: Spelling = Spelling::of("embedding_model.");
const PLM_MODEL: Spelling = Spelling::of("plm_model.model.");
/// What GPT-NeoX's names begin with.
const GPT_NEOX: Spelling = Spelling::of("gpt_neox.").with_embedding("embed_in.weight");
/// What `InternLM2`'s names begin with, whose output matrix is not called as the others'.
const INTERNLM2: Spelling = Spelling::of("model.").with_embedding("tok_embeddings.weight");
/// What names begin with whatever the decoder was saved without: MPT's, whose layers are blocks, GPT-2's and those of its
/// time, Falcon's and BLOOM's, OPT's.
const OLDER: [Spelling; 8] = [
    INTERNLM2,
    Spelling::of("transformer.").with_embedding(WTE).with_layers("blocks."),
    Spelling::of("transformer.").with_embedding(WTE).with_layers("h."),
    Spelling::of("").with_embedding(WTE).with_layers("h."),
    Spelling::of("transformer.").with_embedding(WORDS).with_layers("h."),
    Spelling::of("").with_embedding(WORDS).with_layers("h."),
    Spelling::of("model.decoder."),
    Spelling::of("decoder."),
];
const WTE: &str = "wte.weight";
const WORDS: &str = "word_embeddings.weight";

impl Names {
    pub(super) fn of(file: &ModelFile) -> Self {
        match file {
            ModelFile::Gguf(_) => Self::Gguf,
            ModelFile::Safetensors(folder) => {
                let all = [
                    TEXT_HALF,
                    DECODER,
                    Spelling::of(""),
                    LANGUAGE_MODEL,
                    BACKBONE,
                    GPT_NEOX,
                    EMBEDDING_MODEL,
                    PLM_MODEL,
                ];
                let is_known = |spelling: &Spelling| {
                    let embedding = format!("{}{}", spelling.begin, spelling.embedding);
                    !matches!(folder.find_tensor(&embedding), Ok(None))
                };
                // Two of them differ in what layers are called alone.
                let has_layers = |spelling: &Spelling| {
                    let layers = format!("{}{}", spelling.begin, spelling.layers);
                    is_known(spelling) && folder.tensor_names().any(|name| name.starts_with(&layers))
                };
                let all = || all.into_iter().chain(OLDER);
                let found = all().find(has_layers).or_else(|| all().find(is_known));
                Self::HuggingFace(found.unwrap_or(DECODER), None)
            }
        }
    }

    pub(super) fn embedding(&self) -> String {
        match self {
            Self::Gguf => "token_embd.weight".to_owned(),
            Self::HuggingFace(spelling, _) => format!("{}{}", spelling.begin, spelling.embedding),
        }
    }

    /// What the table of learned positions is called.
    pub(super) fn positions(&self, architecture: Architecture) -> String {
        let hugging_face = match architecture {
            Architecture::Opt => "embed_positions.weight",
            _ => "wpe.weight",
        };
        self.of_decoder("position_embd.weight", hugging_face)
    }

    /// What the norm is called of what tokens are looked up as.
    pub(super) fn embedding_norm(&self) -> String {
        self.of_decoder("token_embd_norm.weight", "word_embeddings_layernorm.weight")
    }

    /// LFM2's is called after the embedding.
    pub(super) fn final_norm(&self, architecture: Architecture) -> String {
        match architecture {
            _ if architecture.has_short_convolutions() => {
                self.of_decoder("token_embd_norm.weight", "embedding_norm.weight")
            }
            Architecture::Bamba | Architecture::FalconH1 | Architecture::Jamba | Architecture::Phi2 => {
                self.of_decoder("output_norm.weight", "final_layernorm.weight")
            }
            Architecture::GptNeoX | Architecture::Opt => {
                self.of_decoder("output_norm.weight", "final_layer_norm.weight")
            }
            Architecture::Falcon
            | Architecture::Bloom
            | Architecture::Gpt2
            | Architecture::StarCoder
            | Architecture::GptJ
            | Architecture::GptNeo
            | Architecture::CodeGen => self.of_decoder("output_norm.weight", "ln_f.weight"),
            Architecture::NemotronH | Architecture::Mamba | Architecture::Mamba2 | Architecture::Mpt => {
                self.of_decoder("output_norm.weight", "norm_f.weight")
            }
            _ => self.of_decoder("output_norm.weight", "norm.weight"),
        }
    }

    pub(super) fn output(&self) -> String {
        match self {
            Self::Gguf => "output.weight".to_owned(),
            Self::HuggingFace(LANGUAGE_MODEL, _) => LANGUAGE_MODEL_OUTPUT.to_owned(),
            Self::HuggingFace(GPT_NEOX, _) => "embed_out.weight".to_owned(),
            Self::HuggingFace(INTERNLM2, _) => "output.weight".to_owned(),
            Self::HuggingFace(..) => "lm_head.weight".to_owned(),
        }
    }

    pub(super) fn of_decoder(&self, gguf: &str, hugging_face: &str) -> String {
        match self {
            Self::Gguf => gguf.to_owned(),
            Self::HuggingFace(spelling, _) => format!("{}{hugging_face}", spelling.begin),
        }
    }

    /// The layer that a tensor of the decoder is of, by its name.
    pub(super) fn layer_of(&self, name: &str) -> Option<usize> {
        let rest = match self {
            Self::Gguf => name.strip_prefix("blk.")?,
            Self::HuggingFace(spelling, _) => name.strip_prefix(spelling.begin)?.strip_prefix(spelling.layers)?,
        };
        rest.split('.').next()?.parse().ok()
    }

    /// What layers are called, in all names of layers.
    pub(super) fn layers(&self) -> &'static str {
        match self {
            Self::Gguf => "blk.",
            Self::HuggingFace(spelling, _) => spelling.layers,
        }
    }

    /// Where a layer's tensor is.
    pub(super) fn layer(&self, layer: usize, part: Part, config: &ModelConfig) -> Place {
        let layer = config.file_layer(layer);
        let part = match part {
            Part::FfnNorm if config.shares_norm() => Part::AttentionNorm,
            part => part,
        };
        let fused = fused_part(part, config, matches!(self, Self::Gguf));
        let rows = fused.as_ref().map(|(.., rows)| rows.clone());
        let name = match (self, fused) {
            (Self::Gguf, fused) => {
                let own = falcon_norm(part, config).unwrap_or_else(|| gguf_part_of(part, config.architecture));
                format!("blk.{layer}.{}", fused.map_or(own, |(gguf, ..)| gguf))
            }
            (Self::HuggingFace(..), fused) => {
                let own = || match config.architecture {
                    Architecture::Lfm3 => lfm3_part(part),
                    architecture if architecture.has_short_convolutions() => lfm2_part(part),
                    Architecture::GraniteHybrid => granite_part(part),
                    Architecture::KimiLinear => kimi_part(part),
                    Architecture::MiniMax01 => minimax_part(part),
                    Architecture::NemotronH | Architecture::Mamba | Architecture::Mamba2 => nemotron_part(part),
                    Architecture::Bamba | Architecture::FalconH1 | Architecture::Jamba => bamba_part(part),
                    _ => family_part(part, config),
                };
                let name = fused.map_or_else(own, |(_, name, _)| name);
                format!("{}{name}", self.begin(layer))
            }
        };
        Place {
            name,
            rows,
            bias_row: None,
            is_bare: false,
            is_transposed: self.is_transposed(part, config.architecture),
        }
    }

    /// Where the matrix is that rates a layer's experts.
    pub(super) fn router(&self, layer: usize, config: &ModelConfig) -> Place {
        let hugging_face = match config.architecture {
            Architecture::Llama
            | Architecture::MiniMaxM2
            | Architecture::MiniMax01
            | Architecture::KimiLinear
            | Architecture::PhiMoe => "block_sparse_moe.gate",
            Architecture::GptOss => "mlp.router",
            Architecture::Llama4 | Architecture::Jamba => "feed_forward.router",
            Architecture::HunyuanMoe => "mlp.gate.wg",
            Architecture::GraniteHybrid | Architecture::GraniteMoe => "block_sparse_moe.router.layer",
            Architecture::Lfm2Moe => "feed_forward.gate",
            Architecture::Gemma4 => "router.proj",
            Architecture::NemotronH => "mixer.gate",
            Architecture::GraniteSwa => "block_sparse_moe.router",
            Architecture::Afmoe | Architecture::HyV3 => "mlp.router.gate",
            _ => "mlp.gate",
        };
        self.whole(layer, "ffn_gate_inp", hugging_face)
    }

    /// What the correction of a layer's ratings is called, where the family has one.
    pub(super) fn correction(&self, layer: usize, config: &ModelConfig) -> Option<String> {
        let hugging_face = match config.architecture {
            Architecture::Glm4Moe | Architecture::Dots1 | Architecture::BailingMoe2 | Architecture::AxK1 => {
                "mlp.gate.e_score_correction_bias"
            }
            Architecture::ExaoneMoe => "mlp.e_score_correction_bias",
            Architecture::HyV3 => return Some(self.whole(layer, "exp_probs_b", "mlp.expert_bias").name),
            Architecture::Afmoe => "mlp.expert_bias",
            Architecture::KimiLinear => "block_sparse_moe.gate.e_score_correction_bias",
            Architecture::MiniMaxM2 => "block_sparse_moe.e_score_correction_bias",
            Architecture::Deepseek2 if is_corrected(config) => "mlp.gate.e_score_correction_bias",
            Architecture::NemotronH => "mixer.gate.e_score_correction_bias",
            Architecture::Ernie45Moe => "mlp.moe_statics.e_score_correction_bias",
            Architecture::Lfm2Moe => "feed_forward.expert_bias",
            _ => return None,
        };
        Some(self.whole(layer, "exp_probs_b.bias", hugging_face).name)
    }

    /// Where a matrix of the expert is that all tokens share.
    pub(super) fn shared_expert(&self, layer: usize, part: Part, config: &ModelConfig) -> Place {
        if config.architecture == Architecture::Gemma4 {
            return self.layer(layer, part, config);
        }
        let is_joined = match self {
            Self::Gguf => config.architecture == Architecture::GraniteSwa,
            Self::HuggingFace(..) => matches!(
                config.architecture,
                Architecture::GraniteHybrid | Architecture::GraniteMoe | Architecture::GraniteSwa
            ),
        };
        if is_joined {
            let size = config.experts.map_or(0, |experts| experts.shared_size);
            let gguf = if part == Part::Down {
                "ffn_down_shexp"
            } else {
                "ffn_up_shexp"
            };
            let mut place = self.whole(layer, gguf, granite_part(part));
            place.rows = gate_up_rows(part, size);
            return place;
        }
        let block = match config.architecture {
            Architecture::Qwen2Moe | Architecture::Qwen3Next | Architecture::Qwen35Moe => "shared_expert",
            Architecture::HunyuanMoe | Architecture::HyV3 => "shared_mlp",
            _ => "shared_experts",
        };
        let hugging_face = match config.architecture {
            Architecture::Llama4 => {
                hugging_face_part(part, config.architecture).replace("feed_forward.", "feed_forward.shared_expert.")
            }
            Architecture::NemotronH => nemotron_part(part).replace("mixer.", "mixer.shared_experts."),
            Architecture::KimiLinear => {
                hugging_face_part(part, config.architecture).replace("mlp.", "block_sparse_moe.shared_experts.")
            }
            architecture => hugging_face_part(part, architecture).replace("mlp.", &format!("mlp.{block}.")),
        };
        let gguf = format!("{}_shexp", gguf_part(part, config.architecture));
        self.whole(layer, &gguf, &hugging_face)
    }

    /// Where the row is that says how much of the shared expert a token gets.
    pub(super) fn shared_gate(&self, layer: usize) -> Place {
        self.whole(layer, "ffn_gate_inp_shexp", "mlp.shared_expert_gate")
    }

    /// What the sinks of a layer's heads are called.
    pub(super) fn sinks(&self, layer: usize) -> String {
        self.whole(layer, "attn_sinks.weight", "self_attn.sinks").name
    }

    /// Where the gates of what a layer's heads attended to are, where they are apart.
    pub(super) fn gates(&self, layer: usize) -> Place {
        self.whole(layer, "attn_gate", "self_attn.gate_proj")
    }

    /// A tensor of a layer that is not part of another.
    pub(super) fn whole(&self, layer: usize, gguf: &str, hugging_face: &str) -> Place {
        let name = match self {
            Self::Gguf => format!("blk.{layer}.{gguf}"),
            Self::HuggingFace(..) => format!("{}{hugging_face}", self.begin(layer)),
        };
        Place::whole(name)
    }

    /// What all experts of a layer are called in safetensors that have them in one tensor each.
    pub(super) fn packed_experts(&self, config: &ModelConfig) -> &'static str {
        match config.architecture {
            Architecture::Llama4 => "feed_forward.experts",
            _ => "mlp.experts",
        }
    }

    /// Whether they are in one tensor each.
    pub(super) fn has_packed_experts(&self, config: &ModelConfig) -> bool {
        matches!(self, Self::HuggingFace(..)) && config.architecture.has_packed_experts()
    }

    /// Where an expert's matrix is: GGUF files have all of a layer in one tensor.
    pub(super) fn expert(&self, layer: usize, part: Part, expert: usize, config: &ModelConfig) -> Place {
        match self {
            Self::HuggingFace(..) => {}
            Self::Gguf => {
                let rows = if matches!(part, Part::Down) {
                    config.hidden_size
                } else {
                    config.ffn_size
                };
                let name = stack(layer, part, config.architecture);
                let rows = Some(expert * rows..(expert + 1) * rows);
                return Place {
                    name,
                    rows,
                    bias_row: Some(expert),
                    is_bare: false,
                    is_transposed: false,
                };
            }
        }
        let (block, [gate, up, down]) = match config.architecture {
            Architecture::Llama
            | Architecture::MiniMaxM2
            | Architecture::MiniMax01
            | Architecture::KimiLinear
            | Architecture::PhiMoe => ("block_sparse_moe", ["w1", "w3", "w2"]),
            Architecture::Lfm2Moe => ("feed_forward", ["w1", "w3", "w2"]),
            Architecture::Jamba => ("feed_forward", ["gate_proj", "up_proj", "down_proj"]),
            Architecture::NemotronH => ("mixer", ["(none)", "up_proj", "down_proj"]),
            _ => ("mlp", ["gate_proj", "up_proj", "down_proj"]),
        };
        let matrix = match part {
            Part::Gate => gate,
            Part::Up => up,
            _ => down,
        };
        let begin = self.begin(layer);
        Place::whole(format!("{begin}{block}.experts.{expert}.{matrix}"))
    }

    /// Refuses a GGUF file's tensor of all experts that has not a matrix of this size for each, and biases that are not
    /// a row for each.
    pub(super) fn check_stack(
        &self,
        file: &ModelFile,
        layer: usize,
        part: Part,
        (rows, cols): (usize, usize),
        config: &ModelConfig,
    ) -> Result<(), ModelFileError> {
        let Self::Gguf = self else { return Ok(()) };
        let num_experts = config.experts.map_or(0, |experts| experts.num_experts);
        let stack = stack(layer, part, config.architecture);
        let expect = |name: &str, dims: &[usize], expected: &[usize]| {
            let is_right = dims == expected;
            is_right
                .then_some(())
                .ok_or_else(|| invalid(format!("tensor '{name}' is {dims:?}; expected {expected:?}")))
        };
        let name = format!("{stack}.weight");
        expect(&name, file.tensor(&name)?.dims, &[cols, rows, num_experts])?;
        let name = format!("{stack}.bias");
        match file.find_tensor(&name)? {
            Some(bias) => expect(&name, bias.dims, &[rows, num_experts]),
            None => Ok(()),
        }
    }

    /// Where the tensor is that GGUF files call `name`, and how that ends beyond the place's.
    pub(super) fn named<'a>(&self, name: &'a str, config: &ModelConfig) -> Option<(Place, &'a str)> {
        let (layer, rest) = name.strip_prefix("blk.")?.split_once('.')?;
        let layer = layer.parse().ok()?;
        if rest == "ffn_norm.weight" {
            return Some((self.layer(layer, Part::FfnNorm, config), "")); // whatever the family's GGUF files call it
        }
        if let Some(end) = rest
            .strip_prefix("attn_gate")
            .filter(|_| config.architecture.are_gates_apart())
        {
            return Some((self.gates(layer), end));
        }
        if rest == "attn_sinks.weight" && config.architecture.has_sinks() {
            let name = self.sinks(layer);
            let place = Place {
                is_bare: true,
                ..Place::whole(name)
            };
            return Some((place, ""));
        }
        let own = PARTS.iter().find_map(|part| {
            let end = rest.strip_prefix(gguf_part(*part, config.architecture))?;
            let is_whole = end.is_empty() || end.starts_with('.');
            is_whole.then(|| (self.layer(layer, *part, config), end))
        });
        own.or_else(|| self.named_of_experts(layer, rest, config))
    }

    /// The same of a layer's experts: their router and its correction, what all tokens share, and `ffn_gate_exps.5`, which GGUF files have in
    /// one tensor with the others; what all of them are called together, `ffn_exps`, in folders that have them in one tensor each.
    fn named_of_experts<'a>(&self, layer: usize, rest: &'a str, config: &ModelConfig) -> Option<(Place, &'a str)> {
        let experts = config.experts?;
        let (first, end) = rest.split_at(rest.find('.').unwrap_or(rest.len()));
        match first {
            "ffn_gate_inp" => return Some((self.router(layer, config), end)),
            "ffn_gate_inp_shexp" => return Some((self.shared_gate(layer), end)),
            "ffn_exps" if self.has_packed_experts(config) => {
                return Some((self.whole(layer, "", self.packed_experts(config)), end));
            }
            "exp_probs_b" if matches!(end, "" | ".bias") => {
                let name = self.correction(layer, config)?;
                let place = Place {
                    is_bare: true,
                    ..Place::whole(name)
                };
                return Some((place, end));
            }
            _ => {}
        }
        for part in [Part::Gate, Part::Up, Part::Down] {
            let Some(kind) = first.strip_prefix(gguf_part(part, config.architecture)) else {
                continue;
            };
            if kind == "_shexp" {
                return Some((self.shared_expert(layer, part, config), end));
            }
            if kind == "_exps" {
                let end = end.strip_prefix('.')?;
                let (number, end) = end.split_at(end.find('.').unwrap_or(end.len()));
                let number = number.parse().ok().filter(|number| *number < experts.num_experts)?;
                let stacked = self.stacked_expert(layer, part, number, config);
                return match stacked.filter(|_| config.architecture.is_granite()) {
                    Some((place, _)) => matches!(end, "" | ".weight").then_some((place, end)),
                    None => Some((self.expert(layer, part, number, config), end)),
                };
            }
        }
        None
    }
}

/// Whether DeepSeek's experts are chosen by corrected ratings.
fn is_corrected(config: &ModelConfig) -> bool {
    config.experts.is_some_and(|experts| experts.rating == Rating::Sigmoid)
}

/// What GGUF files call the matrices of all of a layer's experts, without `.weight`.
fn stack(layer: usize, part: Part, architecture: Architecture) -> String {
    format!("blk.{layer}.{}_exps", gguf_part(part, architecture))
}

/// Matrices that lie in one, as Phi-3's, GLM-4's and Granite 4's: their names in GGUF files and elsewhere, and which rows are the part.
fn fused_part(part: Part, config: &ModelConfig, is_gguf: bool) -> Option<(&'static str, &'static str, Range<usize>)> {
    match (config.architecture, part) {
        (Architecture::Phi3, _) | (Architecture::Glm4 | Architecture::Glm, Part::Gate | Part::Up) => {}
        (Architecture::Gpt2, Part::Query | Part::Key | Part::Value) => {}
        (_, Part::Query | Part::Key | Part::Value) if config.is_qkv_joined => {}
        (Architecture::GraniteHybrid, Part::Gate | Part::Up) if !is_gguf => {
            return gate_up_rows(part, config.ffn_size).map(|rows| ("", granite_part(part), rows));
        }
        (Architecture::GraniteHybrid | Architecture::Bamba | Architecture::FalconH1 | Architecture::Jamba, _) => {
            return mamba_rows(part, config).map(|rows| ("ssm_in", "mamba.in_proj", rows));
        }
        (Architecture::NemotronH | Architecture::Mamba | Architecture::Mamba2, _) => {
            return mamba_rows(part, config).map(|rows| ("ssm_in", "mixer.in_proj", rows));
        }
        _ => return None,
    }
    let (query, kv, ffn) = (config.query_size(), config.kv_size(), config.ffn_size);
    let joined = match config.architecture {
        Architecture::Mpt => "attn.Wqkv",
        Architecture::Gpt2 => "attn.c_attn",
        _ => "self_attn.qkv_proj",
    };
    let qkv = |rows| Some(("attn_qkv", joined, rows));
    let gate_up = |rows| Some(("ffn_up", "mlp.gate_up_proj", rows));
    match part {
        Part::Query => qkv(0..query),
        Part::Key => qkv(query..query + kv),
        Part::Value => qkv(query + kv..query + 2 * kv),
        Part::Gate => gate_up(0..ffn),
        Part::Up => gate_up(ffn..2 * ffn),
        _ => None,
    }
}

/// In some families' GGUF files `post_attention_norm` is the norm before the feed-forward block.
fn gguf_part(part: Part, architecture: Architecture) -> &'static str {
    let has_post_norm = matches!(
        architecture,
        Architecture::GptOss | Architecture::Glm4Moe | Architecture::SeedOss
    ) || architecture.has_delta_nets();
    match part {
        Part::FfnNorm if architecture == Architecture::NemotronH => "attn_norm.weight",
        Part::FfnNorm if has_post_norm => "post_attention_norm.weight",
        Part::FfnNorm if architecture == Architecture::FalconH1 => "ffn_norm",
        Part::PostAttentionNorm if has_post_norm => "(none)",
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
        Part::MixerInput => "attn_qkv",
        Part::MixerGate => "attn_gate",
        Part::MixerRate => "ssm_beta",
        Part::MixerDecay => "ssm_alpha",
        Part::MixerConvolution => "ssm_conv1d",
        Part::MixerDecayBase => "ssm_a",
        Part::MixerDecayBias => "ssm_dt.bias",
        Part::MixerNorm => "ssm_norm.weight",
        Part::MixerOutput => "ssm_out",
        Part::MixerSkip => "ssm_d",
    }
}

/// In Hugging Face's Llama, `post_attention_layernorm` is the norm before the feed-forward block; in Gemma and OLMo 2 it
/// is what it says.
fn hugging_face_part(part: Part, architecture: Architecture) -> &'static str {
    let has_input_norms = architecture.has_input_norms();
    let has_output_norms = architecture.has_output_norms();
    let has_four_norms = has_output_norms && has_input_norms;
    match part {
        Part::AttentionNorm | Part::FfnNorm if !has_input_norms => "(none)",
        Part::AttentionNorm => "input_layernorm.weight",
        Part::Query => "self_attn.q_proj",
        Part::Key => "self_attn.k_proj",
        Part::Value => "self_attn.v_proj",
        Part::QueryNorm if architecture.is_norm_after_rope() => "self_attn.query_layernorm.weight",
        Part::KeyNorm if architecture.is_norm_after_rope() => "self_attn.key_layernorm.weight",
        Part::QueryNorm => "self_attn.q_norm.weight",
        Part::KeyNorm => "self_attn.k_norm.weight",
        Part::AttentionOutput => "self_attn.o_proj",
        Part::PostAttentionNorm if has_output_norms => "post_attention_layernorm.weight",
        Part::PostAttentionNorm => "(none)",
        Part::FfnNorm if has_four_norms => "pre_feedforward_layernorm.weight",
        Part::FfnNorm => "post_attention_layernorm.weight",
        Part::Gate if architecture == Architecture::Llama4 => "feed_forward.gate_proj",
        Part::Up if architecture == Architecture::Llama4 => "feed_forward.up_proj",
        Part::Down if architecture == Architecture::Llama4 => "feed_forward.down_proj",
        Part::Gate => "mlp.gate_proj",
        Part::Up => "mlp.up_proj",
        Part::Down => "mlp.down_proj",
        Part::PostFfnNorm => "post_feedforward_layernorm.weight",
        Part::MixerInput => "linear_attn.in_proj_qkv",
        Part::MixerGate => "linear_attn.in_proj_z",
        Part::MixerRate => "linear_attn.in_proj_b",
        Part::MixerDecay => "linear_attn.in_proj_a",
        Part::MixerConvolution => "linear_attn.conv1d",
        Part::MixerDecayBase => "linear_attn.A_log",
        Part::MixerDecayBias => "linear_attn.dt_bias",
        Part::MixerNorm => "linear_attn.norm.weight",
        Part::MixerOutput => "linear_attn.out_proj",
        Part::MixerSkip => "(none)",
    }
}
