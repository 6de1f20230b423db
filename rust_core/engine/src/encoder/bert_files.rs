//! What BERT's families say of their layers in `config.json`.

use serde_json::Value;

use super::bert_config::{BertConfig, Biases, EncoderActivation, EncoderArchitecture, Positions};
use super::bert_names::PREFIXES;
use super::config::{EncoderConfig, Layers, MOST_TEXT_TOKENS};
use super::distances::NUM_BUCKETS;
use super::experts::EncoderExperts;
use super::head::{Head, HeadKind, InnerActivation};
use super::own_words::{has_experts, without_own_words};
use super::steps::Steps;
use super::tasks::Tasks;
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
/// Those of nomic-embed-text-v2-moe.
const READ_OF_NOMIC_MOE: &str = "rope_parameters rope_theta head_dim num_experts moe_top_k moe_every_n_layers";
/// Those of jina-embeddings-v2.
const READ_OF_JINA: &str = "feed_forward_type emb_pooler";
/// Those of jina-embeddings-v3.
const READ_OF_JINA_V3: &str = "rope_theta rope_parameters head_dim lora_adaptations lora_rank lora_alpha lora_dropout_p \
    lora_main_params_trainable load_trained_adapters task_instructions matryoshka_dimensions use_flash_attn use_reentrant";
/// MPNet's.
const READ_OF_MPNET: &str = "relative_attention_num_buckets";

/// What changes no number of the layers: training, and what heads are read from elsewhere.
const OTHER_TASKS: &str = "attention_probs_dropout_prob hidden_dropout_prob classifier_dropout directionality output_past \
    pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head pooler_type model_name \
    sbert_ce_default_activation_function sentence_transformers adapters gradient_checkpointing add_pooling_layer tie_word_embeddings \
    attention_dropout embedding_dropout mlp_dropout decoder_bias deterministic_flash_attn initializer_cutoff_factor \
    sparse_pred_ignore_index sparse_prediction repad_logits_with_grad reference_compile position_ids";

/// Reads a folder.
pub(super) fn bert_of_folder(
    folder: &SafetensorsFolder,
    architecture: EncoderArchitecture,
) -> Result<EncoderConfig, ModelFileError> {
    let fields = without_own_words(folder.config(), architecture)?;
    let architecture = variant_of(folder, architecture, &JsonConfig(&fields, None))?;
    let own = match architecture {
        EncoderArchitecture::ModernBert => READ_OF_MODERN_BERT,
        EncoderArchitecture::NomicBert | EncoderArchitecture::Gte => READ_OF_ROTARY,
        EncoderArchitecture::NomicBertMoe => READ_OF_NOMIC_MOE,
        EncoderArchitecture::JinaBert | EncoderArchitecture::JinaCodeBert => READ_OF_JINA,
        EncoderArchitecture::JinaBertV3 => READ_OF_JINA_V3,
        EncoderArchitecture::Mpnet => READ_OF_MPNET,
        EncoderArchitecture::Bert | EncoderArchitecture::Roberta | EncoderArchitecture::DistilBert => "",
    };
    refuse_unknown(&fields, &[READ, own, OTHER_TASKS, IRRELEVANT], "")?;
    let json = JsonConfig(&fields, None);
    let num_layers = json.size("num_hidden_layers")?;
    let layers = BertConfig {
        has_query_key_norms: has_tensor(folder, "encoder.layer.0.attention.self.layer_norm_q"),
        ..layers_of(&json, architecture, num_layers)?
    };
    let most = match layers.positions {
        Positions::Table { num_rows, first } => num_rows.saturating_sub(first),
        Positions::Rotary { .. } | Positions::Alibi => json.size("max_position_embeddings")?.min(MOST_TEXT_TOKENS),
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
        attention: None,
        closing_token: None,
        tasks: match architecture {
            EncoderArchitecture::JinaBertV3 => Tasks::of(&fields)?,
            _ => None,
        },
    })
}

/// Whether a folder has a matrix or norm, whatever its name begins with.
fn has_tensor(folder: &SafetensorsFolder, name: &str) -> bool {
    let is_there = |prefix: &str| matches!(folder.find_tensor(&format!("{prefix}{name}.weight")), Ok(Some(_)));
    PREFIXES.into_iter().any(is_there)
}

