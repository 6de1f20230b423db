//! A Hugging Face `config.json` as a configuration, with the families' own defaults for what it leaves out.

mod classic;
mod cohere2_moe;
mod experts;
mod falcon_h1;
mod families;
mod gemma4;
mod granite_swa;
mod hunyuan;
mod hunyuan_vl;
mod hybrid;
mod jamba;
mod kimi;
mod kinds;
mod latent;
mod lfm3;
mod llama4;
mod mamba;
mod minimax;
mod mpt;
mod nemotron;
mod pictures;
mod qwen_vl;
mod rope;
mod windows;

use pyagent_kernels::elementwise::RopeStyle;
use serde_json::{Map, Value};

use super::assistant::is_assistant;
use super::eagle::is_eagle;
use super::medusa::is_medusa;
use super::{
    Activation, Architecture, ModelConfig, QueryGrowth, assistant, eagle, invalid, medusa, minicpm, periodic,
    unsupported,
};
use crate::weights::{ModelFileError, clipped};

pub(super) use gemma4::OF_PICTURES;

/// What is read here; biases are where the file has such tensors.
const READ: &str = "model_type vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads \
    num_key_value_heads head_dim max_position_embeddings rms_norm_eps hidden_act hidden_activation rope_theta \
    rope_scaling rope_parameters rope_local_base_freq sliding_window use_sliding_window max_window_layers layer_types \
    sliding_window_pattern _sliding_window_pattern query_pre_attn_scalar tie_word_embeddings attention_bias mlp_bias \
    use_bias qkv_bias original_max_position_embeddings";

/// Fields of a `config.json` that change no number of the forward pass: where the file comes from, training, text generation's own defaults.
pub const IRRELEVANT: &str = "_name_or_path architectures transformers_version torch_dtype dtype use_cache \
    bos_token_id eos_token_id pad_token_id unk_token_id sep_token_id cls_token_id mask_token_id tokenizer_class \
    initializer_range attention_dropout hidden_dropout resid_dropout embd_dropout dropout pretraining_tp \
    _attn_implementation _attn_implementation_autoset attn_implementation cache_implementation is_llama_config \
    return_dict output_attentions output_hidden_states torchscript use_return_dict id2label label2id num_labels \
    problem_type finetuning_task task_specific_params chunk_size_feed_forward gradient_checkpointing \
    max_length min_length max_new_tokens do_sample num_beams num_beam_groups num_return_sequences temperature top_k \
    top_p typical_p repetition_penalty length_penalty diversity_penalty no_repeat_ngram_size bad_words_ids \
    early_stopping forced_bos_token_id forced_eos_token_id begin_suppress_tokens suppress_tokens \
    exponential_decay_length_penalty remove_invalid_values return_dict_in_generate output_scores prefix \
    decoder_start_token_id encoder_no_repeat_ngram_size transformers.js_config unsloth_fixed unsloth_version \
    auto_map embd_pdrop resid_pdrop rope_type model_max_length boi_token_index eoi_token_index image_token_index \
    mm_tokens_per_image";

/// What helps where a folder's architecture is not there.
const A_PLUGIN: &str = "a plugin can describe it (hook pyagent_register_architectures); ";

/// Folders of GLM-4 before transformers had it, which need code of their own; as GGUF files they are called so too.
const OLD_GLM: &str = "chatglm";

/// How weights are quantised: who opens the tensors reads it, or refuses it.
pub(super) const STORED: &str = "quantization_config compression_config";

