//! What BERT's families say of their layers in `config.json`.

use serde_json::{Map, Value};

use super::bert_config::{BertConfig, Biases, EncoderActivation, EncoderArchitecture, Positions};
use super::config::{EncoderConfig, Layers, MOST_TEXT_TOKENS};
use super::head::{Head, InnerActivation};
use super::steps::Steps;
use crate::config::hugging_face::{IRRELEVANT, JsonConfig, refuse_unknown};
use crate::config::invalid;
use crate::safetensors::SafetensorsFolder;
use crate::weights::{ModelFileError, clipped};

/// What is read here of `config.json`, in all families.
const READ: &str = "model_type vocab_size hidden_size num_hidden_layers num_attention_heads intermediate_size hidden_act \
    max_position_embeddings type_vocab_size layer_norm_eps position_embedding_type pad_token_id architectures";
/// ModernBERT's.
const READ_OF_MODERN_BERT: &str = "hidden_activation norm_eps norm_bias attention_bias mlp_bias local_attention layer_types \
    global_attn_every_n_layers global_rope_theta local_rope_theta rope_parameters classifier_pooling classifier_bias \
    classifier_activation layer_norm_eps";
/// Those of BERT with rotary positions.
const READ_OF_ROTARY: &str = "rope_parameters rope_theta head_dim";

/// What changes no number of the layers: training, and what heads are read from elsewhere.
const OTHER_TASKS: &str = "attention_probs_dropout_prob hidden_dropout_prob classifier_dropout directionality output_past \
    pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head pooler_type model_name \
    sbert_ce_default_activation_function sentence_transformers adapters gradient_checkpointing add_pooling_layer tie_word_embeddings \
    attention_dropout embedding_dropout mlp_dropout decoder_bias deterministic_flash_attn initializer_cutoff_factor \
    sparse_pred_ignore_index sparse_prediction repad_logits_with_grad reference_compile position_ids";

/// Nomic's own names in `config.json`, and what transformers calls the same.
const NOMIC_NAMES: [(&str, &str); 7] = [
    ("n_embd", "hidden_size"),
    ("n_head", "num_attention_heads"),
    ("n_inner", "intermediate_size"),
    ("n_layer", "num_hidden_layers"),
    ("n_positions", "max_position_embeddings"),
    ("layer_norm_epsilon", "layer_norm_eps"),
    ("rotary_emb_base", "rope_theta"),
];
/// What Nomic's own configurations say, where it is what is implemented.
const NOMIC_NEUTRAL: &str = r#"{"activation_function": "swiglu", "causal": false, "mlp_fc1_bias": false,
    "mlp_fc2_bias": false, "qkv_proj_bias": false, "parallel_block": false, "prenorm": false, "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": false, "scale_attn_by_inverse_layer_idx": false, "scale_attn_weights": true,
    "use_rms_norm": false, "rotary_emb_scale_base": null, "rotary_scaling_factor": null}"#;
/// What of them changes no number of the layers.
const NOMIC_OTHER: &str = "attn_pdrop dense_seq_output fused_bias_fc fused_dropout_add_ln last_layer_subset \
    max_trained_positions pad_vocab_size_multiple parallel_block_tied_norm reorder_and_upcast_attn summary_activation \
    summary_first_dropout summary_proj_to_labels summary_type summary_use_proj use_flash_attn use_xentropy";

/// Reads a folder.
pub(super) fn bert_of_folder(
    folder: &SafetensorsFolder,
    architecture: EncoderArchitecture,
) -> Result<EncoderConfig, ModelFileError> {
    let fields = match architecture {
        EncoderArchitecture::NomicBert => without_own_names(folder.config())?,
        _ => folder.config().clone(),
    };
    let own = match architecture {
        EncoderArchitecture::ModernBert => READ_OF_MODERN_BERT,
        EncoderArchitecture::NomicBert | EncoderArchitecture::Gte => READ_OF_ROTARY,
        EncoderArchitecture::Bert | EncoderArchitecture::Roberta => "",
    };
    refuse_unknown(&fields, &[READ, own, OTHER_TASKS, IRRELEVANT], "")?;
    let json = JsonConfig(&fields, None);
    let num_layers = json.size("num_hidden_layers")?;
    let layers = layers_of(&json, architecture, num_layers)?;
    let most = match layers.positions {
        Positions::Table { num_rows, first } => num_rows.saturating_sub(first),
        Positions::Rotary { .. } => json.size("max_position_embeddings")?.min(MOST_TEXT_TOKENS),
    };
    let steps = Steps::of(folder.path())?;
    Ok(EncoderConfig {
        vocab_size: json.size("vocab_size")?,
        hidden_size: json.size("hidden_size")?,
        num_layers,
        layers: Layers::Bert(layers),
        pooling: steps.pooling,
        dense: steps.dense,
        max_tokens: steps.max_tokens.map_or(most, |tokens| tokens.min(most)),
        head: Head::of(&fields)?
            .map(|head| head_of(&json, architecture, head))
            .transpose()?,
        is_late: steps.is_late,
    })
}

