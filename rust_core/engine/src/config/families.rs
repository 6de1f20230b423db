//! What tells apart the families that are no more than a description over shared layers.

use super::{Architecture, ModelConfig};

/// The share of a head that is rotated where a file does not say: GLM-4's, MiniMax-M2's, Ling's, Phi-2's and Nemotron's.
const HALF: f64 = 0.5;
/// `StableLM`'s and GPT-NeoX's.
const QUARTER: f64 = 0.25;
/// The row of OPT's first position: those before it are none.
const OPT_FIRST_POSITION: usize = 2;

/// Families that are not supported, by their names in both kinds of files, and the nearest that is.
const NEAREST: [(&str, &str); 20] = [
    ("zamba zamba2 plamo2", "granitehybrid"),
    (
        "dbrx grok jetmoe arctic internlm deci persimmon bitnet doge diffllama hrm_text nanbeige llama-embed",
        "llama",
    ),
    ("minicpm4 minicpmv4_6", "minicpm"),
    ("mistral_large4 longcat_flash", "deepseek2"),
    ("gemma3n gemma3n_text", "gemma4"),
    (
        "deepseek deepseek_v4 deepseek4 dots3_note dots3_note_text dots3note",
        "deepseek2",
    ),
    ("bailingmoe3 bailing_moe bailing_moe_v2 bailing_hybrid", "bailingmoe2"),
    ("minimax-m3 minimax_m3_vl minimax_m3_vl_text", "minimax-m2"),
    ("minimax_text_01 minimax_m1", "minimax-01"),
    (
        "mimo2 mimo_v2 mimo_v2_flash laguna step35 step3p5 inkling inkling_text smallthinker",
        "glm4moe",
    ),
    ("hy_v4 hyv4", "hy_v3"),
    ("ernie4_5_vl_moe ernie4_5_vl_moe_text", "ernie4_5-moe"),
    ("grovemoe", "qwen3moe"),
    ("plamo3", "gemma2"),
    ("spark2_5", "lfm3"),
    ("exaone", "exaone4"),
    ("glm4v", "glm4"),
    ("xglm biogpt openai-gpt", "gpt2"),
    ("olmo_hybrid", "olmo2"),
    ("qwen4_exp qwen4_exp_text qwen4exp", "qwen3moe"),
];

/// The nearest family that is supported.
pub(super) fn nearest(name: &str) -> Option<&'static str> {
    let is_among = |names: &str| names.split_whitespace().any(|other| other == name);
    NEAREST
        .iter()
        .find(|(names, _)| is_among(names))
        .map(|(_, nearest)| *nearest)
}

impl Architecture {
    /// Whether the stream is normalised by its mean and variance (`LayerNorm`), not by its root mean square.
    pub(crate) fn has_layer_norms(self) -> bool {
        matches!(
            self,
            Self::Cohere
                | Self::Cohere2
                | Self::StarCoder2
                | Self::Phi2
                | Self::StableLm
                | Self::Nemotron
                | Self::Olmo
                | Self::GptNeoX
                | Self::Mpt
                | Self::Jais2
                | Self::Falcon
                | Self::Bloom
                | Self::PhiMoe
                | Self::Orion
                | Self::CodeShell
                | Self::GptJ
                | Self::CodeGen
        ) || self.position_offset().is_some()
    }

    /// Where the first position is in a table of learned positions, of families that have one.
    pub(crate) fn position_offset(self) -> Option<usize> {
        match self {
            Self::Gpt2 | Self::StarCoder | Self::GptNeo => Some(0),
            Self::Opt => Some(OPT_FIRST_POSITION),
            _ => None,
        }
    }

    /// Whether what tokens are looked up as is normalised.
    pub(crate) fn has_embedding_norm(self) -> bool {
        self == Self::Bloom
    }

    /// Whether something is added to logits.
    pub(crate) fn has_output_bias(self) -> bool {
        matches!(self, Self::Phi2 | Self::PhiMoe | Self::GptJ | Self::CodeGen)
    }

    /// Whether GGUF files of it are not known.
    pub(crate) fn is_of_folders(self) -> bool {
        matches!(
            self,
            Self::Bamba
                | Self::HyperClovaX
                | Self::NanoChat
                | Self::AxK1
                | Self::GptJ
                | Self::GptNeo
                | Self::CodeGen
                | Self::Opt
                | Self::Helium
        )
    }

    /// Whether GGUF files of it are read alone.
    pub(crate) fn is_of_gguf(self) -> bool {
        matches!(
            self,
            Self::Baichuan | Self::Orion | Self::Refact | Self::CodeShell | Self::Qwen | Self::Maincoder
        )
    }

    /// Whether norms have no weights.
    pub(crate) fn has_bare_norms(self) -> bool {
        matches!(self, Self::Olmo | Self::NanoChat)
    }

    /// Whether tokens' rows of the embedding are normalised, as outputs are: without weights.
    pub(crate) fn normalises_embedding(self) -> bool {
        self == Self::NanoChat
    }

    /// Whether blocks' outputs are normalised too.
    pub(crate) fn has_output_norms(self) -> bool {
        matches!(
            self,
            Self::Gemma2 | Self::Gemma3 | Self::Gemma4 | Self::Afmoe | Self::Lfm3 | Self::HyperClovaX
        ) || !self.has_input_norms()
    }

    /// Whether a file that lacks norms of blocks' outputs is damaged.
    pub(crate) fn needs_output_norms(self) -> bool {
        matches!(self, Self::Glm4 | Self::Afmoe | Self::Lfm3 | Self::HyperClovaX)
    }