/// What changes nothing with this value, and is not implemented with another.
const NEUTRAL: &[(&str, &str)] = &[
    ("_remove_final_layer_norm", "false"),
    ("add_cross_attention", "false"),
    ("apply_residual_connection_post_layernorm", "false"),
    ("bias", "false"),
    ("cross_attention_hidden_size", "null"),
    ("decoder_sparse_step", "1"),
    ("do_layer_norm_before", "true"),
    ("full_attn_mod", "1"),
    ("interpolate_factor", "1"),
    ("is_decoder", "false"),
    ("is_encoder_decoder", "false"),
    ("layer_norm_elementwise_affine", "true"),
    ("lm_head_bias", "false"),
    ("mamba_inner_layernorms", "true"),
    ("mamba_proj_bias", "false"),
    ("mla_use_nope", "true"),
    ("mlp_only_layers", "[]"),
    ("moe_layer_freq", "1"),
    ("moe_router_enable_expert_bias", "true"),
    ("moe_router_use_sigmoid", "true"),
    ("normalization", "\"layernorm1p\""),
    ("normalization_function", "\"rmsnorm\""),
    ("order_of_interleaved_layers", "\"local_attn_first\""),
    ("partial_rotary_factor", "1.0"),
    ("pruned_heads", "{}"),
    ("qk_layernorm", "false"),
    ("qk_norm", "true"),
    ("rms_norm", "true"),
    ("rope_interleaved", "false"),
    ("route_norm", "true"),
    ("scale_attn_by_inverse_layer_idx", "false"),
    ("scale_attn_weights", "true"),
    ("tf_legacy_loss", "false"),
    ("tie_encoder_decoder", "false"),
    ("use_attention_gate", "true"),
    ("use_bfloat16", "false"),
    ("use_bidirectional_attention", "false"),
    ("use_expert_bias", "true"),
    ("use_grouped_topk", "true"),
    ("use_gated_activation", "true"),
    ("use_mrope", "false"),
    ("use_parallel_block", "true"),
    ("use_post_norm", "true"),
    ("use_qk_norm", "false"),
    ("use_sandwich_norm", "true"),
];

/// What is read of Gemma 2 besides.
const CAPS: &str = "attn_logit_softcapping final_logit_softcapping";

/// What is read of Phi-3 besides.
const PARTLY_ROTARY: &str = "partial_rotary_factor";

/// What is read of SmolLM3 besides.
const NO_ROPE: &str = "no_rope_layers no_rope_layer_interval";

/// The families' defaults where they differ from what the file's other fields say.
const GEMMA_HEAD_DIM: usize = 256;
const QWEN3_HEAD_DIM: usize = 128;
const QWEN35_ROTARY_SHARE: f64 = 0.25;
const GEMMA2_CAPS: [f32; 2] = [50.0, 30.0];
const GPT_OSS_HEAD_DIM: usize = 64;
const GPT_OSS_ALPHA: f64 = 1.702;
const GPT_OSS_LIMIT: f64 = 7.0;
const SEED_OSS_HEAD_DIM: usize = 128;
const MINISTRAL3: &str = "ministral3";
const NANOCHAT_CAP: f32 = 15.0;

