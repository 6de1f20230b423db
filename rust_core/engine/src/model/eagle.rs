//! The weights of a head of EAGLE-3: its layer, what brings places of another model's stream to it, and the tokens that it drafts.

use std::path::Path;
use std::sync::Arc;

use pyagent_kernels::pack::PackedMatrix;
use pyagent_kernels::thread_pool::ThreadPool;

use super::drafted::{DraftedTokens, opened};
use super::mtp::{Fusion, HeadEntry, MtpWeights};
use super::names::{Names, Place};
use super::{Linear, Loader, Weights, unread};
use crate::config::eagle::{NUM_TAPS, is_eagle};
use crate::config::{EagleConfig, FeatureNorm};
use crate::quantised::Matrices;
use crate::weights::{ModelFile, ModelFileError};

/// A head's weights.
pub struct EagleWeights {
    /// Its layer, and what comes before and after it. The embedding gives logits and nothing else.
    pub head: Weights,
    /// Its tokens' embeddings; none where it reads the other model's.
    pub embedding: Option<PackedMatrix>,
    pub(crate) tokens: DraftedTokens,
}

impl EagleWeights {
    /// Bytes held by matrices, and by the list of tokens.
    pub fn bytes(&self) -> usize {
        self.head.bytes() + self.embedding.as_ref().map_or(0, PackedMatrix::bytes) + self.tokens.bytes()
    }
}

/// Opens a head's folder; `None` for another model.
pub fn open_eagle(path: &Path) -> Result<Option<(ModelFile, EagleConfig)>, ModelFileError> {
    opened(path, is_eagle, completed)
}

/// Reads a configuration, and what tensors say.
fn completed(
    file: &ModelFile,
    config: &serde_json::Map<String, serde_json::Value>,
) -> Result<EagleConfig, ModelFileError> {
    let mut config = EagleConfig::from_hugging_face(config)?;
    config.head.rope_tables()?;
    let loader_names = Names::of_eagle(file);
    config.has_embedding = file.find_stored(&loader_names.embedding())?.is_some();
    Matrices::of(file)?;
    Ok(config)
}

/// Loads a head's tensors, using the pool's threads. An error names what is missing or of another size.
pub(crate) fn load_eagle(
    file: &ModelFile,
    config: &EagleConfig,
    pool: &ThreadPool,
) -> Result<EagleWeights, ModelFileError> {
    weights(file, config, pool).map_err(|error| error.in_file(file.path()))
}

fn weights(file: &ModelFile, config: &EagleConfig, pool: &ThreadPool) -> Result<EagleWeights, ModelFileError> {
    file.forget_asked();
    let head = &config.head;
    let loader = Loader {
        file,
        config: head,
        pool,
        names: Names::of_eagle(file),
        matrices: Matrices::of(file)?,
        score_bias: None,
    };
    loader.check_eagle(config)?;
    let tokens = loader.drafted_tokens(config)?;
    let mut layer = loader.layer(0)?;
    let token_norm = layer.attention_norm.take();
    let output_norm = || loader.stream_norm(&loader.names.final_norm(head.architecture));
    let weights = EagleWeights {
        embedding: config
            .has_embedding
            .then(|| loader.matrix(&loader.names.embedding(), config.vocab_size, head.hidden_size))
            .transpose()?,
        tokens,
        head: Weights {
            embedding: Arc::new(loader.matrix(&loader.output_name(config), head.vocab_size, head.hidden_size)?),
            layers: vec![layer],
            positions: None,
            embedding_norm: None,
            final_norm: output_norm()?,
            output: None,
            output_bias: None,
            per_layer: None,
            mtp: Some(MtpWeights {
                token_norm: token_norm.expect("a layer of Llama's form has a norm before attention"),
                stream_norm: loader.stream_norm(&loader.names.whole(0, "attn_norm_2.weight", STREAM_NORM).name)?,
                entry: HeadEntry::Fused(loader.fusion(config)?),
                output_norm: output_norm()?,
            }),
        },
    };
    unread::refuse_unread_of_head(file, "heads of EAGLE-3")?;
    Ok(weights)
}

