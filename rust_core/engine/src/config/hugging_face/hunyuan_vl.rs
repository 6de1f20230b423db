//! The text half of Hunyuan's models of pictures (HunyuanOCR): a `config.json` of Hunyuan's dense text models.
//!
//! A rotary position is up to four numbers there (XDRoPE): the token's place, a column, a row, and which picture it is of.
//! Each section of a head turns by one of them. In text all are the token's place, so that sections are checked and change
//! nothing.

use serde_json::{Map, Value};

use super::qwen_vl;
use crate::config::invalid;
use crate::weights::ModelFileError;

/// The family, and its text half alone.
const NAMES: [&str; 2] = ["hunyuan_vl", "hunyuan_vl_text"];
/// The family whose layers the text half has.
const TEXT: &str = "hunyuan_v1_dense";
/// What published files call the scaling, and what it is for text.
const XDROPE: (&str, &str) = ("xdrope", "dynamic");
/// What says by which number a section turns.
const SECTIONS: [&str; 2] = ["xdrope_section", "mrope_section"];

/// The configuration of the text half; `None` for other models.
pub(super) fn text_half(config: &Map<String, Value>) -> Result<Option<Map<String, Value>>, ModelFileError> {
    let kind = config.get("model_type").and_then(Value::as_str);
    if !kind.is_some_and(|kind| NAMES.contains(&kind)) {
        return Ok(None);
    }
    let mut text = qwen_vl::merged(config);
    text.insert("model_type".to_owned(), TEXT.into());
    text.remove("position_embedding_xdrope");
    let inner = config.get("text_config").and_then(Value::as_object);
    let says = |fields: &Map<String, Value>| fields.get("tie_word_embeddings").is_some_and(Value::is_boolean);
    if !says(config) && !inner.is_some_and(says) {
        text.insert("tie_word_embeddings".to_owned(), true.into());
    }
    let size = |key: &str| text.get(key).and_then(Value::as_u64);
    let share = || Some(size("hidden_size")? / size("num_attention_heads")?.max(1));
    let head_dim = size("head_dim").or_else(|| size("attention_head_dim")).or_else(share);
    let num_frequencies = head_dim.unwrap_or(0) / 2;
    for key in ["rope_parameters", "rope_scaling"] {
        if let Some(rope) = text.get_mut(key).and_then(Value::as_object_mut) {
            take_sections(rope, num_frequencies)?;
        }
    }
    Ok(Some(text))
}

/// Checks the sections of a table of rotary parameters, and takes them out.
fn take_sections(rope: &mut Map<String, Value>, num_frequencies: u64) -> Result<(), ModelFileError> {
    for sections in SECTIONS.iter().filter_map(|key| rope.remove(*key)) {
        // Some files write them as numbers with a point.
        let length = |value: &Value| value.as_f64().filter(|length| *length >= 0.0 && length.fract() == 0.0);
        let lengths: Option<Vec<f64>> = sections.as_array().and_then(|all| all.iter().map(length).collect());
        if lengths.is_none_or(|lengths| lengths.iter().sum::<f64>() != num_frequencies as f64) {
            return Err(invalid(format!(
                "config.json: '{}' must be whole numbers whose sum is half a head's size, {num_frequencies}",
                SECTIONS[0]
            )));
        }
    }
    for key in ["rope_type", "type"] {
        if rope.get(key).and_then(Value::as_str) == Some(XDROPE.0) {
            rope.insert(key.to_owned(), XDROPE.1.into());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value, json};

    use crate::config::ModelConfig;

    /// What the published `config.json` of HunyuanOCR says: text beside pictures, with these rotary parameters.
    fn published(rope: &Value) -> Result<ModelConfig, String> {
        let fields = json!({
            "model_type": "hunyuan_vl", "vocab_size": 120_818, "hidden_size": 1_024, "intermediate_size": 3_584,
            "num_hidden_layers": 24, "num_attention_heads": 16, "num_key_value_heads": 8, "attention_head_dim": 128,
            "head_dim": 128, "max_position_embeddings": 32_768, "rms_norm_eps": 1e-5, "hidden_act": "silu",
            "rope_theta": 10_000.0, "rope_scaling": rope, "position_embedding_xdrope": true, "use_qk_norm": true,
            "vision_config": {"hidden_size": 1_152}, "image_token_id": 120_120, "im_start_id": 120_118,
        });
        let fields: Map<String, Value> = fields.as_object().expect("an object").clone();
        ModelConfig::from_hugging_face(&fields, None).map_err(|error| error.to_string())
    }

    #[test]
    fn the_text_half_is_a_dense_hunyuan_with_a_larger_base() {
        let rope = json!({"alpha": 1_000.0, "beta_fast": 32, "beta_slow": 1, "factor": 1.0, "mscale": 1.0,
            "mscale_all_dim": 1.0, "type": "xdrope", "xdrope_section": [16, 16, 16, 16]});
        let config = published(&rope).expect("a model that is supported");
        let base = 10_000.0 * 1_000.0_f64.powf(128.0 / 126.0);
        assert!((config.rope_base / base - 1.0).abs() < 1e-12);
        assert_eq!((config.head_dim, config.is_output_tied), (128, Some(true)));
    }

    #[test]
    fn sections_that_are_not_a_head_are_refused_by_name() {
        for sections in [
            json!([16, 16, 16]),
            json!([16.5, 47.5]),
            json!(64),
            json!([-1, 65]),
            json!(["64"]),
        ] {
            let rope = json!({"alpha": 1_000.0, "type": "xdrope", "xdrope_section": sections});
            let error = published(&rope).expect_err("sections");
            assert!(
                error.contains("'xdrope_section' must be whole numbers whose sum is half a head's size, 64"),
                "{error}"
            );
        }
    }
}