impl ModelConfig {
    /// Reads a Hugging Face `config.json`, of a model whose texts may be so long at most.
    pub fn from_hugging_face(
        config: &Map<String, Value>,
        most_positions: Option<usize>,
    ) -> Result<Self, ModelFileError> {
        if is_assistant(config) {
            return Err(assistant::no_model());
        }
        if is_eagle(config) {
            return Err(eagle::no_model());
        }
        if is_medusa(config) {
            return Err(medusa::no_model());
        }
        if let Some(read) = Self::encoder_decoder_of_folder(config) {
            return read;
        }
        let text = match gemma4::text_part(config)? {
            None => qwen_vl::text_half(config)?
                .map_or_else(|| hunyuan_vl::text_half(config), |text| Ok(Some(text)))?
                .or_else(|| llama4::text_half(config))
                .or_else(|| pictures::text_half(config)),
            text => text,
        };
        let text = text.or_else(|| mamba::completed(config));
        let text = text.map_or_else(|| mpt::completed(config), |text| Ok(Some(text)))?;
        let text = text.map_or_else(|| classic::completed(config), |text| Ok(Some(text)))?;
        let text = text.map_or_else(|| kimi::completed(config), |text| Ok(Some(text)))?;
        let text = text.map_or_else(|| nemotron::counted(config), |text| Ok(Some(text)))?;
        let config = text.as_ref().unwrap_or(config);
        let json = JsonConfig(config, most_positions);
        let name = json.text("model_type").unwrap_or("(no model_type)");
        let architecture = Architecture::from_name(name).ok_or_else(|| unsupported(name, A_PLUGIN))?;
        if architecture.is_of_gguf() || name == OLD_GLM {
            return Err(invalid(format!(
                "architecture '{name}' is not implemented for folders of safetensors; take the model as a GGUF file"
            )));
        }
        let has_caps = architecture == Architecture::Gemma2;
        let more = match architecture {
            Architecture::Gemma2 => CAPS,
            Architecture::Gemma4 => gemma4::FIELDS,
            Architecture::Phi3 => PARTLY_ROTARY,
            Architecture::Lfm3 => lfm3::FIELDS,
            _ if architecture.has_short_convolutions() => hybrid::LFM2,
            _ if architecture.has_delta_nets() => hybrid::QWEN35,
            Architecture::GraniteHybrid => hybrid::GRANITE,
            Architecture::NemotronH => nemotron::FIELDS,
            Architecture::Bamba => hybrid::BAMBA,
            Architecture::FalconH1 => falcon_h1::FIELDS,
            Architecture::Jamba => jamba::FIELDS,
            _ if architecture.is_recurrent_alone() => mamba::FIELDS,
            Architecture::Llama4 => llama4::FIELDS,
            Architecture::Mpt => mpt::FIELDS,
            Architecture::SmolLm3 => NO_ROPE,
            Architecture::HunyuanDense | Architecture::HunyuanMoe => hunyuan::FIELDS,
            Architecture::SeedOss => "attention_out_bias residual_dropout",
            _ => families::fields(architecture),
        };
        let factors = if architecture.is_granite() { hybrid::FACTORS } else { "" };
        let chunks = JsonConfig::dual_chunk_fields(name);
        let known = [
            &[READ, STORED, IRRELEVANT, more, factors, chunks][..],
            &experts::fields(name),
        ]
        .concat();
        refuse_unknown(config, &known, "")?;
        json.check_hunyuan(architecture)?;
        let is_granite = architecture.is_granite();
        let experts = json.experts(name)?;
        let is_gemma4 = architecture == Architecture::Gemma4;
        let has_local_rope = is_gemma4
            || matches!(
                architecture,
                Architecture::Gemma3 | Architecture::Lfm3 | Architecture::Mellum | Architecture::GraniteSwa
            )
            || name == "olmo3";
        let is_gemma = architecture.is_gemma();
        let hidden_size = json.size("hidden_size")?;
        let num_heads = json.size("num_attention_heads")?;
        let num_layers = json.num_layers(architecture)?;
        let latent = json.latent(architecture, num_heads, name)?;
        let indexed_layers = json.indexed_layers(name, latent.as_ref(), num_layers)?;
        let by_family = match architecture {
            _ if is_gemma || architecture.has_delta_nets() => GEMMA_HEAD_DIM,
            Architecture::Qwen3 => QWEN3_HEAD_DIM,
            Architecture::GptOss => GPT_OSS_HEAD_DIM,
            Architecture::SeedOss | Architecture::Llama4 | Architecture::Afmoe | Architecture::Lfm3 => {
                SEED_OSS_HEAD_DIM
            }
            Architecture::HyV3 | Architecture::Cohere2Moe => SEED_OSS_HEAD_DIM,
            _ if ["cwm", "iquestcoder"].contains(&name) => SEED_OSS_HEAD_DIM,
            _ => hidden_size / num_heads.max(1),
        };
        let head_dim = match &latent {
            Some(latent) => latent.cached_dims(),
            None if architecture.is_recurrent_alone() => Self::NO_HEADS.1,
            None => json.head_dim(by_family)?,
        };
        let query_size = if is_gemma && architecture != Architecture::Gemma {
            json.number("query_pre_attn_scalar").unwrap_or(GEMMA_HEAD_DIM as f64)
        } else {
            head_dim as f64
        };
        let (recurrent, recurrent_layers) = json.recurrent(architecture, num_layers, (num_heads, head_dim))?;
        let mut rotary_layers = json.rotary_layers(architecture, num_layers)?;
        let alibi_max_bias = json.alibi_max_bias(architecture);
        if !json.has_positions(architecture)? || alibi_max_bias.is_some() {
            rotary_layers.fill(false);
        }
        let sliding_window = json.sliding_window(name)?;
        let sliding_layers = json.sliding_layers(name, &rotary_layers)?;
        if architecture.rotates_windows_alone() && sliding_window.is_some() {
            rotary_layers.clone_from(&sliding_layers);
        }
        match architecture {
            Architecture::Cohere2Moe => rotary_layers = json.cohere2_moe_rotary_layers(&sliding_layers)?,
            Architecture::GraniteSwa => rotary_layers = json.granite_rotary_layers(num_layers)?,
            _ => {}
        }
        let num_kv_heads = match &latent {
            Some(_) => 1,
            None => json.num_kv_heads(name, num_heads)?,
        };
        let gemma4 = json.gemma4(architecture, (head_dim, num_kv_heads), &sliding_layers)?;
        let (rope_base, rope_scaling) = match &gemma4 {
            Some(gemma4) => json.gemma4_rope(gemma4.global_head_dim)?,
            None if architecture == Architecture::Lfm3 => json.lfm3_rope(head_dim)?,
            None if architecture == Architecture::GraniteSwa => json.granite_rope(&sliding_layers, false)?,
            None if architecture == Architecture::NanoChat => json.nanochat_rope()?,
            None => json.global_rope(architecture)?,
        };
        let (local_rope_base, local_rope_scaling) = match architecture {
            Architecture::GraniteSwa => json.granite_rope(&sliding_layers, true)?,
            _ if has_local_rope => json.local_rope(name)?,
            _ => (rope_base, rope_scaling.clone()),
        };
        let config = Self {
            architecture,
            vocab_size: json.size("vocab_size")?,
            hidden_size,
            num_layers,
            num_heads,
            num_kv_heads,
            head_dim,
            latent,
            indexed_layers,
            gemma4,
            ffn_size: match architecture {
                Architecture::Lfm2 => json.lfm2_ffn_size()?,
                _ if architecture.is_recurrent_alone() => 1, // nothing has it
                Architecture::GraniteHybrid if experts.is_none() => json.size("shared_intermediate_size")?,
                Architecture::Gemma4 | Architecture::NemotronH if experts.is_none() => {
                    json.size("intermediate_size")?
                }
                _ => json.ffn_size(name)?,
            },
            experts,
            dense_layers: json.dense_layers(name, num_layers)?,
            blocks: json.blocks(architecture, num_layers)?,
            is_parallel: json.is_parallel(architecture)?,
            has_two_norms: json.has_two_norms(architecture),
            is_qkv_joined: architecture == Architecture::Mpt,
            context_length: rope_scaling.context_length(json.size("max_position_embeddings")?),
            norm_epsilon: json.norm_epsilon(name) as f32,
            has_layer_norms: json.has_layer_norms(architecture),
            norm_weight_offset: if (is_gemma && !is_gemma4)
                || architecture.has_delta_nets()
                || architecture == Architecture::Nemotron
            {
                1.0
            } else {
                0.0
            },
            rope_style: match architecture {
                Architecture::Ernie45
                | Architecture::Ernie45Moe
                | Architecture::Llama4
                | Architecture::Glm4
                | Architecture::Glm
                | Architecture::Helium
                | Architecture::GptJ
                | Architecture::CodeGen
                | Architecture::Cohere
                | Architecture::Cohere2
                | Architecture::Cohere2Moe => RopeStyle::Interleaved,
                Architecture::Deepseek2 | Architecture::Mistral4 | Architecture::AxK1 if json.is_rope_interleaved() => {
                    RopeStyle::Interleaved
                }
                _ => RopeStyle::Neox,
            },
            rotary_dims: match &latent {
                Some(latent) => latent.rotary_dims,
                None => json.rotary_dims(architecture, head_dim),
            },
            rope_base,
            rope_scaling,
            local_rope_base,
            local_rope_scaling,
            sliding_window,
            are_windows_chunks: architecture == Architecture::Llama4,
            sliding_layers,
            rotary_layers,
            recurrent,
            recurrent_layers,
            activation: json.activation(architecture)?,
            attention_scale: match &latent {
                Some(latent) => json.latent_scale(latent),
                None if architecture == Architecture::HyperClovaX => {
                    json.factor_or("attention_multiplier", (head_dim as f32).powf(-0.5))?
                }
                None if is_granite => json.factor("attention_multiplier")?,
                None if is_gemma4 || architecture == Architecture::GptNeo => 1.0,
                None if architecture == Architecture::FalconH1 => {
                    (head_dim as f32).powf(-0.5) * json.falcon_score_factor()?
                }
                None => (query_size as f32).powf(-0.5),
            },
            has_bare_qk_norms: json.has_bare_qk_norms(),
            query_growth: json.query_growth(name)?,
            dual_chunks: json.dual_chunks()?,
            alibi_max_bias,
            attention_softcap: json.cap(has_caps, "attn_logit_softcapping", GEMMA2_CAPS[0])?,
            logit_softcap: match architecture {
                Architecture::Gemma4 => json.gemma4_cap()?,
                Architecture::NanoChat => json.cap(true, "final_logit_softcapping", NANOCHAT_CAP)?,
                _ => json.cap(has_caps, "final_logit_softcapping", GEMMA2_CAPS[1])?,
            },
            embedding_scale: match architecture {
                _ if is_gemma || json.is_afmoe_scaled(architecture) => (hidden_size as f32).sqrt(),
                _ if architecture.is_minicpm() => json.factor_or("scale_emb", minicpm::EMBEDDING_SCALE)?,
                _ if is_granite || architecture == Architecture::FalconH1 => json.factor("embedding_multiplier")?,
                _ => 1.0,
            },
            residual_scale: match architecture {
                _ if architecture.is_minicpm() => json.minicpm_residual_scale(num_layers)?,
                _ if is_granite => json.factor("residual_multiplier")?,
                _ => 1.0,
            },
            logit_divisor: match architecture {
                Architecture::HyperClovaX => 1.0 / json.factor("logits_scaling")?,
                _ if is_granite => json.factor("logits_scaling")?,
                _ if architecture.is_minicpm() => json.minicpm_divisor(hidden_size)?,
                Architecture::Cohere | Architecture::Cohere2 | Architecture::Cohere2Moe => json.cohere_divisor()?,
                Architecture::FalconH1 => 1.0 / json.factor("lm_head_multiplier")?,
                _ => 1.0,
            },
            multipliers: json.multipliers(architecture)?,
            normed_stream: json.normed_stream(architecture)?,
            is_output_tied: json.is_output_tied(architecture),
            has_mtp: false,
            reads_both: false,
            encoder_decoder: None,
        };
        config.check()
    }
}

