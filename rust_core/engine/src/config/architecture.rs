//! The families of decoders that can be run, by the names of both kinds of files, and what tells their layers apart.

use super::{families, invalid, periodic};
use crate::weights::{ModelFileError, clipped};

/// A model's architecture, as its file names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// Llama, SmolLM and Mistral, Ministral 3, whose queries grow, and Mixtral, which has experts.
    Llama,
    /// Qwen2 and Qwen2.5: biases on q, k and v; the text half of Qwen2-VL and Qwen2.5-VL.
    Qwen2,
    /// Qwen3: norms on each head of q and k; the text half of Qwen3-VL.
    Qwen3,
    /// Gemma: its embedding is scaled.
    Gemma,
    /// Gemma 2: scores and logits have a cap.
    Gemma2,
    /// Gemma 3, text only.
    Gemma3,
    /// Gemma 4, text only.
    Gemma4,
    /// Phi-3, Phi-3.5 and Phi-4: query, key and value are one matrix, and so are gate and up.
    Phi3,
    /// OLMo 2: norms after each block, none before; queries and keys are normalised over all heads.
    Olmo2,
    /// SmolLM3: every fourth layer has no rotary positions.
    SmolLm3,
    /// Qwen3 with experts.
    Qwen3Moe,
    /// Mellum 2: as Qwen3 with experts, with windows.
    Mellum,
    /// OLMoE: experts, and norms as OLMo 2's of queries and keys, but before blocks.
    OlMoe,
    /// LFM2: short convolutions, and attention with norms on each head.
    Lfm2,
    /// LFM2 with experts.
    Lfm2Moe,
    /// LFM3: longer convolutions, windows, norms after each block too, and attention whose heads have a gate each.
    Lfm3,
    /// Qwen 3.5: gated delta nets, and attention with norms on each head whose output has a gate.
    Qwen35,
    /// Qwen 3.5 with experts, and one that all tokens share.
    Qwen35Moe,
    /// Qwen3-Next: as Qwen 3.5 with experts; a key head's projections lie together.
    Qwen3Next,
    /// Granite 3, and Granite 4 of attention alone: factors on embeddings, scores, blocks and logits.
    Granite,
    /// Granite 4: Mamba-2 beside attention, with experts and one that all tokens share, or without.
    GraniteHybrid,
    /// Bamba: Mamba-2 beside attention whose heads are rotated in half.
    Bamba,
    /// Nemotron-H and Nemotron 3: layers of one block each, Mamba-2, attention, a feed-forward block or experts.
    NemotronH,
    /// Falcon-H1: Mamba-2 and attention beside each other in each layer, with factors on their parts.
    FalconH1,
    /// Jamba: Mamba beside attention without positions, with experts in some layers, or without.
    Jamba,
    /// Mamba and Falcon-Mamba: layers of Mamba alone.
    Mamba,
    /// Codestral Mamba: layers of Mamba-2 alone.
    Mamba2,
    /// Kimi Linear: the delta rule with a decay for each number of a key, beside latent attention without positions, experts
    /// beside one that all tokens share.
    KimiLinear,
    /// Llama 4: attention in chunks, layers without rotary positions whose queries grow, experts whose inputs are weighed.
    Llama4,
    /// gpt-oss: experts with biases and a clamped gate, and sinks in every other layer's window.
    GptOss,
    /// Qwen2 with experts, and one that all tokens share.
    Qwen2Moe,
    /// GLM-4.5 to 4.7: experts by corrected sigmoids, half of each head is rotated.
    Glm4Moe,
    /// ERNIE 4.5.
    Ernie45,
    /// ERNIE 4.5 with experts.
    Ernie45Moe,
    /// Hunyuan: queries and keys are normalised after they are rotated.
    HunyuanDense,
    /// Hunyuan with experts.
    HunyuanMoe,
    /// Seed-OSS.
    SeedOss,
    /// EXAONE 4: norms after each block, none before; layers without windows have no rotary positions.
    Exaone4,
    /// DeepSeek-V2 and V3, GLM-4.7-Flash: latent attention, experts beside one that all tokens share; Youtu-LLM, without experts;
    /// DeepSeek-V3.2 and GLM-5, with an indexer.
    Deepseek2,
    /// GLM-4 of 0414: norms before and after each block, half of each head is rotated by neighbours.
    Glm4,
    /// Arcee's AFM: insides without a gate.
    Arcee,
    /// Apertus: insides without a gate, of a curve that each layer has learned; attention with norms on each head.
    Apertus,
    /// Granite 3 with experts, and one that all tokens share, or without that.
    GraniteMoe,
    /// Ling 2.0 and Ring 2.0: experts by corrected sigmoids in groups, attention with norms on each head, half of it rotated.
    BailingMoe2,
    /// dots.llm1: experts by corrected sigmoids, attention with norms on each head.
    Dots1,
    /// MiniMax-M2: experts by corrected sigmoids, queries and keys normalised over all heads, a part of each head rotated.
    MiniMaxM2,
    /// MiniMax-01 and M1: lightning attention beside attention, experts; blocks are added to the norms that they read.
    MiniMax01,
    /// Command R, Aya: attention and feed-forward block beside each other on one norm.
    Cohere,
    /// Command R7B and A: as Command R, with windows; layers without windows have no rotary positions.
    Cohere2,
    /// StarCoder2: `LayerNorm`, insides without a gate.
    StarCoder2,
    /// Phi-1 to 2: attention and feed-forward block beside each other on one norm, a part of each head rotated.
    Phi2,
    /// `StableLM`: `LayerNorm`, a part of each head rotated.
    StableLm,
    /// Nemotron and Minitron: `LayerNorm`, insides without a gate, a part of each head rotated.
    Nemotron,
    /// OLMo: norms without weights.
    Olmo,
    /// GPT-NeoX, Pythia: attention and feed-forward block beside each other, each with a norm of its own.
    GptNeoX,
    /// MPT: `LayerNorm`, insides without a gate, no positions but what `ALiBi` adds to scores.
    Mpt,
    /// Arcee's Trinity: gates of what heads attended to, four norms, experts by corrected sigmoids, windows as EXAONE 4's.
    Afmoe,
    /// EXAONE with experts: by corrected sigmoids, windows as EXAONE 4's.
    ExaoneMoe,
    /// MiniCPM 1 and 2: Granite's factors but for scores.
    MiniCpm,
    /// MiniCPM 3: latent attention, and MiniCPM's factors.
    MiniCpm3,
    /// Mistral Small 4: latent attention whose queries grow, experts beside one that all tokens share.
    Mistral4,
    /// Hunyuan 3: experts by corrected sigmoids, attention with norms on each head.
    HyV3,
    /// Command A+ and North: as Command R7B, with experts.
    Cohere2Moe,
    /// Granite with windows and sinks, with experts or without.
    GraniteSwa,
    /// HyperCLOVA X Think: Granite's factors, norms before and after each block.
    HyperClovaX,
    /// Jais 2: `LayerNorm`, insides without a gate.
    Jais2,
    /// Ling and Ring before 2.0: experts beside those that all tokens share.
    BailingMoe,
    /// Maincoder: queries and keys are normalised after neighbours are rotated.
    Maincoder,
    /// nanochat: norms without weights, of the embedding too; heads turn the other way, then are normalised.
    NanoChat,
    /// A.X K1: DeepSeek-V3 with a norm after experts.
    AxK1,
    /// T5, Flan-T5, MADLAD-400, mT5, UMT5: an encoder reads the prompt, the decoder attends to that.
    T5,
    /// Falcon: attention and feed-forward block beside each other, of whose keys and values there is one head or a few.
    Falcon,
    /// BLOOM: `ALiBi`, and a norm of what tokens are looked up as.
    Bloom,
    /// GLM-4 of 2024, `ChatGLM`: half of each head is rotated by neighbours.
    Glm,
    /// Phi-3.5-MoE: `LayerNorm`, experts of which two are chosen one after the other.
    PhiMoe,
    /// GPT-2: learned positions.
    Gpt2,
    /// `StarCoder` and `SantaCoder`: learned positions, one head of keys and values.
    StarCoder,
    /// GPT-J: attention and feed-forward block beside each other on one norm, a part of each head rotated by neighbours.
    GptJ,
    /// GPT-Neo: learned positions, scores without a factor, windows in every other layer.
    GptNeo,
    /// `CodeGen`: as GPT-J, with queries, values and keys in one matrix.
    CodeGen,
    /// OPT: learned positions, of which the first two rows are none.
    Opt,
    /// Helium: as Llama, rotated by neighbours.
    Helium,
    /// `InternLM2`: as Llama, with queries, keys and values in one matrix.
    InternLm2,
    /// Baichuan: as Llama; the one of 40 layers has `ALiBi`.
    Baichuan,
    /// Orion: as Llama, with `LayerNorm`.
    Orion,
    /// Refact: `ALiBi`, one head of keys and values.
    Refact,
    /// `CodeShell`: as GPT-NeoX in turn, with a few heads of keys and values.
    CodeShell,
    /// The first Qwen.
    Qwen,
}

