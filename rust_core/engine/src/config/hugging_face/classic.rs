//! Families of before Llama in a `config.json`: their own names of sizes, under the names that others have, and what is so
//! in all of their files.

use serde_json::{Map, Value, json};

use super::{JsonConfig, kinds};
use crate::config::{Architecture, MOST_LAYERS, invalid};
use crate::weights::{ModelFileError, clipped};

/// The families, and their activation where nothing is said.
const FAMILIES: [(&str, &str); 8] = [
    (FALCON, "gelu"),
    ("bloom", "gelu_pytorch_tanh"),
    ("gpt2", "gelu_new"),
    (STAR_CODER, "gelu_pytorch_tanh"),
    (GPT_J, "gelu_new"),
    (GPT_NEO, "gelu_new"),
    (CODE_GEN, "gelu_new"),
    ("opt", "relu"),
];
const FALCON: &str = "falcon";
const STAR_CODER: &str = "gpt_bigcode";
const GPT_J: &str = "gptj";
pub(super) const GPT_NEO: &str = "gpt_neo";
const CODE_GEN: &str = "codegen";

/// Sizes by these families' names, and by the others'.
const NAMES: [(&str, &str); 18] = [
    ("n_embd", "hidden_size"),
    ("n_embed", "hidden_size"),
    ("n_head", "num_attention_heads"),
    ("num_heads", "num_attention_heads"),
    ("n_layer", "num_hidden_layers"),
    ("num_layers", "num_hidden_layers"),
    ("n_head_kv", "num_key_value_heads"),
    ("num_kv_heads", "num_key_value_heads"),
    ("n_positions", "max_position_embeddings"),
    ("seq_length", "max_position_embeddings"),
    ("n_inner", "intermediate_size"),
    ("ffn_dim", "intermediate_size"),
    ("ffn_hidden_size", "intermediate_size"),
    ("activation_function", "hidden_act"),
    ("activation", "hidden_act"),
    ("layer_norm_epsilon", "layer_norm_eps"),
    ("resid_dropout", "dropout"),
    ("embed_dropout", "dropout"),
];
/// Those of them that change no answer, and may differ: dropouts, and how long texts were in training.
const UNREAD: [&str; 3] = ["seq_length", "resid_dropout", "embed_dropout"];
/// What is read besides; what training, summaries and other programs read; how exactly scores are computed.
pub(super) const FIELDS: &str = "layer_norm_eps use_parallel_residual alibi alibi_bias_max new_decoder_architecture \
    num_ln_in_parallel_attn multi_query parallel_attn bias rotary_dim attention_types attention_layers window_size n_ctx \
    attn_pdrop summary_activation summary_first_dropout summary_proj_to_labels summary_type summary_use_proj \
    reorder_and_upcast_attn attention_softmax_in_fp32 scale_attention_softmax_in_fp32 classifier_dropout slow_but_exact \
    bias_dropout_fusion masked_softmax_fusion offset_alibi skip_bias_add skip_bias_add_qkv activation_dropout layerdrop \
    init_std enable_bias inference_runner pre_allocate_kv_cache max_sequence_length max_batch_size \
    runner_max_sequence_length validate_runner_input";
/// The greatest exponent of `ALiBi`'s slopes.
const ALIBI_MAX_BIAS: f64 = 8.0;
/// How many times as wide insides are where nothing is said.
const EXPANSION: usize = 4;
/// Positions of Falcon and BLOOM, whose files do not say.
const CONTEXT: usize = 2_048;
/// Rotated numbers of a head of GPT-J and `CodeGen`, and GPT-Neo's window.
const ROTARY_DIMS: usize = 64;
const WINDOW: usize = 256;

/// Whether a family is one of these.
pub(super) fn is_one(name: &str) -> bool {
    FAMILIES.iter().any(|(family, _)| *family == name)
}

/// The configuration under the names that others have; `None` for other models. An error for what is not implemented.
pub(super) fn completed(config: &Map<String, Value>) -> Result<Option<Map<String, Value>>, ModelFileError> {
    let name = config.get("model_type").and_then(Value::as_str).unwrap_or_default();
    let Some((_, activation)) = FAMILIES.iter().find(|(family, _)| *family == name) else {
        return Ok(None);
    };
    kinds::refuse_others(config, "")?;
    let mut completed = config.clone();
    completed.retain(|_, value| !value.is_null());
    for (own, others) in NAMES {
        let Some(value) = completed.remove(own) else { continue };
        let other = completed.entry(others).or_insert_with(|| value.clone());
        if *other != value && !UNREAD.contains(&own) {
            let [value, other] = [value.to_string(), other.to_string()].map(|text| clipped(&text));
            return Err(invalid(format!(
                "config.json: '{own}' is {value}, and '{others}' by another name, which is {other}; expected one value"
            )));
        }
    }
    let json = JsonConfig(&completed, None);
    let (hidden, num_heads) = (json.size("hidden_size")?, json.size("num_attention_heads")?);
    let own = match name {
        FALCON => json.of_falcon(num_heads)?,
        STAR_CODER => {
            json!({ "num_key_value_heads": if json.truth("multi_query") == Some(false) { num_heads } else { 1 } })
        }
        GPT_NEO => json.of_gpt_neo()?,
        "bloom" => json!({ "alibi_bias_max": ALIBI_MAX_BIAS }),
        GPT_J | CODE_GEN => json!({ "rotary_dim": json.optional_size("rotary_dim")?.unwrap_or(ROTARY_DIMS) }),
        _ => json!({}),
    };
    let defaults = json!({
        "intermediate_size": hidden.saturating_mul(EXPANSION),
        "hidden_act": activation,
        "num_key_value_heads": num_heads,
        "tie_word_embeddings": !matches!(name, GPT_J | CODE_GEN),
    });
    if matches!(name, FALCON | "bloom") {
        completed.entry("max_position_embeddings").or_insert(CONTEXT.into());
    }
    if completed.get("word_embed_proj_dim").and_then(Value::as_u64) == Some(hidden as u64) {
        completed.remove("word_embed_proj_dim"); // that of most OPT: nothing is between it and the stream
    }
    completed.extend(own.as_object().cloned().unwrap_or_default());
    for (field, value) in defaults.as_object().cloned().unwrap_or_default() {
        completed.entry(field).or_insert(value);
    }
    Ok(Some(completed))
}

