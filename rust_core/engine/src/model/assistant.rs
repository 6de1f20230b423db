//! An assistant's weights: a decoder without keys and values, what brings another model's stream to it and back, and where its
//! vocabulary lies in clusters, the means of these.

use std::path::Path;
use std::sync::Arc;

use pyagent_kernels::pack::PackedMatrix;
use pyagent_kernels::thread_pool::ThreadPool;

use super::names::{Names, Place};
use super::{Linear, Loader, Weights, is_output_tied, lost, pack, unread, with_tensors};
use crate::config::assistant::{GGUF_NAME, is_assistant};
use crate::config::{AssistantConfig, ModelConfig, invalid};
use crate::quantised::Matrices;
use crate::weights::{ModelFile, ModelFileError, StoredTensor, TensorView, clipped};

/// An assistant's weights.
pub struct AssistantWeights {
    /// Its layers. The embedding gives logits and nothing else; with clusters its rows are in their order.
    pub decoder: Weights,
    /// Makes its stream of a token's embedding and the output for the token before, [hidden, 2 x backbone].
    pub entry: Linear,
    /// Makes of its output what goes on in the place of the other model's, [backbone, hidden].
    pub exit: Linear,
    /// The clusters of its vocabulary.
    pub clusters: Option<ClusterWeights>,
}

/// Clusters of a vocabulary.
pub struct ClusterWeights {
    /// Rates them, [clusters, hidden].
    pub centroids: Linear,
    /// The tokens, those of one cluster after the other's.
    pub tokens: Vec<u32>,
    /// Tokens of each.
    pub size: usize,
    /// How many a draft looks at.
    pub num_chosen: usize,
}

impl AssistantWeights {
    /// Bytes held by matrices, and by the order of tokens.
    pub fn bytes(&self) -> usize {
        let of_clusters = |clusters: &ClusterWeights| clusters.centroids.weight.bytes() + 4 * clusters.tokens.len();
        let ends = self.entry.weight.bytes() + self.exit.weight.bytes();
        self.decoder.bytes() + ends + self.clusters.as_ref().map_or(0, of_clusters)
    }

    /// The matrices that its output is multiplied by.
    pub(crate) fn outputs(&self) -> impl Iterator<Item = &PackedMatrix> {
        let centroids = self.clusters.iter().map(|clusters| &clusters.centroids.weight);
        [self.decoder.output_matrix(), &self.exit.weight]
            .into_iter()
            .chain(centroids)
    }
}

/// Opens an assistant's folder, or its GGUF file; `None` for another model.
pub fn open_assistant(path: &Path) -> Result<Option<(ModelFile, AssistantConfig)>, ModelFileError> {
    let file = ModelFile::open(path)?;
    let config = match &file {
        ModelFile::Safetensors(folder) if is_assistant(folder.config()) => {
            AssistantConfig::from_hugging_face(folder.config())
        }
        ModelFile::Gguf(gguf) if gguf.metadata_str("general.architecture").ok() == Some(GGUF_NAME) => {
            AssistantConfig::from_gguf(gguf)
        }
        _ => return Ok(None),
    };
    let config = config
        .and_then(|config| completed(&file, config))
        .map_err(|error| error.in_file(path))?;
    Ok(Some((file, config)))
}

/// Completes a configuration by what tensors say.
fn completed(file: &ModelFile, mut config: AssistantConfig) -> Result<AssistantConfig, ModelFileError> {
    config.decoder = with_tensors(file, config.decoder, None)?;
    Matrices::of(file)?;
    if let Some(clusters) = config.clusters {
        clusters.size_in(config.decoder.vocab_size)?;
    }
    Ok(config)
}

/// Loads an assistant's tensors, using the pool's threads. An error names what is missing or of another size.
pub fn load_assistant(
    file: &ModelFile,
    config: &AssistantConfig,
    pool: &ThreadPool,
) -> Result<AssistantWeights, ModelFileError> {
    weights(file, config, pool).map_err(|error| error.in_file(file.path()))
}

fn weights(file: &ModelFile, config: &AssistantConfig, pool: &ThreadPool) -> Result<AssistantWeights, ModelFileError> {
    file.forget_asked();
    let decoder = &config.decoder;
    let loader = Loader {
        file,
        config: decoder,
        pool,
        names: Names::of(file),
        matrices: Matrices::of(file)?,
        score_bias: None,
    };
    loader.check_gemma4()?;
    loader.check_assistant(config)?;
    lost::refuse_lost(file, &loader.names)?;
    let clusters = loader.clusters(config)?;
    let vocabulary = loader.vocabulary()?;
    let embedding = match &clusters {
        None => loader.packed(&vocabulary, decoder.vocab_size, decoder.hidden_size)?,
        Some(clusters) => loader.packed_in_order(&vocabulary, &clusters.tokens)?,
    };
    let layers = (0..decoder.num_layers).map(|layer| loader.layer(layer));
    let decoder_weights = Weights {
        embedding: Arc::new(embedding),
        layers: layers.collect::<Result<_, _>>()?,
        positions: None,
        embedding_norm: None,
        final_norm: loader.stream_norm(&loader.names.final_norm(decoder.architecture))?,
        output: None,
        output_bias: None,
        per_layer: None,
        mtp: None,
    };
    let [entry, exit] = ends(file, config).map(|(place, rows, cols)| loader.linear(&place, rows, cols));
    // Where it is not tied, nothing reads it; and GGUF files leave the clusters aside.
    for name in [
        &loader.names.embedding(),
        "masked_embd_centroids.weight",
        "masked_embd_ordering",
    ] {
        file.find_stored(name)?;
    }
    let weights = AssistantWeights {
        decoder: decoder_weights,
        entry: entry?,
        exit: exit?,
        clusters,
    };
    unread::refuse_unread(file, &loader.names, decoder)?;
    Ok(weights)
}

