//! Families that are descriptions over shared layers, in a `config.json`: Command R, `StarCoder2`, Phi-2, `StableLM`, Nemotron,
//! OLMo, GPT-NeoX, GLM-4, dots.llm1, MiniMax-M2.

use serde_json::Value;

use super::{JsonConfig, classic, granite_swa, kimi, minimax, mpt};
use crate::config::{Activation, Architecture, invalid, minicpm};
use crate::weights::{ModelFileError, clipped};

/// Families whose layers see everything.
pub(super) const WITHOUT_WINDOWS: [&str; 32] = [
    "gemma",
    "glm4",
    "arcee",
    "apertus",
    "granitemoe",
    "granitemoeshared",
    "minimax_m2",
    "cohere",
    "phi",
    "stablelm",
    "nemotron",
    "olmo",
    "gpt_neox",
    mpt::NAME,
    "internlm3",
    "minicpm",
    "falcon",
    "bloom",
    "glm",
    "gpt2",
    "gpt_bigcode",
    "gptj",
    "codegen",
    "opt",
    "helium",
    "internlm2",
    "iquestcoder",
    "flex_olmo",
    "hyperclovax",
    "jais2",
    "nanochat",
    "hy_v3",
];

/// Of how many of Command R7B's layers the last one sees everything.
const COHERE2_PERIOD: usize = 4;
const COHERE_LOGIT_SCALE: f64 = 0.0625;

/// What is read of a family besides, and what its files say that is so in all of them or that training reads.
pub(super) fn fields(architecture: Architecture) -> &'static str {
    match architecture {
        Architecture::Glm4 | Architecture::Glm => "partial_rotary_factor",
        Architecture::PhiMoe => "lm_head_bias input_jitter_noise",
        Architecture::InternLm2 => "bias",
        architecture if has_classic_fields(architecture) => classic::FIELDS,
        Architecture::GraniteMoe => "shared_intermediate_size",
        Architecture::MiniMaxM2 => {
            "rotary_dim partial_rotary_factor scoring_func use_qk_norm qk_norm_type use_routing_bias use_mtp num_mtp_modules \
             mtp_transformer_layers attn_type_list shared_intermediate_size layernorm_full_attention_beta \
             layernorm_linear_attention_beta layernorm_mlp_beta postnorm shared_moe_mode"
        }
        Architecture::Cohere => "logit_scale layer_norm_eps",
        Architecture::Jais2 => "layer_norm_eps",
        Architecture::NanoChat => "final_logit_softcapping",
        Architecture::GraniteSwa => granite_swa::FIELDS,
        Architecture::HyV3 => {
            "eod_token_id enable_attention_fp32_softmax enable_lm_head_fp32 enable_moe_fp32_combine expert_hidden_dim \
             use_grouped_mm num_nextn_predict_layers"
        }
        Architecture::Cohere2 | Architecture::Cohere2Moe => {
            "logit_scale layer_norm_eps layer_switch position_embedding_type rotary_pct use_embedding_sharing \
             use_parallel_embedding"
        }
        Architecture::StarCoder2 => {
            "norm_epsilon layer_norm_epsilon norm_type mlp_type residual_dropout embedding_dropout activation_function \
             attention_softmax_in_fp32 scale_attention_softmax_in_fp32 scale_attn_weights"
        }
        Architecture::Phi2 => "layer_norm_eps partial_rotary_factor",
        Architecture::StableLm => "layer_norm_eps norm_eps partial_rotary_factor use_qkv_bias use_parallel_residual",
        Architecture::Nemotron => "norm_eps partial_rotary_factor kv_channels",
        Architecture::GptNeoX => {
            "layer_norm_eps rotary_pct rotary_emb_base use_parallel_residual classifier_dropout partial_rotary_factor"
        }
        Architecture::Afmoe => {
            "global_attn_every_n_layers mup_enabled score_func route_norm use_grouped_mm load_balance_coeff"
        }
        Architecture::ExaoneMoe => "sliding_window_pattern",
        Architecture::MiniCpm => OF_MINICPM,
        Architecture::KimiLinear => kimi::FIELDS,
        Architecture::MiniMax01 => minimax::FIELDS,
        Architecture::Deepseek2 | Architecture::AxK1 => {
            "kv_lora_rank q_lora_rank qk_nope_head_dim qk_rope_head_dim qk_head_dim v_head_dim rope_interleave \
             embedding_initializer_range"
        }
        Architecture::MiniCpm3 => {
            "scale_emb scale_depth dim_model_base kv_lora_rank q_lora_rank qk_nope_head_dim qk_rope_head_dim \
             qk_head_dim v_head_dim"
        }
        _ => "",
    }
}

