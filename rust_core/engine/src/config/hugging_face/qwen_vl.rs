//! The text half of Qwen2-VL, Qwen2.5-VL, Qwen3-VL and Qwen 3.5: a `config.json` of Qwen2, Qwen3 or Qwen 3.5's text.
//!
//! A rotary position is a frame, a row and a column there (M-RoPE), and each frequency turns by one of them. In text all
//! three are the token's place, so that sections are checked and change nothing.

use serde_json::{Map, Value};

use crate::config::invalid;
use crate::weights::{ModelFileError, clipped};

/// What tells of pictures.
const OF_PICTURES: &str =
    "vision_config image_token_id video_token_id vision_start_token_id vision_end_token_id vision_token_id";

/// What says how positions of three numbers turn a head.
const OF_SECTIONS: [&str; 2] = ["mrope_section", "mrope_interleaved"];

/// Qwen3-VL with experts, whose weights are always divided by their sum.
const QWEN3_VL_MOE: &str = "qwen3_vl_moe";

/// A family of pictures and text.
struct Family {
    name: &'static str,
    /// The family whose layers its text half has.
    text: &'static str,
    /// The rotary base, where nothing is said.
    base: f64,
    /// Whether sections take turns.
    is_interleaved: bool,
}

/// Qwen 3.5, whose text half stands alone too.
const QWEN35: Family = Family {
    name: "qwen3_5",
    text: "qwen3_5_text",
    base: 10_000.0,
    is_interleaved: true,
};

/// Qwen 3.5 with experts.
const QWEN35_MOE: Family = Family {
    name: "qwen3_5_moe",
    text: "qwen3_5_moe_text",
    ..QWEN35
};

const FAMILIES: [Family; 8] = [
    Family {
        name: "qwen2_vl",
        text: "qwen2",
        base: 1_000_000.0,
        is_interleaved: false,
    },
    Family {
        name: "qwen2_5_vl",
        text: "qwen2",
        base: 1_000_000.0,
        is_interleaved: false,
    },
    Family {
        name: "qwen3_vl",
        text: "qwen3",
        base: 500_000.0,
        is_interleaved: true,
    },
    Family {
        name: QWEN3_VL_MOE,
        text: "qwen3_moe",
        base: 500_000.0,
        is_interleaved: true,
    },
    QWEN35,
    Family {
        name: QWEN35.text,
        ..QWEN35
    },
    QWEN35_MOE,
    Family {
        name: QWEN35_MOE.text,
        ..QWEN35_MOE
    },
];

/// The configuration of the text half; `None` for other models.
pub(super) fn text_half(config: &Map<String, Value>) -> Result<Option<Map<String, Value>>, ModelFileError> {
    let kind = config.get("model_type").and_then(Value::as_str);
    let Some(family) = FAMILIES.iter().find(|family| Some(family.name) == kind) else {
        return Ok(None);
    };
    let mut text = merged(config);
    text.insert("model_type".to_owned(), family.text.into());
    if text.get("use_sliding_window").and_then(Value::as_bool) == Some(true) {
        let name = family.name;
        return Err(invalid(format!(
            "config.json: sliding windows are not implemented for {name}"
        )));
    }
    if text.get("rope_theta").is_none_or(Value::is_null) {
        text.insert("rope_theta".to_owned(), family.base.into());
    }
    let num_frequencies = num_frequencies(family, &text);
    if family.name == QWEN3_VL_MOE {
        text.insert("norm_topk_prob".to_owned(), true.into());
        text.insert("head_dim".to_owned(), (2 * num_frequencies).into());
    }
    for key in ["rope_parameters", "rope_scaling"] {
        if let Some(rope) = text.get_mut(key).and_then(Value::as_object_mut) {
            take_sections(family, rope, num_frequencies)?;
        }
    }
    Ok(Some(text))
}

/// The fields of `text_config`, beside the outer ones that tell of text.
pub(super) fn merged(config: &Map<String, Value>) -> Map<String, Value> {
    let is_of_text = |name: &str| name != "text_config" && OF_PICTURES.split_whitespace().all(|other| other != name);
    let mut text = config.clone();
    text.retain(|name, _| is_of_text(name));
    if let Some(inner) = config.get("text_config").and_then(Value::as_object) {
        text.extend(inner.iter().map(|(name, value)| (name.clone(), value.clone())));
        let is_tied = |fields: &Map<String, Value>| fields.get("tie_word_embeddings").and_then(Value::as_bool);
        let is_tied = is_tied(config) == Some(true) || is_tied(inner) == Some(true);
        text.insert("tie_word_embeddings".to_owned(), is_tied.into());
    }
    text
}

/// Frequencies of a head, of which two numbers turn by each.
fn num_frequencies(family: &Family, text: &Map<String, Value>) -> u64 {
    let size = |key: &str| text.get(key).and_then(Value::as_u64);
    let share = || Some(size("hidden_size")? / size("num_attention_heads")?.max(1));
    let by_family = if family.text == "qwen3" {
        Some(super::QWEN3_HEAD_DIM as u64)
    } else {
        share()
    };
    let head_dim = size("head_dim").or(by_family).unwrap_or(0);
    if [QWEN35.text, QWEN35_MOE.text].contains(&family.text) {
        return (head_dim as f64 * super::rotary_share(text).unwrap_or(super::QWEN35_ROTARY_SHARE)) as u64 / 2;
    }
    head_dim / 2
}

/// Checks the sections of a table of rotary parameters, and takes them out.
fn take_sections(family: &Family, rope: &mut Map<String, Value>, num_frequencies: u64) -> Result<(), ModelFileError> {
    let kind = rope.get("rope_type").or_else(|| rope.get("type"));
    let kind = kind.and_then(Value::as_str).unwrap_or("default").to_owned();
    let [sections, is_interleaved] = OF_SECTIONS.map(|key| rope.remove(key));
    let are_sections = sections.as_ref().is_none_or(|sections| {
        let lengths = sections.as_array().map(|all| all.iter().map(Value::as_u64));
        let lengths: Option<Vec<u64>> = lengths.and_then(Iterator::collect);
        lengths.is_some_and(|lengths| {
            let sum = lengths.iter().fold(0_u64, |sum, length| sum.saturating_add(*length));
            lengths.len() == 3 && sum == num_frequencies
        })
    });
    let is_interleaved = is_interleaved
        .and_then(|truth| truth.as_bool())
        .unwrap_or(family.is_interleaved);
    if !(matches!(kind.as_str(), "default" | "mrope") && are_sections && is_interleaved == family.is_interleaved) {
        let (name, turns, kind) = (family.name, family.is_interleaved, clipped(&kind));
        return Err(invalid(format!(
            "config.json: the rope scaling '{kind}' is not implemented for {name}; expected default or mrope, \
             'mrope_section' of three numbers whose sum is {num_frequencies} and 'mrope_interleaved' {turns}"
        )));
    }
    for key in ["rope_type", "type"] {
        rope.remove(key);
    }
    Ok(())
}