/// The matrices at both ends, with their rows and columns.
fn ends(file: &ModelFile, config: &AssistantConfig) -> [(Place, usize, usize); 2] {
    let (hidden, backbone) = (config.decoder.hidden_size, config.backbone_size);
    let begin = if matches!(file, ModelFile::Gguf(_)) {
        "nextn."
    } else {
        ""
    };
    [
        ("pre_projection", hidden, 2 * backbone),
        ("post_projection", backbone, hidden),
    ]
    .map(|(name, rows, cols)| (Place::whole(format!("{begin}{name}")), rows, cols))
}

const CENTROIDS: &str = "masked_embedding.centroids";
const ORDERING: &str = "masked_embedding.token_ordering";

impl Loader<'_> {
    /// Refuses what is missing, or of another size, before any memory is taken for weights.
    fn check_assistant(&self, config: &AssistantConfig) -> Result<(), ModelFileError> {
        let decoder: &ModelConfig = &config.decoder;
        self.norm(&self.names.final_norm(decoder.architecture), decoder.hidden_size)?;
        self.check(&self.vocabulary()?, decoder.vocab_size, decoder.hidden_size)?;
        ends(self.file, config)
            .iter()
            .try_for_each(|(place, rows, cols)| self.check(place, *rows, *cols))
    }

    /// Where the matrix is that gives logits.
    fn vocabulary(&self) -> Result<Place, ModelFileError> {
        let name = match is_output_tied(self.file, self.config)? {
            true => self.names.embedding(),
            false => self.names.output(),
        };
        Ok(Place::whole(name.trim_end_matches(".weight").to_owned()))
    }

    fn clusters(&self, config: &AssistantConfig) -> Result<Option<ClusterWeights>, ModelFileError> {
        let Some(clusters) = config.clusters else {
            return Ok(None);
        };
        let vocab_size = config.decoder.vocab_size;
        let place = Place::whole(CENTROIDS.to_owned());
        let tensor = self.file.find_stored(ORDERING)?;
        let tensor = tensor.ok_or_else(|| ModelFileError::TensorMissing {
            name: ORDERING.to_owned(),
        })?;
        Ok(Some(ClusterWeights {
            centroids: self.linear(&place, clusters.count, config.decoder.hidden_size)?,
            tokens: token_ids(&tensor, vocab_size)?,
            size: clusters.size_in(vocab_size)?,
            num_chosen: clusters.num_chosen,
        }))
    }

    /// A matrix with a row for each of these tokens, in their order.
    fn packed_in_order(&self, place: &Place, tokens: &[u32]) -> Result<PackedMatrix, ModelFileError> {
        let (rows, cols) = (self.config.vocab_size, self.config.hidden_size);
        let read = self.find(place, rows, cols)?.read(self.file, self.pool)?;
        let view = read.view();
        let row_bytes = view.bytes.len() / rows;
        let mut bytes = Vec::with_capacity(view.bytes.len());
        for token in tokens {
            bytes.extend_from_slice(&view.bytes[*token as usize * row_bytes..][..row_bytes]);
        }
        let ordered = TensorView { bytes: &bytes, ..view };
        let packed = pack(self.file, self.pool, &ordered, rows, cols)?;
        self.file.drop_pages(view.bytes);
        Ok(packed)
    }
}

/// The numbers of a list of whole ones.
pub(super) fn whole_numbers(tensor: &StoredTensor<'_>) -> Result<Vec<i64>, ModelFileError> {
    let wide = tensor
        .bytes
        .as_chunks()
        .0
        .iter()
        .map(|bytes| i64::from_le_bytes(*bytes));
    let narrow = tensor.bytes.as_chunks().0.iter();
    let narrow = narrow.map(|bytes| i64::from(i32::from_le_bytes(*bytes)));
    match tensor.kind {
        "I64" => Ok(wide.collect()),
        "I32" => Ok(narrow.collect()),
        kind => Err(invalid(format!(
            "tensor '{}' is {kind}; expected I64 or I32",
            clipped(tensor.name)
        ))),
    }
}

/// The tokens of a list that has each once.
fn token_ids(tensor: &StoredTensor<'_>, count: usize) -> Result<Vec<u32>, ModelFileError> {
    let ids = whole_numbers(tensor)?;
    let mut is_there = vec![false; count];
    let tokens: Option<Vec<u32>> = ids
        .iter()
        .map(|id| {
            let place = usize::try_from(*id).ok()?;
            let is_new = !std::mem::replace(is_there.get_mut(place)?, true);
            is_new.then_some(place as u32)
        })
        .collect();
    tokens.filter(|tokens| tokens.len() == count).ok_or_else(|| {
        let got = ids.len();
        invalid(format!(
            "tensor '{ORDERING}' has {got} numbers; expected each of the {count} tokens once"
        ))
    })
}
