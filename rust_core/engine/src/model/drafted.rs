//! What heads in files of their own share: how such a file is opened, and the tokens that they draft.

use std::path::Path;

use serde_json::{Map, Value};

use super::assistant::whole_numbers;
use crate::config::invalid;
use crate::weights::{ModelFile, ModelFileError, StoredTensor};

/// Which token each place among a head's logits is of.
pub struct DraftedTokens(Option<Vec<u32>>);

impl DraftedTokens {
    /// Of a head that drafts of the whole vocabulary.
    pub(super) const ALL: Self = Self(None);

    /// Reads a list of `count` numbers; `token` gives the token of a place and its number, or what is wrong with it.
    pub(super) fn read(
        tensor: &StoredTensor<'_>,
        count: usize,
        token: impl Fn(usize, i64) -> Result<u32, String>,
    ) -> Result<Self, ModelFileError> {
        let numbers = whole_numbers(tensor)?;
        if numbers.len() != count {
            return Err(invalid(format!(
                "tensor '{}' has {} numbers; expected one for each of the {count} tokens that are drafted",
                tensor.name,
                numbers.len()
            )));
        }
        let tokens = numbers.into_iter().enumerate().map(|(place, number)| {
            token(place, number).map_err(|fault| invalid(format!("tensor '{}' has {number}{fault}", tensor.name)))
        });
        tokens.collect::<Result<_, _>>().map(|tokens| Self(Some(tokens)))
    }

    /// All of them, in the order of places; `None` for the whole vocabulary.
    pub(super) fn listed(&self) -> Option<&[u32]> {
        self.0.as_deref()
    }

    /// The token that a place among a row's logits is of.
    pub(crate) fn at(&self, place: u32) -> u32 {
        self.0.as_ref().map_or(place, |tokens| tokens[place as usize])
    }

    /// Bytes held.
    pub(super) fn bytes(&self) -> usize {
        self.0.as_ref().map_or(0, |tokens| size_of_val(&tokens[..]))
    }
}

/// Opens a folder of heads, `is_of` its configuration, with what `read` makes of it; `None` for another model.
pub(super) fn opened<T>(
    path: &Path,
    is_of: impl FnOnce(&Map<String, Value>) -> bool,
    read: impl FnOnce(&ModelFile, &Map<String, Value>) -> Result<T, ModelFileError>,
) -> Result<Option<(ModelFile, T)>, ModelFileError> {
    let file = ModelFile::open(path)?;
    let config = match &file {
        ModelFile::Safetensors(folder) if is_of(folder.config()) => read(&file, folder.config()),
        _ => return Ok(None),
    };
    let config = config.map_err(|error| error.in_file(path))?;
    Ok(Some((file, config)))
}