/// Whether the family has recurrent layers and no windows.
fn is_recurrent(name: &str) -> bool {
    let architecture = Architecture::from_name(name);
    architecture.is_some_and(Architecture::is_hybrid) && name != lfm3::NAME
}

/// The epsilon of a family's norms where the file does not say.
fn default_epsilon(name: &str) -> f64 {
    match name {
        "phi3"
        | "olmo2"
        | "olmo3"
        | "mixtral"
        | "olmoe"
        | "gpt_oss"
        | "glm4_moe"
        | "glm4_moe_lite"
        | "glm_moe_dsa"
        | "lfm2"
        | "lfm2_moe"
        | lfm3::NAME
        | kimi::NAME
        | minimax::NAME
        | llama4::NAME
        | "bamba"
        | "falcon_h1"
        | "afmoe"
        | "exaone_moe"
        | "solar_open"
        | "hy_v3"
        | "granite_swa"
        | "minicpm3"
        | nemotron::NAME => 1e-5,
        "ernie4_5" | "ernie4_5_moe" | "hunyuan_v1_dense" | "hunyuan_v1_moe" | "exaone4" | "arcee" | "apertus"
        | MINISTRAL3 => 1e-5,
        "cwm" | "iquestcoder" => 1e-5,
        "glm4" | "glm" => 1.5625e-7,
        "helium" => 1e-8,
        _ if mamba::NAMES.contains(&name) => 1e-5,
        cohere2_moe::NAME => 1e-5,
        _ if Architecture::from_name(name).is_some_and(Architecture::has_layer_norms) => 1e-5,
        _ => 1e-6,
    }
}