/// What is peculiar to ModernBERT's head.
fn head_of(json: &JsonConfig<'_>, architecture: EncoderArchitecture, head: Head) -> Result<Head, ModelFileError> {
    if architecture != EncoderArchitecture::ModernBert {
        return Ok(head);
    }
    if json.0.get("norm_bias") == Some(&Value::Bool(true)) {
        return Err(invalid(
            "config.json: 'norm_bias' is true, which is not implemented for a model with labels".to_owned(),
        ));
    }
    Ok(Head {
        is_of_mean: match json.text("classifier_pooling") {
            None | Some("cls") => false,
            Some("mean") => true,
            Some(other) => {
                let other = clipped(other);
                return Err(invalid(format!(
                    "config.json: 'classifier_pooling' is '{other}'; expected cls or mean"
                )));
            }
        },
        has_dense_bias: json.0.get("classifier_bias") == Some(&Value::Bool(true)),
        inner: InnerActivation::Of(EncoderActivation::from_name(
            json.text("classifier_activation").unwrap_or("gelu"),
        )?),
        ..head
    })
}

fn layers_of(
    json: &JsonConfig<'_>,
    architecture: EncoderArchitecture,
    num_layers: usize,
) -> Result<BertConfig, ModelFileError> {
    let pad_id = json.optional_size("pad_token_id")?;
    let activation = |key: &str, default: &str| EncoderActivation::from_name(json.text(key).unwrap_or(default));
    let layers = BertConfig {
        architecture,
        num_heads: json.size("num_attention_heads")?,
        ffn_size: json.size("intermediate_size")?,
        positions: Positions::Table { num_rows: 0, first: 0 },
        pad_id: pad_id.unwrap_or(usize::from(architecture == EncoderArchitecture::Roberta)),
        num_types: json.optional_size("type_vocab_size")?.unwrap_or(2),
        norm_epsilon: json.number("layer_norm_eps").unwrap_or(1e-12) as f32,
        activation: activation("hidden_act", "gelu")?,
        is_gated: false,
        is_pre_norm: false,
        reach: Vec::new(),
        biases: Biases::ALL,
    };
    match architecture {
        EncoderArchitecture::Bert | EncoderArchitecture::Roberta => {
            if let Some(kind) = json.text("position_embedding_type").filter(|kind| *kind != "absolute") {
                let kind = clipped(kind);
                return Err(invalid(format!(
                    "config.json: 'position_embedding_type' is '{kind}', which is not implemented; expected absolute"
                )));
            }
            let is_roberta = architecture == EncoderArchitecture::Roberta;
            let first = if is_roberta { layers.pad_id.saturating_add(1) } else { 0 };
            let num_rows = json.size("max_position_embeddings")?;
            let positions = Positions::Table { num_rows, first };
            Ok(BertConfig { positions, ..layers })
        }
        EncoderArchitecture::NomicBert => Ok(BertConfig {
            positions: rotary(json, 1_000.0)?,
            activation: activation("hidden_act", "silu")?,
            is_gated: true,
            biases: Biases::OF_NORMS,
            ..layers
        }),
        EncoderArchitecture::Gte => Ok(BertConfig {
            positions: rotary(json, 160_000.0)?,
            num_types: json.optional_size("type_vocab_size")?.unwrap_or(1),
            is_gated: true,
            biases: Biases {
                up: false,
                ..Biases::ALL
            },
            ..layers
        }),
        EncoderArchitecture::ModernBert => {
            let is_there = |key: &str| json.0.get(key) == Some(&Value::Bool(true));
            let norm_epsilon = json.number("norm_eps").unwrap_or(1e-5) as f32;
            Ok(BertConfig {
                positions: modern_rotary(json)?,
                num_types: 0,
                norm_epsilon,
                activation: activation("hidden_activation", "gelu")?,
                is_gated: true,
                is_pre_norm: true,
                reach: modern_reach(json, num_layers)?,
                biases: Biases {
                    attention: is_there("attention_bias"),
                    up: is_there("mlp_bias"),
                    down: is_there("mlp_bias"),
                    norms: is_there("norm_bias"),
                },
                ..layers
            })
        }
    }
}