/// SmolLM3's layers without rotary positions, where nothing is said.
const SMOLLM3_NO_ROPE_PERIOD: usize = 4;

/// The names of every architecture that can be run, for messages.
pub const SUPPORTED_ARCHITECTURES: &str = "llama (Llama, SmolLM, Mistral, Ministral 3, Mixtral), qwen2, qwen3, gemma2, gemma3, gemma4, phi3 (Phi-3, Phi-4), olmo2, smollm3, \
    gemma, glm4 (GLM-4 of 0414), arcee, apertus, command-r and cohere2 (Command R, R7B, A), starcoder2, phi2, stablelm, nemotron, olmo, gptneox (Pythia), mpt, falcon, bloom, chatglm (GLM-4 of 2024), gpt2, starcoder (gpt_bigcode), internlm2, xverse, baichuan, orion, refact, codeshell and qwen (GGUF), gptj, gpt_neo, codegen, opt and helium (safetensors), minicpm, minicpm3, jais2, maincoder (GGUF), pangu-embedded (GGUF), paddleocr (GGUF), hyperclovax and nanochat (safetensors), ministral, cwm, iquestcoder, vaultgemma, seed_oss, exaone4, ernie4_5, hunyuan-dense, granite, granite_swa, lfm2, lfm3 (safetensors), qwen35 (Qwen 3.5), the mixtures of experts qwen3moe, phimoe (Phi-3.5-MoE), mellum (Mellum 2), olmoe, llama4, gpt-oss, qwen2moe, glm4moe, ernie4_5-moe, hunyuan-moe, hy_v3, granitemoe, bailingmoe and bailingmoe2 (Ling; GGUF), cohere2moe (Command A+), flex_olmo, dots1, minimax-m2, minimax-01 (MiniMax-01, MiniMax-M1), afmoe (Trinity), exaone-moe, solar_open, deepseek2 (DeepSeek-V2 and V3, GLM-4.7-Flash; Youtu-LLM), deepseek32 (DeepSeek-V3.2), glm-dsa (GLM-5), mistral4, axk1 (A.X K1), lfm2moe, qwen3next, qwen35moe, granitehybrid (Granite 4), kimi-linear, bamba (safetensors), falcon-h1, jamba, mamba (Mamba, Falcon-Mamba), mamba2 (Codestral Mamba), nemotron_h and nemotron_h_moe (Nemotron-H, Nemotron 3), the encoder-decoders t5 (T5, Flan-T5, MADLAD-400), mt5 and umt5, and the text half of qwen2_vl, qwen2_5_vl, qwen3_vl, qwen3_vl_moe, mistral3, gemma3, cohere2_vision, hunyuan_vl; the torch runner has others too, from safetensors";

