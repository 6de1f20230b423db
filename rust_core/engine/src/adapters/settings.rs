//! What an adapter's file says beside its tensors: how its product is scaled. What changes the numbers and is not
//! implemented is refused by name.

use crate::config::invalid;
use crate::gguf::GgufFile;
use crate::safetensors::JsonObject;
use crate::weights::{ModelFileError, clipped};

/// Fields of `adapter_config.json` that change no number: of training, of where things are from, and those that the
/// tensors show.
const IRRELEVANT: &str = "arrow_router auto_mapping base_model_name_or_path corda_config ensure_weight_tying eva_config \
    exclude_modules inference_mode layers_pattern layers_to_transform loftq_config lora_dropout lora_ga_config \
    megatron_config megatron_core peft_version qalora_group_size revision runtime_config target_modules task_type";
/// Fields that are read here.
const READ: &str = "alpha_pattern bias init_lora_weights lora_alpha peft_type r rank_pattern use_dora use_rslora";
/// Ways of beginning that leave the model's own weights as they are.
const KEEPING: [&str; 3] = ["gaussian", "eva", "orthogonal"];

/// How products are scaled, and whether they are `DoRA`'s.
#[derive(Debug)]
pub(super) struct Settings {
    alpha: f32,
    /// The alphas of modules by the end of their names.
    patterns: Vec<(String, f32)>,
    pub(super) is_rslora: bool,
    pub(super) is_dora: bool,
    /// The ranks that the file says its modules have; none where it says nothing.
    ranks: Vec<u64>,
}

impl Settings {
    /// What a module's product is multiplied by.
    pub(super) fn scale(&self, module: &str, rank: usize) -> f32 {
        let found = self
            .patterns
            .iter()
            .find(|(pattern, _)| ends_with_names(module, pattern));
        let alpha = found.map_or(self.alpha, |(_, alpha)| *alpha);
        let rank = rank as f32;
        alpha / if self.is_rslora { rank.sqrt() } else { rank }
    }

    /// Refuses a module of another rank than the file says: its scale would be another one than that of its training.
    pub(super) fn check_rank(&self, module: &str, rank: usize) -> Result<(), ModelFileError> {
        if self.ranks.is_empty() || self.ranks.contains(&(rank as u64)) {
            return Ok(());
        }
        let module = clipped(module);
        let told: Vec<_> = self.ranks.iter().take(8).map(ToString::to_string).collect();
        Err(refused(&format!(
            "{module:?} has rank {rank}, but r and rank_pattern say {}; save the adapter anew",
            told.join(", ")
        )))
    }
}

