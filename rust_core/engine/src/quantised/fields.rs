//! An object of a `config.json`, whose every value is looked at before it is taken.

use serde_json::Value;

use crate::config::invalid;
use crate::safetensors::JsonObject;
use crate::weights::{ModelFileError, clipped};

/// Most rows or columns that may share a scale.
const MOST_GROUP: u64 = 1 << 20;

/// An object, and what it is called in messages.
pub(super) struct Fields<'a> {
    name: String,
    values: &'a JsonObject,
}

impl<'a> Fields<'a> {
    /// An error where the value is no object.
    pub(super) fn of(value: Option<&'a Value>, name: &str) -> Result<Self, ModelFileError> {
        let Some(values) = value.and_then(Value::as_object) else {
            return Err(invalid(format!("config.json: '{}' must be an object", clipped(name))));
        };
        let name = clipped(name);
        Ok(Self { name, values })
    }

    pub(super) fn error(&self, problem: &str) -> ModelFileError {
        invalid(format!("config.json: '{}' {problem}", self.name))
    }

    /// What is said of a value that has a meaning, but none here.
    pub(super) fn refused(&self, key: &str, known: &str) -> ModelFileError {
        let value = self.text_of(key);
        self.error(&format!(
            "has '{key}': {value}, which is not implemented on the CPU; there are {known}. Take the model as a GGUF file"
        ))
    }

    fn wrong(&self, key: &str, expected: &str) -> ModelFileError {
        self.error(&format!("has '{key}': {}; expected {expected}", self.text_of(key)))
    }

    fn text_of(&self, key: &str) -> String {
        clipped(&self.values.get(key).unwrap_or(&Value::Null).to_string())
    }

    fn get(&self, key: &str) -> Option<&'a Value> {
        self.values.get(key).filter(|value| !value.is_null())
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// A text; empty where there is none.
    pub(super) fn text(&self, key: &str) -> &'a str {
        self.get(key).and_then(Value::as_str).unwrap_or_default()
    }

    pub(super) fn truth(&self, key: &str, default: bool) -> Result<bool, ModelFileError> {
        let value = self.get(key).map_or(Some(default), Value::as_bool);
        value.ok_or_else(|| self.wrong(key, "true or false"))
    }

    pub(super) fn inner(&self, key: &str) -> Result<Self, ModelFileError> {
        Self::of(self.get(key), &format!("{}.{key}", self.name))
    }

    /// The objects in it.
    pub(super) fn all(&self) -> impl Iterator<Item = Result<Self, ModelFileError>> {
        let values = self.values.iter();
        values.map(|(key, value)| Self::of(Some(value), &format!("{}.{key}", self.name)))
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &'a str> {
        self.values.keys().map(String::as_str)
    }

    /// Refuses any text but these, and anything that is no text; nothing is fine.
    pub(super) fn only(&self, key: &str, known: &[&str]) -> Result<(), ModelFileError> {
        match self.get(key) {
            Some(value) if !value.as_str().is_some_and(|text| known.contains(&text)) => {
                Err(self.refused(key, &known.join(", ")))
            }
            _ => Ok(()),
        }
    }

    /// One of some numbers, which must be there.
    pub(super) fn one_of(&self, key: &str, known: &[usize]) -> Result<usize, ModelFileError> {
        let value = self.get(key).and_then(Value::as_u64);
        let found = known.iter().find(|number| Some(**number as u64) == value);
        found.copied().ok_or_else(|| {
            let known: Vec<String> = known.iter().map(ToString::to_string).collect();
            self.refused(key, &known.join(", "))
        })
    }

    /// Columns that share a scale; 0 for -1, which is all of them.
    pub(super) fn size(&self, key: &str) -> Result<usize, ModelFileError> {
        if self.get(key).and_then(Value::as_i64) == Some(-1) {
            return Ok(0);
        }
        let size = self.get(key).and_then(size_of);
        size.ok_or_else(|| self.wrong(key, "a number of columns, or -1"))
    }

    /// Rows and columns of blocks that share a scale.
    pub(super) fn block(&self, key: &str) -> Result<(usize, usize), ModelFileError> {
        let sizes = self.get(key).and_then(Value::as_array).map(Vec::as_slice);
        let block = match sizes {
            Some([rows, columns]) => size_of(rows).zip(size_of(columns)),
            _ => None,
        };
        block.ok_or_else(|| self.wrong(key, "rows and columns"))
    }
}

fn size_of(value: &Value) -> Option<usize> {
    let size = value.as_u64().filter(|size| (1..=MOST_GROUP).contains(size));
    size.map(|size| size as usize)
}
