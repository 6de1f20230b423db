//! The weights of heads of Medusa: of each the layers' matrices and what gives logits, and the tokens that they draft.

use std::path::Path;

use pyagent_kernels::pack::PackedMatrix;
use pyagent_kernels::thread_pool::ThreadPool;

use super::drafted::{DraftedTokens, opened};
use super::names::Place;
use super::{Linear, expect, find_matrix, pack, unread, vector};
use crate::config::MedusaConfig;
use crate::config::medusa::{Said, is_medusa};
use crate::quantised::Matrices;
use crate::weights::{ModelFile, ModelFileError, TensorView};

/// Heads' weights.
pub struct MedusaWeights {
    /// Of each head its layers, [hidden, hidden] each.
    pub layers: Vec<Vec<Linear>>,
    /// What gives logits: of each head, or one of all, [drafted, hidden].
    outputs: Vec<PackedMatrix>,
    pub(crate) tokens: DraftedTokens,
}

impl MedusaWeights {
    /// Bytes held by matrices, and by the list of tokens.
    pub fn bytes(&self) -> usize {
        let layers = self.layers.iter().flatten().map(|layer| layer.weight.bytes());
        let outputs = self.outputs.iter().map(PackedMatrix::bytes);
        layers.chain(outputs).sum::<usize>() + self.tokens.bytes()
    }

    /// What gives a head's logits.
    pub(crate) fn output(&self, head: usize) -> &PackedMatrix {
        self.outputs.get(head).unwrap_or(&self.outputs[0])
    }

    /// All matrices that inputs are multiplied by.
    pub(crate) fn matrices(&self) -> impl Iterator<Item = &PackedMatrix> {
        let layers = self.layers.iter().flatten().map(|layer| &layer.weight);
        layers.chain(&self.outputs)
    }
}

/// Opens the heads' folder; `None` for another model.
pub fn open_medusa(path: &Path) -> Result<Option<(ModelFile, MedusaConfig)>, ModelFileError> {
    opened(path, is_medusa, completed)
}

/// Reads a configuration, and what tensors say.
fn completed(
    file: &ModelFile,
    config: &serde_json::Map<String, serde_json::Value>,
) -> Result<MedusaConfig, ModelFileError> {
    let said = Said::of(config)?;
    Matrices::of(file)?;
    let names = MedusaNames::of(file);
    let (layer, output) = (
        names.layer(0, 0),
        names.output(file, 0, said.num_layers, said.has_one_output),
    );
    let layer_dims = file.find_stored(&layer.weight())?.map(|tensor| tensor.dims.to_vec());
    let output_dims = file.find_stored(&output.weight())?.map(|tensor| tensor.dims.to_vec());
    let size = |dims: Option<Vec<usize>>, axis: usize| dims.and_then(|dims| dims.get(axis).copied());
    let found = said.completed(names.num_heads(file), size(layer_dims.clone(), 0), size(output_dims, 1))?;
    found.ok_or_else(|| ModelFileError::TensorMissing {
        name: if layer_dims.is_none() { layer } else { output }.weight(),
    })
}

/// Loads the heads' tensors, using the pool's threads. An error names what is missing or of another size.
pub(crate) fn load_medusa(
    file: &ModelFile,
    config: &MedusaConfig,
    pool: &ThreadPool,
) -> Result<MedusaWeights, ModelFileError> {
    weights(file, config, pool).map_err(|error| error.in_file(file.path()))
}

fn weights(file: &ModelFile, config: &MedusaConfig, pool: &ThreadPool) -> Result<MedusaWeights, ModelFileError> {
    file.forget_asked();
    let loader = HeadLoader {
        file,
        config,
        pool,
        names: MedusaNames::of(file),
        matrices: Matrices::of(file)?,
    };
    let tokens = loader.drafted_tokens()?;
    let num_outputs = if config.has_one_output { 1 } else { config.num_heads };
    let places = (0..config.num_heads).flat_map(|head| (0..config.num_layers).map(move |layer| (head, layer)));
    for (head, layer) in places {
        loader.find(&loader.names.layer(head, layer), config.hidden_size)?;
    }
    let layers = |head| (0..config.num_layers).map(move |layer| (head, layer));
    let weights = MedusaWeights {
        layers: (0..config.num_heads)
            .map(|head| layers(head).map(|(head, layer)| loader.layer(head, layer)).collect())
            .collect::<Result<_, _>>()?,
        outputs: (0..num_outputs)
            .map(|head| loader.output(head, tokens.listed()))
            .collect::<Result<_, _>>()?,
        tokens,
    };
    unread::refuse_unread_of_head(file, "heads of Medusa")?;
    Ok(weights)
}

/// What a file calls its tensors: as the paper's trainer does, or as converters to vLLM do.
struct MedusaNames {
    begin: &'static str,
    is_of_paper: bool,
}

/// Which tokens the places of logits are of.
const TOKENS: &str = "token_map";