    /// Whether a file that lacks norms of queries and keys is damaged.
    pub(crate) fn needs_head_norms(self) -> bool {
        self.has_delta_nets()
            || matches!(
                self,
                Self::Lfm3
                    | Self::BailingMoe2
                    | Self::Dots1
                    | Self::MiniMaxM2
                    | Self::Afmoe
                    | Self::ExaoneMoe
                    | Self::HyV3
                    | Self::Maincoder
            )
    }

    /// Whether attention and the feed-forward block lie beside each other; `None` where the file says.
    pub(crate) fn is_parallel(self) -> Option<bool> {
        match self {
            Self::Cohere | Self::Cohere2 | Self::Cohere2Moe | Self::Phi2 | Self::GptJ | Self::CodeGen => Some(true),
            Self::StableLm | Self::GptNeoX | Self::Falcon => None,
            _ => Some(false),
        }
    }

    /// Whether files may say that it is, where [`Self::is_parallel`] does not.
    pub(crate) fn is_parallel_by_default(self) -> bool {
        matches!(self, Self::GptNeoX | Self::Falcon)
    }

    /// Whether layers without windows have no rotary positions.
    pub(crate) fn rotates_windows_alone(self) -> bool {
        matches!(self, Self::Exaone4 | Self::Cohere2 | Self::Afmoe | Self::ExaoneMoe)
    }

    /// The share of a head that is rotated, of families of which a part may be, where the file does not say.
    pub(crate) fn rotary_share(self) -> Option<f64> {
        match self {
            Self::Glm4 | Self::Glm | Self::MiniMaxM2 | Self::BailingMoe2 | Self::Phi2 | Self::Nemotron => Some(HALF),
            Self::StableLm | Self::GptNeoX => Some(QUARTER),
            _ => None,
        }
    }

    /// Whether it has latent attention.
    pub(crate) fn has_latent_attention(self) -> bool {
        matches!(
            self,
            Self::Deepseek2 | Self::MiniCpm3 | Self::Mistral4 | Self::KimiLinear | Self::AxK1
        )
    }

    /// Whether the gates of what heads attended to are a matrix of their own, not in turns with queries.
    pub(crate) fn are_gates_apart(self) -> bool {
        matches!(self, Self::Afmoe | Self::Lfm3)
    }

    /// Whether each head has one gate, not one for each of its numbers.
    pub(crate) fn are_gates_of_heads(self) -> bool {
        self == Self::Lfm3
    }

    /// Whether neighbours turn together in GGUF files, by how llama.cpp's converter writes or arranges them.
    pub(crate) fn is_interleaved_in_gguf(self) -> bool {
        matches!(
            self,
            Self::Llama
                | Self::SmolLm3
                | Self::Ernie45
                | Self::Ernie45Moe
                | Self::Llama4
                | Self::Deepseek2
                | Self::Mistral4
                | Self::MiniCpm
                | Self::Glm4
                | Self::Arcee
                | Self::Cohere
                | Self::Cohere2
                | Self::Cohere2Moe
                | Self::BailingMoe
                | Self::Maincoder
                | Self::Olmo
                | Self::Glm
                | Self::InternLm2
                | Self::Baichuan
        ) || self.is_granite()
    }

    /// Whether its queries' and keys' rows are arranged otherwise in GGUF files than elsewhere.
    pub(crate) fn is_rearranged_in_gguf(self) -> bool {
        matches!(
            self,
            Self::Llama | Self::SmolLm3 | Self::Arcee | Self::Olmo | Self::MiniCpm | Self::InternLm2 | Self::BailingMoe
        ) || self.is_granite()
    }

    /// Whether the CPU runner alone computes it.
    pub fn is_cpu_only(self) -> bool {
        matches!(
            self,
            Self::Ernie45
                | Self::HunyuanDense
                | Self::SeedOss
                | Self::Exaone4
                | Self::NemotronH
                | Self::Bamba
                | Self::FalconH1
                | Self::Jamba
                | Self::Mamba
                | Self::Mamba2
                | Self::Llama4
                | Self::Gemma
                | Self::Gemma4
                | Self::Glm4
                | Self::Arcee
                | Self::Apertus
                | Self::Lfm3
                | Self::MiniMax01
                | Self::T5
                | Self::Granite
                | Self::GraniteHybrid
                | Self::MiniCpm
                | Self::Glm
                | Self::HyV3
                | Self::Helium
                | Self::Cohere2Moe
                | Self::InternLm2
                | Self::GraniteSwa
                | Self::Baichuan
                | Self::HyperClovaX
                | Self::Refact
                | Self::BailingMoe
                | Self::Qwen
                | Self::Maincoder
                | Self::NanoChat
        ) || self.has_latent_attention()
            || self.has_layer_norms()
    }
}

impl ModelConfig {
    /// Gates of what a token's heads attended to; 0 where the family has none.
    pub(crate) fn num_gates(&self) -> usize {
        match self.architecture {
            architecture if architecture.are_gates_of_heads() => self.num_heads,
            architecture if architecture.has_gated_attention() => self.query_size(),
            _ => 0,
        }
    }

    /// Whether what a layer's feed-forward block gives is left as it is, whatever the file has: A.X K1's but for experts.
    pub(crate) fn leaves_ffn_output(&self, layer: usize) -> bool {
        self.architecture == Architecture::AxK1 && !self.has_experts(layer)
    }

    /// Whether one norm is read by a layer's attention and its feed-forward block.
    pub(crate) fn shares_norm(&self) -> bool {
        self.is_parallel && !self.has_two_norms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_families_are_supported_and_the_others_are_not() {
        for (names, nearest) in NEAREST {
            assert!(Architecture::from_name(nearest).is_some(), "{nearest}");
            for name in names.split_whitespace() {
                assert!(Architecture::from_name(name).is_none(), "{name}");
            }
        }
    }
}