/// Refuses a field that is in none of the lists of names, unless it says nothing, and one of another kind than is read.
pub(crate) fn refuse_unknown(fields: &Map<String, Value>, known: &[&str], place: &str) -> Result<(), ModelFileError> {
    for (field, value) in fields {
        let is_known = known
            .iter()
            .any(|names| names.split_whitespace().any(|name| name == field));
        if !is_known && !value.is_null() && !is_neutral(field, value) {
            return Err(invalid(format!(
                "config.json: '{place}{field}' is not implemented, and ignoring it would change the model's answers; use \
                 another model or another engine"
            )));
        }
    }
    kinds::refuse_others(fields, place)
}

fn is_neutral(field: &str, value: &Value) -> bool {
    let neutral = NEUTRAL.iter().find(|(name, _)| *name == field);
    let neutral = neutral.and_then(|(_, text)| serde_json::from_str::<Value>(text).ok());
    neutral.is_some_and(|neutral| neutral == *value || (neutral.is_number() && neutral.as_f64() == value.as_f64()))
}

/// Which share of a head is rotated, if the file says: beside the table of rotary parameters, or in it.
fn rotary_share(config: &Map<String, Value>) -> Option<f64> {
    let share = |fields: &Map<String, Value>| fields.get("partial_rotary_factor").and_then(Value::as_f64);
    let tables = ["rope_parameters", "rope_scaling"].into_iter();
    let table = || {
        tables
            .filter_map(|key| config.get(key)?.as_object())
            .next()
            .and_then(share)
    };
    share(config).or_else(table)
}

