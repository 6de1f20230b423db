//! What files call the tensors of a head that drafts further tokens.

use super::{DECODER, Names, Place, Spelling};
use crate::config::ModelConfig;
use crate::weights::ModelFile;

/// What the names of Qwen's head begin with in safetensors, and those of its layer.
const HEAD: &str = "mtp.";
const HEAD_LAYER: &str = "mtp.layers.0.";
/// Of a head that is left alone: a second layer, an embedding or an output matrix of its own.
const OTHERS: [&str; 3] = ["mtp.layers.1.", "mtp.embed_tokens.", "mtp.lm_head."];
/// The same in GGUF files, in the head's layer. Those of GLM and DeepSeek are the decoder's once more.
const GGUF_OTHERS: [&str; 2] = ["nextn.embed_tokens.", "nextn.shared_head_head."];

impl Names {
    /// Those of the file of a head of EAGLE-3: its layer is called as trainers call it, or as one of a decoder.
    pub(in crate::model) fn of_eagle(file: &ModelFile) -> Self {
        let has = |begin: &str| file.tensor_names().any(|name| name.starts_with(begin));
        let decoder = if has("model.") { DECODER } else { Spelling::of("") };
        let layers = ["midlayer.", "model.midlayer."].into_iter().find(|begin| has(begin));
        Self::HuggingFace(decoder, layers.map(|begin| (0, begin)))
    }

    /// Those of a model's file.
    pub(in crate::model) fn of_model(file: &ModelFile, config: &ModelConfig) -> Self {
        match Self::of(file) {
            Self::HuggingFace(begin, _) => {
                let is_apart = config.architecture.has_delta_nets();
                let head = config.mtp_layer().filter(|_| is_apart);
                Self::HuggingFace(begin, head.map(|layer| (layer, HEAD_LAYER)))
            }
            Self::Gguf => Self::Gguf,
        }
    }

    /// What the names of a layer begin with in safetensors.
    pub(super) fn begin(&self, layer: usize) -> String {
        match self {
            Self::HuggingFace(_, Some((head, begin))) if *head == layer => (*begin).to_owned(),
            Self::HuggingFace(spelling, _) => format!("{}{}{layer}.", spelling.begin, spelling.layers),
            Self::Gguf => format!("blk.{layer}."),
        }
    }

    /// Whether the file has a head, or a part of one, of the kind that is known. Safetensors of GLM and DeepSeek, and GGUF
    /// files, have it as a layer behind the others.
    pub(in crate::model) fn have_mtp(&self, file: &ModelFile, config: &ModelConfig) -> bool {
        let has = |begin: &str| file.tensor_names().any(|name| name.starts_with(begin));
        let is_of_qwen = config.architecture.has_delta_nets();
        if let (Self::HuggingFace(..), true) = (self, is_of_qwen) {
            return has(HEAD) && !OTHERS.into_iter().any(has);
        }
        let begin = self.begin(config.num_layers);
        let others = GGUF_OTHERS.map(|other| format!("{begin}{other}"));
        let has_own = is_of_qwen && others.iter().any(|other| has(other));
        has(&begin) && !has(&self.begin(config.num_layers + 1)) && !has_own
    }

    /// What the head calls the norms of tokens and of the stream, the matrix that joins them, and the norm of its output.
    pub(in crate::model) fn of_mtp(&self, layer: usize) -> MtpNames {
        let of = |gguf: &str, qwen: &str, other: &str| match self {
            Self::Gguf => format!("blk.{layer}.nextn.{gguf}"),
            Self::HuggingFace(_, Some(_)) => format!("{HEAD}{qwen}"),
            Self::HuggingFace(_, None) => format!("{}{other}", self.begin(layer)),
        };
        MtpNames {
            token_norm: of("enorm.weight", "pre_fc_norm_embedding.weight", "enorm.weight"),
            stream_norm: of("hnorm.weight", "pre_fc_norm_hidden.weight", "hnorm.weight"),
            join: Place::whole(of("eh_proj", "fc", "eh_proj")),
            output_norm: of("shared_head_norm.weight", "norm.weight", "shared_head.norm.weight"),
        }
    }
}

/// What a file calls what a head has besides its layer.
pub(in crate::model) struct MtpNames {
    pub(in crate::model) token_norm: String,
    pub(in crate::model) stream_norm: String,
    pub(in crate::model) join: Place,
    pub(in crate::model) output_norm: String,
}