/// What is read of MiniCPM besides.
const OF_MINICPM: &str = "scale_emb scale_depth dim_model_base";
/// Of how many of Trinity's layers the last one sees everything, and the window of the others.
const AFMOE_PERIOD: usize = 4;
const AFMOE_WINDOW: usize = 1_024;

/// Whether the embedding is the output matrix too where the file does not say.
pub(super) fn is_tied(architecture: Architecture) -> bool {
    matches!(
        architecture,
        Architecture::Cohere
            | Architecture::Cohere2
            | Architecture::Cohere2Moe
            | Architecture::StarCoder2
            | Architecture::MiniCpm
            | Architecture::MiniCpm3
            | Architecture::Mamba
            | Architecture::Mpt
    )
}

/// Whether insides have no gate.
pub(super) fn has_bare_activation(architecture: Architecture) -> bool {
    matches!(
        architecture,
        Architecture::Arcee
            | Architecture::Nemotron
            | Architecture::StarCoder2
            | Architecture::Phi2
            | Architecture::GptNeoX
            | Architecture::Apertus
            | Architecture::Mpt
            | Architecture::Jais2
            | Architecture::NanoChat
    ) || has_classic_fields(architecture)
}

/// Whether it is one of the families of before Llama, whose insides have no gate.
fn has_classic_fields(architecture: Architecture) -> bool {
    matches!(
        architecture,
        Architecture::Falcon
            | Architecture::Bloom
            | Architecture::Gpt2
            | Architecture::StarCoder
            | Architecture::GptJ
            | Architecture::GptNeo
            | Architecture::CodeGen
            | Architecture::Opt
    )
}

/// The activation of insides without a gate.
pub(super) fn bare_activation(name: &str, architecture: Architecture) -> Result<Activation, ModelFileError> {
    match name {
        "xielu" if architecture == Architecture::Apertus => Ok(Activation::Xielu),
        "relu" => Ok(Activation::Relu),
        "relu2" => Ok(Activation::ReluSquared),
        "gelu" => Ok(Activation::BareGelu),
        "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" => Ok(Activation::BareGeluTanh),
        other => Err(invalid(format!(
            "activation '{}' is not supported for a block without a gate; expected relu, relu2, gelu, \
             gelu_new or gelu_pytorch_tanh",
            clipped(other)
        ))),
    }
}