/// What the layer's norm of what it goes on from is called.
const STREAM_NORM: &str = "hidden_norm.weight";
/// Which token each place of the logits is of, as its distance from the place; and the same the other way round, unread.
const TOKENS: &str = "d2t";
const PLACES: &str = "t2d";

impl Loader<'_> {
    /// Refuses what is missing, or of another size, before any memory is taken for weights.
    fn check_eagle(&self, config: &EagleConfig) -> Result<(), ModelFileError> {
        let head = self.config;
        self.check_attention()?;
        self.check_dense()?;
        for name in [
            self.names.whole(0, "attn_norm_2.weight", STREAM_NORM).name,
            self.names.final_norm(head.architecture),
        ] {
            self.norm(&name, head.hidden_size)?;
        }
        self.check(&self.fusion_place(), head.hidden_size, NUM_TAPS * config.target_size)?;
        let output = self.output_name(config);
        let output = Place::whole(output.trim_end_matches(".weight").to_owned());
        self.check(&output, head.vocab_size, head.hidden_size)?;
        if config.has_embedding {
            let embedding = self.names.embedding();
            let embedding = Place::whole(embedding.trim_end_matches(".weight").to_owned());
            self.check(&embedding, config.vocab_size, head.hidden_size)?;
        }
        Ok(())
    }

    /// The matrix that gives logits: its own, or its embedding where its words are tied.
    fn output_name(&self, config: &EagleConfig) -> String {
        match self.config.is_output_tied {
            Some(true) if config.has_embedding => self.names.embedding(),
            _ => self.names.output(),
        }
    }

    fn fusion_place(&self) -> Place {
        Place::whole(self.names.of_decoder("fc", "fc"))
    }

    fn fusion(&self, config: &EagleConfig) -> Result<Fusion, ModelFileError> {
        let matrix: Linear = self.linear(
            &self.fusion_place(),
            self.config.hidden_size,
            NUM_TAPS * config.target_size,
        )?;
        let norms = match config.feature_norm {
            FeatureNorm::None => Vec::new(),
            FeatureNorm::Each => (0..NUM_TAPS)
                .map(|tap| {
                    let name = self.names.of_decoder("", &format!("fc_norm.{tap}.weight"));
                    self.norm(&name, config.target_size)
                })
                .collect::<Result<_, _>>()?,
            FeatureNorm::All => {
                let name = self.names.of_decoder("enc.output_norm.weight", "input_norm.weight");
                vec![self.norm(&name, NUM_TAPS * config.target_size)?]
            }
        };
        Ok(Fusion {
            norms,
            matrix,
            is_residual_normalised: config.is_residual_normalised,
            hands_on_normalised: config.hands_on_normalised,
        })
    }

    /// Which token each place of the logits is of; an error where one is of none.
    fn drafted_tokens(&self, config: &EagleConfig) -> Result<DraftedTokens, ModelFileError> {
        let (count, vocab_size) = (self.config.vocab_size, config.vocab_size);
        self.file.find_stored(PLACES)?;
        let Some(tensor) = self.file.find_stored(TOKENS)? else {
            return match count == vocab_size {
                true => Ok(DraftedTokens::ALL),
                false => Err(ModelFileError::TensorMissing {
                    name: TOKENS.to_owned(),
                }),
            };
        };
        DraftedTokens::read(&tensor, count, |place, distance| {
            let token = distance
                .checked_add(place as i64)
                .and_then(|token| usize::try_from(token).ok());
            let token = token.filter(|token| *token < vocab_size).map(|token| token as u32);
            token.ok_or_else(|| format!(" at place {place}, which leads out of the vocabulary of {vocab_size}"))
        })
    }
}