impl JsonConfig<'_> {
    /// Whether each of blocks that lie beside each other has a norm of its own.
    pub(super) fn has_two_norms(&self, architecture: Architecture) -> bool {
        let is_new = self.truth("new_decoder_architecture") == Some(true);
        let has_one = self.number("num_ln_in_parallel_attn") == Some(1.0);
        architecture == Architecture::GptNeoX || (architecture == Architecture::Falcon && is_new && !has_one)
    }

    /// Falcon's heads of keys and values, `ALiBi`, and whether its blocks lie beside each other.
    fn of_falcon(&self, num_heads: usize) -> Result<Value, ModelFileError> {
        let is_new = self.truth("new_decoder_architecture") == Some(true);
        let is_parallel = self.truth("parallel_attn") != Some(false);
        let num_norms = self.optional_size("num_ln_in_parallel_attn")?;
        let norms = if is_new { 1..=2 } else { 1..=1 };
        if num_norms.is_some_and(|count| !norms.contains(&count)) || (is_new && !is_parallel) {
            return Err(invalid(
                "config.json: 'num_ln_in_parallel_attn' and 'parallel_attn' are not those of a Falcon; expected 1 norm, or 2 \
                 where 'new_decoder_architecture' is true, whose blocks lie beside each other"
                    .to_owned(),
            ));
        }
        let num_kv_heads = match (is_new, self.truth("multi_query")) {
            (true, _) => self.optional_size("num_key_value_heads")?.unwrap_or(num_heads),
            (false, Some(false)) => num_heads,
            (false, _) => 1,
        };
        let alibi = (self.truth("alibi") == Some(true)).then_some(ALIBI_MAX_BIAS);
        Ok(json!({
            "num_key_value_heads": num_kv_heads,
            "use_parallel_residual": is_parallel,
            "alibi_bias_max": alibi,
        }))
    }

    /// Which of GPT-Neo's layers have a window, by the lists that its files repeat.
    fn of_gpt_neo(&self) -> Result<Value, ModelFileError> {
        let num_layers = self.size("num_hidden_layers")?.min(MOST_LAYERS); // more are refused later
        let named: Vec<&str> = match self.0.get("attention_types").and_then(Value::as_array) {
            None => (0..num_layers).map(|layer| ["global", "local"][layer % 2]).collect(),
            Some(runs) => named_layers(runs, num_layers).ok_or_else(|| {
                let said = clipped(&Value::from(runs.clone()).to_string()).to_string();
                invalid(format!(
                    "config.json: 'attention_types' {said} does not say of each of {num_layers} layers whether it is global \
                     or local; expected as [[[\"global\", \"local\"], {}]]",
                    num_layers / 2
                ))
            })?,
        };
        let listed = self.0.get("attention_layers");
        if listed.is_some_and(|listed| *listed != Value::from(named.clone())) {
            return Err(invalid(
                "config.json: 'attention_layers' are others than 'attention_types' says; expected one kind for each layer"
                    .to_owned(),
            ));
        }
        let has_window: Vec<bool> = named.iter().map(|name| *name == "local").collect();
        let kinds = has_window.iter().map(|has_window| match has_window {
            true => "sliding_attention",
            false => "full_attention",
        });
        let window = self.optional_size("window_size")?.unwrap_or(WINDOW);
        Ok(json!({
            "layer_types": kinds.collect::<Vec<_>>(),
            "sliding_window": has_window.contains(&true).then_some(window),
        }))
    }
}