impl MedusaNames {
    fn of(file: &ModelFile) -> Self {
        let has = |begin: &str| file.tensor_names().any(|name| name.starts_with(begin));
        let begin = if has("medusa_heads.") { "medusa_heads." } else { "" };
        Self {
            begin,
            is_of_paper: has(&format!("{begin}0.")),
        }
    }

    /// For how many heads, from the first on, there are tensors.
    fn num_heads(&self, file: &ModelFile) -> usize {
        let part = if self.is_of_paper { "" } else { "blocks." };
        let begin = format!("{}{part}", self.begin);
        let heads = file.tensor_names().filter_map(|name| name.strip_prefix(&begin));
        let mut heads: Vec<usize> = heads.filter_map(|name| name.split('.').next()?.parse().ok()).collect();
        heads.sort_unstable();
        heads.dedup();
        heads
            .iter()
            .enumerate()
            .take_while(|(place, head)| place == *head)
            .count()
    }

    fn layer(&self, head: usize, layer: usize) -> Place {
        let begin = self.begin;
        Place::whole(match self.is_of_paper {
            true => format!("{begin}{head}.{layer}.linear"),
            false => format!("{begin}blocks.{head}.layers.{layer}"),
        })
    }

    /// The matrix of a head that gives logits; one of all heads may be called as the first one's.
    fn output(&self, file: &ModelFile, head: usize, num_layers: usize, is_one: bool) -> Place {
        let begin = self.begin;
        let one = format!("{begin}lm_head");
        let has_one = || {
            file.tensor_names()
                .any(|name| name.strip_prefix(&one).is_some_and(|end| end.starts_with('.')))
        };
        Place::whole(match self.is_of_paper {
            true => format!("{begin}{head}.{num_layers}"),
            false if is_one && has_one() => one,
            false => format!("{begin}lm_heads.{head}"),
        })
    }
}

struct HeadLoader<'a> {
    file: &'a ModelFile,
    config: &'a MedusaConfig,
    pool: &'a ThreadPool,
    names: MedusaNames,
    matrices: Matrices<'a>,
}

impl HeadLoader<'_> {
    /// Refuses a matrix that is missing, or has not so many rows.
    fn find(&self, place: &Place, rows: usize) -> Result<(), ModelFileError> {
        find_matrix(self.file, &self.matrices, place, rows, self.config.hidden_size).map(|_| ())
    }

    fn matrix(&self, place: &Place, rows: usize) -> Result<PackedMatrix, ModelFileError> {
        let cols = self.config.hidden_size;
        let read = find_matrix(self.file, &self.matrices, place, rows, cols)?.read(self.file, self.pool)?;
        pack(self.file, self.pool, &read.view(), rows, cols)
    }

    fn layer(&self, head: usize, layer: usize) -> Result<Linear, ModelFileError> {
        let (place, hidden) = (self.names.layer(head, layer), self.config.hidden_size);
        let bias = place.bias(self.file)?;
        Ok(Linear {
            bias: bias.map(|bias| vector(&bias, hidden)).transpose()?,
            weight: self.matrix(&place, hidden)?,
        })
    }

    /// What gives a head's logits: of a matrix for all tokens of the vocabulary, the rows of those that are drafted.
    fn output(&self, head: usize, tokens: Option<&[u32]>) -> Result<PackedMatrix, ModelFileError> {
        let MedusaConfig {
            num_layers,
            hidden_size,
            vocab_size,
            num_drafted,
            has_one_output,
            ..
        } = *self.config;
        let place = self.names.output(self.file, head, num_layers, has_one_output);
        let Some(tokens) = tokens else {
            return self.matrix(&place, num_drafted);
        };
        let whole = self.file.find_tensor(&place.weight())?;
        let Some(whole) = whole.filter(|whole| whole.rows() > num_drafted) else {
            return self.matrix(&place, num_drafted);
        };
        expect(whole.name, (whole.rows(), whole.cols()), (vocab_size, hidden_size))?;
        let row_bytes = whole.bytes.len() / vocab_size;
        let rows = tokens
            .iter()
            .map(|token| &whole.bytes[*token as usize * row_bytes..][..row_bytes]);
        let picked = TensorView {
            dims: &[hidden_size, num_drafted],
            bytes: &rows.collect::<Vec<_>>().concat(),
            ..whole
        };
        let packed = pack(self.file, self.pool, &picked, num_drafted, hidden_size)?;
        self.file.drop_pages(whole.bytes);
        Ok(packed)
    }

    /// Which token each place of the logits is of; an error where one is of none.
    fn drafted_tokens(&self) -> Result<DraftedTokens, ModelFileError> {
        let (count, vocab_size) = (self.config.num_drafted, self.config.vocab_size);
        let tensor = self.file.find_stored(TOKENS)?;
        if count == vocab_size {
            return Ok(DraftedTokens::ALL);
        }
        let tensor = tensor.ok_or_else(|| ModelFileError::TensorMissing {
            name: TOKENS.to_owned(),
        })?;
        DraftedTokens::read(&tensor, count, |_, id| {
            let token = u32::try_from(id).ok().filter(|token| (*token as usize) < vocab_size);
            token.ok_or_else(|| format!(", which is no token of {vocab_size}"))
        })
    }
}