/// Whether `module` is `end`, or ends in it after a dot.
fn ends_with_names(module: &str, end: &str) -> bool {
    module
        .strip_suffix(end)
        .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

/// Reads `adapter_config.json`.
pub(super) fn peft_settings(config: &JsonObject) -> Result<Settings, ModelFileError> {
    let kind = config.get("peft_type").unwrap_or(&serde_json::Value::Null);
    if kind != "LORA" {
        let kind = shown(kind);
        return Err(refused(&format!(
            "peft_type is {kind}; expected \"LORA\": other kinds of adapters are not added, and peft's save_pretrained \
             writes the kind of its own"
        )));
    }
    let known = |name: &str| {
        IRRELEVANT
            .split_whitespace()
            .chain(READ.split_whitespace())
            .any(|known| known == name)
    };
    if let Some((name, value)) = config.iter().find(|(name, value)| !known(name) && !is_nothing(value)) {
        let (name, value) = (clipped(name), clipped(&value.to_string()));
        return Err(refused(&format!("{name:?} is {value}, which is not implemented")));
    }
    check_beginning(config)?;
    match config.get("bias") {
        None => {}
        Some(value) if value == "none" => {}
        Some(value) => {
            let value = clipped(&value.to_string());
            return Err(refused(&format!(
                "bias is {value}: adapters of biases are not implemented"
            )));
        }
    }
    Ok(Settings {
        alpha: number(config.get("lora_alpha"), "lora_alpha")?,
        patterns: patterns(config)?,
        ranks: ranks(config)?,
        is_rslora: truth(config, "use_rslora")?,
        is_dora: truth(config, "use_dora")?,
    })
}

/// Refuses ways of beginning that took something from the model's own weights.
fn check_beginning(config: &JsonObject) -> Result<(), ModelFileError> {
    let Some(beginning) = config.get("init_lora_weights").and_then(serde_json::Value::as_str) else {
        return Ok(());
    };
    if KEEPING.contains(&beginning) {
        return Ok(());
    }
    let beginning = clipped(beginning);
    Err(refused(&format!(
        "init_lora_weights is {beginning:?}, which may have changed the model's own weights; save the adapter with \
         peft's path_initial_model_for_weight_conversion"
    )))
}

fn patterns(config: &JsonObject) -> Result<Vec<(String, f32)>, ModelFileError> {
    let Some(value) = config.get("alpha_pattern").filter(|value| !is_nothing(value)) else {
        return Ok(Vec::new());
    };
    let object = value
        .as_object()
        .ok_or_else(|| refused("alpha_pattern is no table of numbers"))?;
    let read = object.iter().map(|(pattern, value)| {
        let is_plain = |character: char| character.is_ascii_alphanumeric() || "._-".contains(character);
        if !pattern.chars().all(is_plain) {
            let pattern = clipped(pattern);
            let text = format!("alpha_pattern has {pattern:?}: expected the ends of modules' names, not patterns");
            return Err(refused(&text));
        }
        Ok((pattern.clone(), number(Some(value), "alpha_pattern")?))
    });
    read.collect()
}

/// The ranks that modules may have: `r`, and those of `rank_pattern`, whose patterns are not matched.
fn ranks(config: &JsonObject) -> Result<Vec<u64>, ModelFileError> {
    let Some(rank) = config.get("r").filter(|value| !value.is_null()) else {
        return Ok(Vec::new());
    };
    let patterns = match config.get("rank_pattern").filter(|value| !is_nothing(value)) {
        None => None,
        Some(value) => Some(
            value
                .as_object()
                .ok_or_else(|| refused("rank_pattern is no table of numbers"))?,
        ),
    };
    let every = std::iter::once(rank).chain(patterns.into_iter().flat_map(|patterns| patterns.values()));
    let read = every.map(|value| {
        let shown = || clipped(&value.to_string());
        let text = || format!("r or rank_pattern has {}; expected a whole number", shown());
        value.as_u64().ok_or_else(|| refused(&text()))
    });
    read.collect()
}

/// Reads a GGUF file's metadata.
pub(super) fn gguf_settings(file: &GgufFile) -> Result<Settings, ModelFileError> {
    if !file.metadata().contains_key("adapter.type") {
        let text = "not an adapter: it has no adapter.type; is it a model's file?";
        return Err(invalid(text.to_owned()));
    }
    let expected = [("general.type", "adapter"), ("adapter.type", "lora")];
    for (key, expected) in expected {
        let found = file.metadata_str(key)?;
        if found != expected {
            let found = clipped(found);
            return Err(invalid(format!("{key} is {found:?}; expected {expected:?}")));
        }
    }
    if let Some(key) = file.metadata().keys().find(|key| key.starts_with("adapter.alora.")) {
        return Err(invalid(format!(
            "{:?} is there: activated LoRA is not implemented",
            clipped(key)
        )));
    }
    let alpha = file.metadata_f32("adapter.lora.alpha")?;
    if !alpha.is_finite() {
        return Err(invalid("adapter.lora.alpha is not a finite number".to_owned()));
    }
    Ok(Settings {
        alpha,
        patterns: Vec::new(),
        ranks: Vec::new(),
        is_rslora: false,
        is_dora: false,
    })
}

fn truth(config: &JsonObject, name: &str) -> Result<bool, ModelFileError> {
    match config.get(name) {
        None | Some(serde_json::Value::Null) => Ok(false),
        Some(serde_json::Value::Bool(value)) => Ok(*value),
        Some(value) => {
            let value = clipped(&value.to_string());
            Err(refused(&format!("{name} is {value}; expected true or false")))
        }
    }
}

fn number(value: Option<&serde_json::Value>, name: &str) -> Result<f32, ModelFileError> {
    let shown = || value.map_or("missing".to_owned(), shown);
    let number = value.and_then(serde_json::Value::as_f64).map(|number| number as f32);
    match number {
        Some(number) if number.is_finite() => Ok(number),
        Some(_) => Err(refused(&format!(
            "{name} is {}; expected at most {:e}",
            shown(),
            f32::MAX
        ))),
        None => Err(refused(&format!(
            "{name} is {}; expected a number, such as 16: write the one that the adapter was trained with",
            shown()
        ))),
    }
}

/// A value as the file has it: numbers that JSON has not as Python writes them.
fn shown(value: &serde_json::Value) -> String {
    let word = value.get("__float__").and_then(serde_json::Value::as_str);
    clipped(&word.map_or_else(|| value.to_string(), str::to_owned))
}

fn is_nothing(value: &serde_json::Value) -> bool {
    match value {
        serde_json::Value::Null | serde_json::Value::Bool(false) => true,
        serde_json::Value::Array(values) => values.is_empty(),
        serde_json::Value::Object(fields) => fields.is_empty(),
        serde_json::Value::String(text) => text.is_empty(),
        _ => false,
    }
}

fn refused(reason: &str) -> ModelFileError {
    invalid(format!("adapter_config.json: {reason}"))
}