/// The family, by more than its name: jina-embeddings-v2 is called BERT, and has two forms, which its tensors tell apart.
fn variant_of(
    folder: &SafetensorsFolder,
    architecture: EncoderArchitecture,
    json: &JsonConfig<'_>,
) -> Result<EncoderArchitecture, ModelFileError> {
    if architecture == EncoderArchitecture::NomicBert && has_experts(json.0) {
        return Ok(EncoderArchitecture::NomicBertMoe);
    }
    if architecture == EncoderArchitecture::Roberta && json.text("position_embedding_type") == Some("rotary") {
        return Ok(EncoderArchitecture::JinaBertV3);
    }
    if architecture != EncoderArchitecture::Bert || json.text("position_embedding_type") != Some("alibi") {
        return Ok(architecture);
    }
    for (key, expected) in [("feed_forward_type", "geglu"), ("emb_pooler", "mean")] {
        if let Some(found) = json.0.get(key).filter(|found| !found.is_null() && *found != expected) {
            let found = clipped(&found.to_string());
            return Err(invalid(format!(
                "config.json: '{key}' is {found}, which is not implemented; expected \"{expected}\""
            )));
        }
    }
    Ok(match has_tensor(folder, "encoder.layer.0.mlp.up_gated_layer") {
        true => EncoderArchitecture::JinaCodeBert,
        false => EncoderArchitecture::JinaBert,
    })
}

/// What is peculiar to the heads of ModernBERT and DistilBERT.
fn head_of(json: &JsonConfig<'_>, architecture: EncoderArchitecture, head: Head) -> Result<Head, ModelFileError> {
    let has_plain_labels = matches!(
        architecture,
        EncoderArchitecture::Bert
            | EncoderArchitecture::Roberta
            | EncoderArchitecture::Mpnet
            | EncoderArchitecture::DistilBert
            | EncoderArchitecture::ModernBert
    );
    if head.kind == HeadKind::Tokens && !has_plain_labels {
        let name = architecture.name();
        return Err(invalid(format!(
            "config.json: labels of tokens are not implemented for '{name}'"
        )));
    }
    if architecture == EncoderArchitecture::DistilBert {
        let inner = InnerActivation::Relu;
        return Ok(Head { inner, ..head });
    }
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
        pad_id: pad_id.unwrap_or(usize::from(architecture.counts_from_padding())),
        num_types: json.optional_size("type_vocab_size")?.unwrap_or(2),
        norm_epsilon: json.number("layer_norm_eps").unwrap_or(1e-12) as f32,
        activation: activation("hidden_act", "gelu")?,
        is_gated: false,
        is_pre_norm: false,
        reach: Vec::new(),
        biases: Biases::ALL,
        has_query_key_norms: false,
        experts: None,
    };
    match architecture {
        EncoderArchitecture::JinaBert | EncoderArchitecture::JinaCodeBert => Ok(BertConfig {
            positions: Positions::Alibi,
            activation: EncoderActivation::Gelu,
            is_gated: true,
            biases: Biases {
                up: false,
                ..Biases::ALL
            },
            ..layers
        }),
        EncoderArchitecture::JinaBertV3 => Ok(BertConfig {
            positions: rotary(json, 20_000.0)?,
            num_types: json.optional_size("type_vocab_size")?.unwrap_or(1),
            norm_epsilon: json.number("layer_norm_eps").unwrap_or(1e-5) as f32,
            ..layers
        }),
        EncoderArchitecture::Mpnet | EncoderArchitecture::DistilBert => Ok(BertConfig {
            positions: table_of(json, &layers)?,
            num_types: 0,
            ..layers
        }),
        EncoderArchitecture::Bert | EncoderArchitecture::Roberta => {
            if let Some(kind) = json.text("position_embedding_type").filter(|kind| *kind != "absolute") {
                let kind = clipped(kind);
                return Err(invalid(format!(
                    "config.json: 'position_embedding_type' is '{kind}', which is not implemented; expected absolute"
                )));
            }
            let positions = table_of(json, &layers)?;
            Ok(BertConfig { positions, ..layers })
        }
        EncoderArchitecture::NomicBertMoe => Ok(BertConfig {
            positions: rotary(json, 10_000.0)?,
            num_types: json.optional_size("type_vocab_size")?.unwrap_or(1),
            experts: Some(EncoderExperts {
                count: json.size("num_experts")?,
                used: json.size("moe_top_k")?,
                period: json.size("moe_every_n_layers")?,
            }),
            ..layers
        }),
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

/// Positions that are rows of a table, in some families behind the padding token's.
fn table_of(json: &JsonConfig<'_>, layers: &BertConfig) -> Result<Positions, ModelFileError> {
    if let Some(count) = json
        .optional_size("relative_attention_num_buckets")?
        .filter(|count| *count != NUM_BUCKETS)
    {
        return Err(invalid(format!(
            "config.json: 'relative_attention_num_buckets' is {count}, which is not implemented; expected {NUM_BUCKETS}"
        )));
    }
    let counts_from_padding = layers.architecture.counts_from_padding();
    Ok(Positions::Table {
        num_rows: json.size("max_position_embeddings")?,
        first: if counts_from_padding {
            layers.pad_id.saturating_add(1)
        } else {
            0
        },
    })
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