/// The rotary positions of a table of parameters, of which nothing is stretched.
fn rope_base(parameters: Option<&Value>, default: f64) -> Result<f64, ModelFileError> {
    let Some(parameters) = parameters.and_then(Value::as_object) else {
        return Ok(default);
    };
    refuse_unknown(parameters, &["rope_theta rope_type type"], "rope_parameters.")?;
    let kind = parameters.get("rope_type").or_else(|| parameters.get("type"));
    match kind.and_then(Value::as_str) {
        None | Some("default") => Ok(parameters.get("rope_theta").and_then(Value::as_f64).unwrap_or(default)),
        Some(kind) => {
            let kind = clipped(kind);
            Err(invalid(format!(
                "config.json: rotary positions of type '{kind}' are not implemented for encoders; expected default"
            )))
        }
    }
}

fn rotary(json: &JsonConfig<'_>, default: f64) -> Result<Positions, ModelFileError> {
    let base = rope_base(
        json.0.get("rope_parameters"),
        json.number("rope_theta").unwrap_or(default),
    )?;
    let heads = json.size("num_attention_heads")?;
    if let Some(width) = json.optional_size("head_dim")?
        && width.checked_mul(heads) != Some(json.size("hidden_size")?)
    {
        return Err(invalid(format!(
            "config.json: {heads} heads of {width} numbers are not as wide as the hidden size"
        )));
    }
    Ok(Positions::Rotary { base, local_base: base })
}

/// ModernBERT's, which has one base for layers that see everything and one for the others.
fn modern_rotary(json: &JsonConfig<'_>) -> Result<Positions, ModelFileError> {
    let of = |kind: &str| json.0.get("rope_parameters").and_then(|all| all.get(kind));
    let number = |key: &str, default| json.number(key).unwrap_or(default);
    Ok(Positions::Rotary {
        base: rope_base(of("full_attention"), number("global_rope_theta", 160_000.0))?,
        local_base: rope_base(of("sliding_attention"), number("local_rope_theta", 10_000.0))?,
    })
}

/// Which of ModernBERT's layers see their neighbours alone, and how many: half of its window on each side.
fn modern_reach(json: &JsonConfig<'_>, num_layers: usize) -> Result<Vec<Option<usize>>, ModelFileError> {
    let near = Some(json.optional_size("local_attention")?.unwrap_or(128) / 2);
    let Some(kinds) = json.0.get("layer_types").and_then(Value::as_array) else {
        let every = json.optional_size("global_attn_every_n_layers")?.unwrap_or(3).max(1);
        let near = |layer: usize| if layer.is_multiple_of(every) { None } else { near };
        return Ok((0..num_layers.min(1_000)).map(near).collect());
    };
    if kinds.len() != num_layers {
        return Err(invalid(format!(
            "config.json: 'layer_types' has {} entries; expected {num_layers}",
            kinds.len()
        )));
    }
    let reach = |kind: &Value| match kind.as_str() {
        Some("full_attention") => Ok(None),
        Some("sliding_attention") => Ok(near),
        _ => Err(invalid(
            "config.json: 'layer_types' names a layer that is neither full_attention nor sliding_attention".to_owned(),
        )),
    };
    kinds.iter().map(reach).collect()
}

/// A configuration of Nomic's under transformers' names. What says nothing new is left out.
fn without_own_names(config: &Map<String, Value>) -> Result<Map<String, Value>, ModelFileError> {
    let neutral: Map<String, Value> = serde_json::from_str(NOMIC_NEUTRAL).expect("it is JSON");
    let mut fields = Map::new();
    for (name, value) in config {
        if NOMIC_OTHER.split_whitespace().any(|other| other == name) {
            continue;
        }
        match neutral.get(name) {
            Some(expected) if expected == value || value.is_null() => {}
            Some(_) => {
                return Err(invalid(format!(
                    "config.json: '{name}' is {}, which is not implemented",
                    clipped(&value.to_string())
                )));
            }
            None => {
                let own = NOMIC_NAMES.iter().find(|(own, _)| own == name);
                let name = own.map_or(name.as_str(), |(_, theirs)| theirs);
                fields.insert(name.to_owned(), value.clone());
            }
        }
    }
    Ok(fields)
}