impl Architecture {
    /// The architecture of a GGUF's `general.architecture` or of a `config.json`'s `model_type`.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "llama" | "mistral" | "mixtral" | "ministral" | "ministral3" | "mistral3" | "internlm3" | "xverse"
            | "cwm" | "iquestcoder" => Some(Self::Llama),
            "qwen2" | "qwen2vl" | "pangu-embedded" | "paddleocr" => Some(Self::Qwen2),
            "qwen3" | "qwen3vl" => Some(Self::Qwen3),
            "gemma" => Some(Self::Gemma),
            "gemma2" | "vaultgemma" => Some(Self::Gemma2),
            "gemma3" | "gemma3_text" => Some(Self::Gemma3),
            "gemma4" | "gemma4_text" => Some(Self::Gemma4),
            "phi3" => Some(Self::Phi3),
            "olmo2" | "olmo3" | "flex_olmo" => Some(Self::Olmo2),
            "smollm3" => Some(Self::SmolLm3),
            "qwen3moe" | "qwen3_moe" | "qwen3vlmoe" => Some(Self::Qwen3Moe),
            "mellum" => Some(Self::Mellum),
            "olmoe" => Some(Self::OlMoe),
            "lfm2" => Some(Self::Lfm2),
            "lfm2moe" | "lfm2_moe" => Some(Self::Lfm2Moe),
            "lfm3" => Some(Self::Lfm3),
            "qwen35" | "qwen3_5_text" => Some(Self::Qwen35),
            "qwen35moe" | "qwen3_5_moe_text" => Some(Self::Qwen35Moe),
            "qwen3next" | "qwen3_next" => Some(Self::Qwen3Next),
            "granite" => Some(Self::Granite),
            "granitehybrid" | "granitemoehybrid" => Some(Self::GraniteHybrid),
            "bamba" => Some(Self::Bamba),
            "nemotron_h" | "nemotron_h_moe" => Some(Self::NemotronH),
            "falcon_h1" | "falcon-h1" => Some(Self::FalconH1),
            "jamba" => Some(Self::Jamba),
            "mamba" | "falcon_mamba" => Some(Self::Mamba),
            "mamba2" => Some(Self::Mamba2),
            "kimi_linear" | "kimi-linear" => Some(Self::KimiLinear),
            "llama4" | "llama4_text" => Some(Self::Llama4),
            "gpt-oss" | "gpt_oss" => Some(Self::GptOss),
            "qwen2moe" | "qwen2_moe" => Some(Self::Qwen2Moe),
            "glm4moe" | "glm4_moe" | "solar_open" => Some(Self::Glm4Moe),
            "ernie4_5" => Some(Self::Ernie45),
            "ernie4_5-moe" | "ernie4_5_moe" => Some(Self::Ernie45Moe),
            "hunyuan-dense" | "hunyuan_v1_dense" => Some(Self::HunyuanDense),
            "hunyuan-moe" | "hunyuan_v1_moe" => Some(Self::HunyuanMoe),
            "seed_oss" => Some(Self::SeedOss),
            "exaone4" => Some(Self::Exaone4),
            "deepseek2" | "deepseek_v2" | "deepseek_v3" | "glm4_moe_lite" | "youtu" => Some(Self::Deepseek2),
            "deepseek_v32" | "deepseek32" | "glm_moe_dsa" | "glm-dsa" => Some(Self::Deepseek2),
            "glm4" => Some(Self::Glm4),
            "arcee" => Some(Self::Arcee),
            "apertus" => Some(Self::Apertus),
            "granitemoe" | "granitemoeshared" => Some(Self::GraniteMoe),
            "bailingmoe2" => Some(Self::BailingMoe2),
            "dots1" => Some(Self::Dots1),
            "minimax_m2" | "minimax-m2" => Some(Self::MiniMaxM2),
            "minimax" | "minimax-01" => Some(Self::MiniMax01),
            "cohere" | "command-r" => Some(Self::Cohere),
            "cohere2" => Some(Self::Cohere2),
            "starcoder2" => Some(Self::StarCoder2),
            "phi" | "phi2" => Some(Self::Phi2),
            "stablelm" => Some(Self::StableLm),
            "nemotron" => Some(Self::Nemotron),
            "olmo" => Some(Self::Olmo),
            "gpt_neox" | "gptneox" => Some(Self::GptNeoX),
            "mpt" => Some(Self::Mpt),
            "afmoe" => Some(Self::Afmoe),
            "exaone_moe" | "exaone-moe" => Some(Self::ExaoneMoe),
            "minicpm" => Some(Self::MiniCpm),
            "minicpm3" => Some(Self::MiniCpm3),
            "mistral4" => Some(Self::Mistral4),
            "hy_v3" => Some(Self::HyV3),
            "cohere2_moe" | "cohere2moe" => Some(Self::Cohere2Moe),
            "granite_swa" | "granitemoe_swa" => Some(Self::GraniteSwa),
            "hyperclovax" => Some(Self::HyperClovaX),
            "jais2" => Some(Self::Jais2),
            "bailingmoe" => Some(Self::BailingMoe),
            "maincoder" => Some(Self::Maincoder),
            "nanochat" => Some(Self::NanoChat),
            "axk1" => Some(Self::AxK1),
            "t5" | "mt5" | "umt5" => Some(Self::T5),
            "falcon" => Some(Self::Falcon),
            "bloom" => Some(Self::Bloom),
            "glm" | "chatglm" => Some(Self::Glm),
            "phimoe" => Some(Self::PhiMoe),
            "gpt2" => Some(Self::Gpt2),
            "gpt_bigcode" | "starcoder" => Some(Self::StarCoder),
            "gptj" => Some(Self::GptJ),
            "gpt_neo" => Some(Self::GptNeo),
            "codegen" => Some(Self::CodeGen),
            "opt" => Some(Self::Opt),
            "helium" => Some(Self::Helium),
            "internlm2" => Some(Self::InternLm2),
            "baichuan" => Some(Self::Baichuan),
            "orion" => Some(Self::Orion),
            "refact" => Some(Self::Refact),
            "codeshell" => Some(Self::CodeShell),
            "qwen" => Some(Self::Qwen),
            _ => None,
        }
    }

    /// The name used in messages and by `general.architecture`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
            Self::Gemma => "gemma",
            Self::Gemma2 => "gemma2",
            Self::Gemma3 => "gemma3",
            Self::Gemma4 => "gemma4",
            Self::Phi3 => "phi3",
            Self::Olmo2 => "olmo2",
            Self::SmolLm3 => "smollm3",
            Self::Qwen3Moe => "qwen3moe",
            Self::Mellum => "mellum",
            Self::OlMoe => "olmoe",
            Self::Lfm2 => "lfm2",
            Self::Lfm2Moe => "lfm2moe",
            Self::Lfm3 => "lfm3",
            Self::Qwen35 => "qwen35",
            Self::Qwen35Moe => "qwen35moe",
            Self::Qwen3Next => "qwen3next",
            Self::Granite => "granite",
            Self::GraniteHybrid => "granitehybrid",
            Self::Bamba => "bamba",
            Self::NemotronH => "nemotron_h",
            Self::FalconH1 => "falcon-h1",
            Self::Jamba => "jamba",
            Self::Mamba => "mamba",
            Self::Mamba2 => "mamba2",
            Self::KimiLinear => "kimi-linear",
            Self::Llama4 => "llama4",
            Self::GptOss => "gpt-oss",
            Self::Qwen2Moe => "qwen2moe",
            Self::Glm4Moe => "glm4moe",
            Self::Ernie45 => "ernie4_5",
            Self::Ernie45Moe => "ernie4_5-moe",
            Self::HunyuanDense => "hunyuan-dense",
            Self::HunyuanMoe => "hunyuan-moe",
            Self::SeedOss => "seed_oss",
            Self::Exaone4 => "exaone4",
            Self::Deepseek2 => "deepseek2",
            Self::Glm4 => "glm4",
            Self::Arcee => "arcee",
            Self::Apertus => "apertus",
            Self::GraniteMoe => "granitemoe",
            Self::BailingMoe2 => "bailingmoe2",
            Self::Dots1 => "dots1",
            Self::MiniMaxM2 => "minimax-m2",
            Self::MiniMax01 => "minimax-01",
            Self::Cohere => "command-r",
            Self::Cohere2 => "cohere2",
            Self::StarCoder2 => "starcoder2",
            Self::Phi2 => "phi2",
            Self::StableLm => "stablelm",
            Self::Nemotron => "nemotron",
            Self::Olmo => "olmo",
            Self::GptNeoX => "gptneox",
            Self::Mpt => "mpt",
            Self::Afmoe => "afmoe",
            Self::ExaoneMoe => "exaone-moe",
            Self::MiniCpm => "minicpm",
            Self::MiniCpm3 => "minicpm3",
            Self::Mistral4 => "mistral4",
            Self::HyV3 => "hy_v3",
            Self::Cohere2Moe => "cohere2moe",
            Self::GraniteSwa => "granite_swa",
            Self::HyperClovaX => "hyperclovax",
            Self::Jais2 => "jais2",
            Self::BailingMoe => "bailingmoe",
            Self::Maincoder => "maincoder",
            Self::NanoChat => "nanochat",
            Self::AxK1 => "axk1",
            Self::T5 => "t5",
            Self::Falcon => "falcon",
            Self::Bloom => "bloom",
            Self::Glm => "chatglm",
            Self::PhiMoe => "phimoe",
            Self::Gpt2 => "gpt2",
            Self::StarCoder => "starcoder",
            Self::GptJ => "gptj",
            Self::GptNeo => "gpt_neo",
            Self::CodeGen => "codegen",
            Self::Opt => "opt",
            Self::Helium => "helium",
            Self::InternLm2 => "internlm2",
            Self::Baichuan => "baichuan",
            Self::Orion => "orion",
            Self::Refact => "refact",
            Self::CodeShell => "codeshell",
            Self::Qwen => "qwen",
        }
    }

    /// Whether it is one of Gemma's: a scaled embedding, and `GeGLU`.
    pub fn is_gemma(self) -> bool {
        matches!(self, Self::Gemma | Self::Gemma2 | Self::Gemma3 | Self::Gemma4)
    }

    /// Whether it is one of Granite's: factors on embeddings, scores, blocks and logits.
    pub(crate) fn is_granite(self) -> bool {
        matches!(
            self,
            Self::Granite | Self::GraniteHybrid | Self::GraniteMoe | Self::GraniteSwa | Self::HyperClovaX
        )
    }

    /// Whether blocks read the stream as it is: norms are of their outputs alone.
    pub fn has_input_norms(self) -> bool {
        !matches!(self, Self::Olmo2 | Self::Exaone4)
    }

    /// Whether queries and keys are normalised after they are rotated, not before.
    pub fn is_norm_after_rope(self) -> bool {
        matches!(
            self,
            Self::HunyuanDense | Self::HunyuanMoe | Self::Llama4 | Self::Maincoder | Self::NanoChat
        )
    }

    /// Whether safetensors have a layer's experts in one tensor each of gates and ups, and of downs, transposed.
    pub(crate) fn has_packed_experts(self) -> bool {
        matches!(self, Self::GptOss | Self::Llama4)
    }

    /// Whether heads have sinks.
    pub fn has_sinks(self) -> bool {
        matches!(self, Self::GptOss | Self::GraniteSwa)
    }

    /// Whether the norm of queries, and that of keys, is over all heads together.
    pub fn is_qk_norm_wide(self) -> bool {
        matches!(self, Self::Olmo2 | Self::OlMoe | Self::MiniMaxM2)
    }

    /// Whether each of its GGUF files has an output matrix of its own: one without has lost it, as llama.cpp says too.
    pub(crate) fn has_own_output(self) -> bool {
        matches!(
            self,
            Self::Olmo2
                | Self::OlMoe
                | Self::GptOss
                | Self::Qwen2Moe
                | Self::Dots1
                | Self::MiniMaxM2
                | Self::Phi2
                | Self::StableLm
                | Self::Nemotron
                | Self::GptNeoX
                | Self::ExaoneMoe
                | Self::Mellum
                | Self::BailingMoe2
                | Self::Apertus
                | Self::PhiMoe
                | Self::Baichuan
                | Self::Orion
                | Self::CodeShell
                | Self::Qwen
        )
    }

    /// Whether files may have a head that drafts, of a kind that is known.
    pub(crate) fn may_have_mtp(self) -> bool {
        self.has_delta_nets() || matches!(self, Self::Glm4Moe | Self::Deepseek2)
    }

    /// Whether what heads attended to is multiplied by a gate of its own.
    pub fn has_gated_attention(self) -> bool {
        self.has_delta_nets() || matches!(self, Self::Afmoe | Self::Lfm3)
    }

    /// Whether a part of each head may be rotated alone.
    pub(crate) fn is_partly_rotary(self) -> bool {
        matches!(
            self,
            Self::Phi3 | Self::Glm4Moe | Self::Bamba | Self::GptJ | Self::CodeGen
        ) || self.has_delta_nets()
            || self.rotary_share().is_some()
    }

    /// Which layers have rotary positions, where the file does not say.
    pub(super) fn rotary_layers(self, num_layers: usize) -> Vec<bool> {
        periodic(
            num_layers,
            if self == Self::SmolLm3 {
                SMOLLM3_NO_ROPE_PERIOD
            } else {
                0
            },
        )
    }
}

/// The error of a family that cannot be run, which names the nearest that can, and says what else would help.
pub(super) fn unsupported(name: &str, help: &str) -> ModelFileError {
    let name = clipped(name);
    let nearest = families::nearest(&name).map_or_else(String::new, |nearest| {
        format!("the nearest that is supported is {nearest}; ")
    });
    invalid(format!(
        "architecture '{name}' is not supported; {nearest}{help}supported are {SUPPORTED_ARCHITECTURES}"
    ))
}