impl JsonConfig<'_> {
    /// Whether attention and the feed-forward block lie beside each other.
    pub(super) fn is_parallel(&self, architecture: Architecture) -> Result<bool, ModelFileError> {
        if let Some(is_parallel) = architecture.is_parallel() {
            return Ok(is_parallel);
        }
        match self.0.get("use_parallel_residual") {
            None | Some(Value::Null) => Ok(architecture.is_parallel_by_default()),
            Some(Value::Bool(said)) => Ok(*said),
            Some(other) => Err(invalid(format!(
                "config.json: 'use_parallel_residual' must be true or false, got {other}"
            ))),
        }
    }

    /// Of how many of Trinity's layers the last one sees everything.
    pub(super) fn afmoe_period(&self) -> Result<usize, ModelFileError> {
        Ok(self
            .optional_size("global_attn_every_n_layers")?
            .unwrap_or(AFMOE_PERIOD))
    }

    /// The window of Trinity's other layers.
    pub(super) fn afmoe_window(&self) -> Result<Option<usize>, ModelFileError> {
        match self.0.get("sliding_window") {
            Some(Value::Null) => Err(invalid(
                "config.json: 'sliding_window' must be a number for afmoe".to_owned(),
            )),
            _ => Ok(Some(self.optional_size("sliding_window")?.unwrap_or(AFMOE_WINDOW))),
        }
    }

    /// Whether Trinity's embedding is multiplied by the square root of the stream's width.
    pub(super) fn is_afmoe_scaled(&self, architecture: Architecture) -> bool {
        architecture == Architecture::Afmoe && self.truth("mup_enabled") == Some(true)
    }

    /// Factor on what MiniCPM's blocks add to a stream of so many layers.
    pub(super) fn minicpm_residual_scale(&self, num_layers: usize) -> Result<f32, ModelFileError> {
        let root = (num_layers as f32).sqrt();
        match self.0.get("scale_depth") {
            Some(Value::Null) => Ok(1.0),
            _ => Ok(self.factor_or("scale_depth", minicpm::DEPTH_SCALE)? / root),
        }
    }

    /// What MiniCPM's logits are divided by.
    pub(super) fn minicpm_divisor(&self, hidden_size: usize) -> Result<f32, ModelFileError> {
        let base = match self.0.get("dim_model_base") {
            Some(Value::Null) => hidden_size,
            _ => self.optional_size("dim_model_base")?.unwrap_or(minicpm::BASE_SIZE),
        };
        Ok(hidden_size as f32 / base as f32)
    }

    /// What Command R's logits are divided by: the file has what they are multiplied by.
    pub(super) fn cohere_divisor(&self) -> Result<f32, ModelFileError> {
        let scale = self.number("logit_scale").unwrap_or(COHERE_LOGIT_SCALE);
        Ok((1.0 / scale) as f32)
    }

    /// Of how many of Command R7B's layers the last one sees everything.
    pub(super) fn cohere_period(&self) -> Result<usize, ModelFileError> {
        let said = self.optional_size("sliding_window_pattern")?;
        let said = said.or(self.optional_size("_sliding_window_pattern")?);
        Ok(said.or(self.optional_size("layer_switch")?).unwrap_or(COHERE2_PERIOD))
    }

    /// The window of dots.llm1, of files that have layers with one.
    pub(super) fn dots_window(&self) -> Result<Option<usize>, ModelFileError> {
        let has_windows = self
            .0
            .get("layer_types")
            .and_then(Value::as_array)
            .is_some_and(|types| types.iter().any(|kind| kind == "sliding_attention"));
        Ok(self.optional_size("sliding_window")?.filter(|_| has_windows))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value, json};

    use crate::config::{ModelConfig, Rating};

    fn read(changes: Value) -> Result<ModelConfig, String> {
        let fields = json!({
            "vocab_size": 64, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
            "num_key_value_heads": 2, "max_position_embeddings": 512, "hidden_act": "silu",
        });
        let mut fields: Map<String, Value> = fields.as_object().expect("an object").clone();
        fields.extend(changes.as_object().expect("an object").clone());
        ModelConfig::from_hugging_face(&fields, None).map_err(|error| error.to_string())
    }

    fn with_experts(family: &str, changes: Value) -> Result<ModelConfig, String> {
        let count = if family == "afmoe" {
            "num_experts"
        } else {
            "n_routed_experts"
        };
        let mut fields = json!({"model_type": family, "num_experts_per_tok": 2, "moe_intermediate_size": 32});
        let all = fields.as_object_mut().expect("an object");
        all.insert(count.to_owned(), json!(8));
        all.extend(changes.as_object().expect("an object").clone());
        read(fields)
    }

    /// dots.llm1's default is none, GLM-4.5's, Solar Open's and EXAONE's one.
    #[test]
    fn shared_experts_are_as_many_as_the_family_has_where_nothing_is_said() {
        for (family, expected) in [("dots1", 0), ("glm4_moe", 32), ("solar_open", 32), ("exaone_moe", 32)] {
            let config = with_experts(family, json!({})).expect("a model that is supported");
            let experts = config.experts.expect("experts");
            assert_eq!(
                (experts.shared_size, experts.rating),
                (expected, Rating::Sigmoid),
                "{family}"
            );
        }
    }

    /// Trinity's defaults, and Solar Open's whole heads that are rotated from another base.
    #[test]
    fn what_new_families_leave_out_is_theirs() {
        let config = with_experts("afmoe", json!({})).expect("a model that is supported");
        assert_eq!(
            (config.head_dim, config.window(0), config.window(3)),
            (128, Some(1_024), None)
        );
        assert_eq!(config.rotary_layers, [true, true, true, false]);
        assert_eq!(config.dense_layers, [true, false, false, false]);
        assert!((config.embedding_scale - 1.0).abs() < 1e-9);
        let config = with_experts("afmoe", json!({"mup_enabled": true})).expect("a model that is supported");
        assert!((config.embedding_scale - 8.0).abs() < 1e-9);
        let solar = with_experts("solar_open", json!({})).expect("a model that is supported");
        assert_eq!((solar.rotary_dims, solar.rope_base), (16, 1e6));
        assert_eq!(solar.dense_layers, [false; 4]);
    }

    #[test]
    fn what_new_families_do_not_compute_is_refused_by_name() {
        for (field, value, said) in [
            (
                "score_func",
                json!("softmax"),
                "'score_func' \"softmax\" is not implemented here; expected sigmoid",
            ),
            ("route_norm", json!(false), "'route_norm' must be true for afmoe"),
            (
                "num_expert_groups",
                json!(2),
                "'num_expert_groups' 2 is not implemented for afmoe",
            ),
            (
                "sliding_window",
                json!(null),
                "'sliding_window' must be a number for afmoe",
            ),
            ("mup_enabled", json!("yes"), "'mup_enabled' must be true or false"),
        ] {
            let changes = Value::Object(Map::from_iter([(field.to_owned(), value)]));
            let error = with_experts("afmoe", changes).expect_err(field);
            assert!(error.contains(said), "{error}");
        }
        let falcon = |changes: Value| {
            let mut fields =
                json!({"model_type": "falcon_h1", "mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_state": 16});
            let all = fields.as_object_mut().expect("an object");
            all.extend(changes.as_object().expect("an object").clone());
            read(fields)
        };
        let plain = with_experts("solar_open", json!({"use_qk_norm": true})).expect_err("norms");
        assert!(plain.contains("'use_qk_norm' is not implemented"), "{plain}");
        for (changes, said) in [
            (
                json!({"mamba_rms_norm": true}),
                "'mamba_norm_before_gate' must be false where",
            ),
            (
                json!({"mamba_d_head": 32}),
                "'mamba_n_heads' 4 times 'mamba_d_head' 32 must be 'mamba_d_ssm', 64",
            ),
            (
                json!({"attention_bias": true}),
                "'attention_bias' must be false for falcon_h1",
            ),
            (
                json!({"ssm_multipliers": [1.0, 2.0]}),
                "'ssm_multipliers' must be 5 numbers above 0",
            ),
            (
                json!({"mlp_multipliers": [1.0, -1.0]}),
                "'mlp_multipliers' must be 2 numbers above 0",
            ),
            (
                json!({"ssm_out_multiplier": 0.0}),
                "a factor on embeddings, scores, blocks or logits is not a number",
            ),
            (
                json!({"lm_head_multiplier": "1"}),
                "'lm_head_multiplier' must be a number",
            ),
        ] {
            let error = falcon(changes).expect_err(said);
            assert!(error.contains(said), "{error}");
        }
    }
}