/// What each layer is called, of names that are repeated so many times.
fn named_layers(runs: &[Value], num_layers: usize) -> Option<Vec<&str>> {
    let mut layers = Vec::new();
    for run in runs {
        let [names, times] = run.as_array()?.as_slice() else {
            return None;
        };
        let names: Vec<&str> = names.as_array()?.iter().map(Value::as_str).collect::<Option<_>>()?;
        for _ in 0..times.as_u64()? {
            layers.extend_from_slice(&names);
            if names.is_empty() || layers.len() > num_layers {
                return None;
            }
        }
    }
    let are_known = layers.iter().all(|name| ["global", "local"].contains(name));
    (layers.len() == num_layers && are_known).then_some(layers)
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value, json};

    use crate::config::{Activation, ModelConfig};
    use crate::weights::ModelFileError;

    fn read(changes: Value) -> ModelConfig {
        asked(changes).expect("a model that is supported")
    }

    fn asked(changes: Value) -> Result<ModelConfig, ModelFileError> {
        let fields = json!({"vocab_size": 64, "n_embd": 64, "n_layer": 4, "n_head": 4, "n_positions": 512});
        let mut fields: Map<String, Value> = fields.as_object().expect("an object").clone();
        fields.extend(changes.as_object().expect("an object").clone());
        ModelConfig::from_hugging_face(&fields, None)
    }

    /// One of them would be ignored; what changes no answer may differ.
    #[test]
    fn values_that_two_fields_say_otherwise_are_refused() {
        for (changes, said) in [
            (
                json!({"model_type": "gpt2", "hidden_size": 32}),
                "'n_embd' is 64, and 'hidden_size'",
            ),
            (
                json!({"model_type": "falcon", "n_head_kv": 2, "num_kv_heads": 4}),
                "'num_kv_heads' is 4, and",
            ),
            (
                json!({"model_type": "gpt2", "hidden_act": "relu", "activation_function": "gelu"}),
                "by another name",
            ),
            (
                json!({"model_type": "gpt_neo", "attention_layers": ["local", "global", "local", "global"]}),
                "others than",
            ),
            (json!({"model_type": "gpt_neo", "attention_layers": 4}), "others than"),
        ] {
            let error = asked(changes).expect_err("two values").to_string();
            assert!(error.contains(said), "{error}");
        }
        read(json!({"model_type": "gpt2", "hidden_size": 64, "resid_dropout": 0.1, "embed_dropout": 0.0}));
        read(json!({"model_type": "bloom", "seq_length": 4096}));
    }

    #[test]
    fn what_files_leave_out_is_the_familys() {
        for (family, activation, is_tied) in [
            ("gpt2", Activation::BareGeluTanh, true),
            ("falcon", Activation::BareGelu, true),
            ("gptj", Activation::BareGeluTanh, false),
            ("opt", Activation::Relu, true),
        ] {
            let config = read(json!({"model_type": family, "n_inner": null, "rotary_dim": 8}));
            let found = (config.activation, config.is_output_tied, config.ffn_size);
            assert_eq!(found, (activation, Some(is_tied), 256), "{family}");
            assert!((config.norm_epsilon - 1e-5).abs() < 1e-9, "{family}");
        }
        assert_eq!(
            read(json!({"model_type": "bloom", "n_positions": null})).context_length,
            2_048
        );
        assert_eq!(read(json!({"model_type": "codegen", "head_dim": 128})).rotary_dims, 64);
    }

    #[test]
    fn falcons_are_told_apart_by_their_fields() {
        let falcon = |changes: Value| {
            let mut fields = json!({"model_type": "falcon", "num_kv_heads": 2});
            let all = fields.as_object_mut().expect("an object");
            all.extend(changes.as_object().expect("an object").clone());
            let config = read(fields);
            let has_alibi = config.alibi_max_bias.is_some();
            let norms = (config.is_parallel, config.has_two_norms, config.shares_norm());
            (config.num_kv_heads, norms, has_alibi != config.rotary_layers[0])
        };
        assert_eq!(falcon(json!({})), (1, (true, false, true), true));
        let new = falcon(json!({"new_decoder_architecture": true}));
        assert_eq!(new, (2, (true, true, false), true));
        let one = falcon(json!({"new_decoder_architecture": true, "num_ln_in_parallel_attn": 1}));
        assert_eq!(one, (2, (true, false, true), true));
        let first = falcon(json!({"multi_query": false, "parallel_attn": false, "alibi": true}));
        assert_eq!(first, (4, (false, false, false), true));
    }

    #[test]
    fn gpt_neos_windows_are_in_every_other_layer_or_where_it_says() {
        let windows = |changes: Value| {
            let mut fields = json!({"model_type": "gpt_neo"});
            let all = fields.as_object_mut().expect("an object");
            all.extend(changes.as_object().expect("an object").clone());
            let config = read(fields);
            (0..4).map(|layer| config.window(layer)).collect::<Vec<_>>()
        };
        assert_eq!(windows(json!({})), [None, Some(256), None, Some(256)]);
        let types = json!([[["global"], 3], [["local"], 1]]);
        let said = windows(json!({"attention_types": types, "window_size": 24}));
        assert_eq!(said, [None, None, None, Some(24)]);
        assert_eq!(windows(json!({"attention_types": [[["global"], 4]]})), [None; 4]);
        let listed = json!({"attention_layers": ["global", "local", "global", "local"]});
        assert_eq!(windows(listed), windows(json!({})));
    }
}