/// A `config.json` with typed, checked access.
pub(crate) struct JsonConfig<'a>(pub(crate) &'a Map<String, Value>, pub(crate) Option<usize>);

impl JsonConfig<'_> {
    pub(crate) fn size(&self, key: &str) -> Result<usize, ModelFileError> {
        self.optional_size(key)?
            .ok_or_else(|| invalid(format!("config.json lacks '{key}'")))
    }

    pub(crate) fn optional_size(&self, key: &str) -> Result<Option<usize>, ModelFileError> {
        match self.0.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => value
                .as_u64()
                .and_then(|value| usize::try_from(value).ok())
                .map(Some)
                .ok_or_else(|| {
                    invalid(format!(
                        "config.json: '{key}' must be a whole number, got {}",
                        kinds::shown(value)
                    ))
                }),
        }
    }

    pub(crate) fn number(&self, key: &str) -> Option<f64> {
        self.0.get(key).and_then(Value::as_f64)
    }

    pub(crate) fn text(&self, key: &str) -> Option<&str> {
        self.0.get(key).and_then(Value::as_str)
    }

    fn truth(&self, key: &str) -> Option<bool> {
        self.0.get(key).and_then(Value::as_bool)
    }

    /// A factor; 1 where nothing is said.
    fn factor(&self, key: &str) -> Result<f32, ModelFileError> {
        self.factor_or(key, 1.0)
    }

    /// A factor, and what it is where nothing is said.
    fn factor_or(&self, key: &str, default: f32) -> Result<f32, ModelFileError> {
        match self.0.get(key).filter(|value| !value.is_null()) {
            None => Ok(default),
            Some(value) => value.as_f64().map(|factor| factor as f32).ok_or_else(|| {
                invalid(format!(
                    "config.json: '{key}' must be a number, got {}",
                    kinds::shown(value)
                ))
            }),
        }
    }

    /// A factor above 0; 1 where nothing is said.
    fn factor_above_zero(&self, key: &str) -> Result<f32, ModelFileError> {
        let factor = self.factor(key)?;
        if factor > 0.0 && factor.is_finite() {
            return Ok(factor);
        }
        Err(invalid(format!(
            "config.json: '{key}' is {factor}; expected a number above 0"
        )))
    }

    /// A cap, of an architecture that has any; null is none.
    fn cap(&self, has_caps: bool, key: &str, default: f32) -> Result<Option<f32>, ModelFileError> {
        match self.0.get(key).filter(|_| has_caps) {
            None => Ok(has_caps.then_some(default)),
            Some(Value::Null) => Ok(None),
            Some(value) => match value.as_f64() {
                Some(cap) => Ok(Some(cap as f32)),
                None => Err(invalid(format!(
                    "config.json: '{key}' must be a number, got {}",
                    kinds::shown(value)
                ))),
            },
        }
    }

    fn num_kv_heads(&self, name: &str, num_heads: usize) -> Result<usize, ModelFileError> {
        // These have as many as query heads when nothing is said; the others' defaults are single models' numbers.
        const AS_MANY: [&str; 28] = [
            "llama",
            "phi3",
            "olmo2",
            "olmo3",
            "olmoe",
            "hunyuan_v1_dense",
            "hunyuan_v1_moe",
            "granite",
            "granitemoehybrid",
            "granitemoe",
            "granitemoeshared",
            "arcee",
            "apertus",
            "dots1",
            "cohere",
            "phi",
            "nemotron",
            "olmo",
            "afmoe",
            "minicpm",
            "falcon_h1",
            "xverse",
            "jais2",
            "flex_olmo",
            "granitemoe_swa",
            "hyperclovax",
            "nanochat",
            "cohere2_moe",
        ];
        if name == "gpt_neox" {
            return Ok(num_heads);
        }
        if !AS_MANY.contains(&name) && !self.0.contains_key("num_key_value_heads") {
            return self.size("num_key_value_heads");
        }
        Ok(self.optional_size("num_key_value_heads")?.unwrap_or(num_heads))
    }

    /// How Ministral 3's queries grow.
    fn query_growth(&self, name: &str) -> Result<Option<QueryGrowth>, ModelFileError> {
        if name == llama4::NAME {
            return self.growth_of_unrotated();
        }
        let Some(rope) = self
            .rope_table()
            .filter(|_| [MINISTRAL3, latent::MISTRAL4].contains(&name))
        else {
            return Ok(None);
        };
        let beta = rope.get("llama_4_scaling_beta").and_then(Value::as_f64);
        let original = rope.get("original_max_position_embeddings").and_then(Value::as_u64);
        match (beta, original) {
            (Some(beta), Some(original)) => Ok(Some(QueryGrowth {
                beta: beta as f32,
                original: original as usize,
                offset: 0,
                is_of_unrotated: false,
            })),
            (None, _) => Ok(None),
            _ => Err(invalid(
                "rope scaling lacks 'original_max_position_embeddings'".to_owned(),
            )),
        }
    }

    fn norm_epsilon(&self, name: &str) -> f64 {
        let is_classic = classic::is_one(name);
        let keys: &[&str] = match name {
            nemotron::NAME => &["layer_norm_epsilon", "norm_eps"],
            _ if mamba::NAMES.contains(&name) => &["layer_norm_epsilon"],
            _ if name.starts_with("lfm") => &["norm_eps"],
            "cohere" | "cohere2" | "phi" | "gpt_neox" | "jais2" | mpt::NAME => &["layer_norm_eps"],
            cohere2_moe::NAME => &["rms_norm_eps", "layer_norm_eps"],
            "stablelm" => &["layer_norm_eps", "norm_eps"],
            "starcoder2" => &["norm_epsilon"],
            "nemotron" => &["norm_eps"],
            "olmo" => &[],
            _ if is_classic => &["layer_norm_eps"],
            _ => &["rms_norm_eps"],
        };
        let own = keys.iter().find_map(|key| self.number(key));
        own.unwrap_or(default_epsilon(name))
    }

    fn is_output_tied(&self, architecture: Architecture) -> Option<bool> {
        let is_lfm2 = architecture.has_short_convolutions();
        let older = || is_lfm2.then(|| self.truth("tie_embedding")).flatten();
        let by_family = (is_lfm2 || architecture.is_gemma() || families::is_tied(architecture)).then_some(true);
        older().or(self.truth("tie_word_embeddings")).or(by_family)
    }

    fn activation(&self, architecture: Architecture) -> Result<Activation, ModelFileError> {
        if architecture.has_short_convolutions() {
            return Ok(Activation::Silu);
        }
        if architecture == Architecture::NemotronH {
            return Ok(Activation::ReluSquared);
        }
        match self.text("hidden_activation").or_else(|| self.text("hidden_act")) {
            Some("silu") if architecture == Architecture::GptOss => {
                let number = |key, default| self.number(key).unwrap_or(default) as f32;
                let alpha = number("swiglu_alpha", GPT_OSS_ALPHA);
                let limit = number("swiglu_limit", GPT_OSS_LIMIT);
                Ok(Activation::ClampedSwiglu { alpha, limit })
            }
            Some(name) if families::has_bare_activation(architecture) => families::bare_activation(name, architecture),
            Some("silu") => Ok(Activation::Silu),
            Some("gelu") if architecture == Architecture::Gemma => Ok(Activation::GeluTanh),
            Some("gelu_pytorch_tanh") => Ok(Activation::GeluTanh),
            other => Err(invalid(format!(
                "activation '{}' is not supported; expected silu or gelu_pytorch_tanh",
                clipped(other.unwrap_or("none"))
            ))),
        }
    }

    /// Which layers have rotary positions: those of `no_rope_layers` that are 1, which is said the wrong way round, else
    /// all but every so many.
    fn rotary_layers(&self, architecture: Architecture, num_layers: usize) -> Result<Vec<bool>, ModelFileError> {
        if let Some(layers) = self.0.get("no_rope_layers").filter(|value| !value.is_null()) {
            let truths = layers.as_array().map(|layers| layers.iter().map(Value::as_u64));
            let layers: Option<Vec<bool>> = truths.and_then(|truths| truths.map(|one| Some(one? != 0)).collect());
            return layers.filter(|layers| layers.len() == num_layers).ok_or_else(|| {
                invalid("config.json: 'no_rope_layers' must have 1 (rotary) or 0 for each layer".to_owned())
            });
        }
        match self.optional_size("no_rope_layer_interval")? {
            Some(every) => Ok(periodic(num_layers, every)),
            None => Ok(architecture.rotary_layers(num_layers)),
        }
    }

    pub(crate) fn object(&self, key: &str) -> Option<&Map<String, Value>> {
        self.0.get(key).and_then(Value::as_object)
    }
}
