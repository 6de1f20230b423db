//! A decoder's weights, arranged for the kernels.
//!
//! The file is mapped; each matrix is rearranged once into rows interleaved by sixteen, what the kernels and AMX tiles
//! read, and the pages of the mapping are given back at once, so that a model is resident once.

mod adapted;
mod assistant;
mod attention;
mod channels;
mod curve;
mod drafted;
mod eagle;
mod encoder_decoder;
mod expert_tensors;
mod gemma4;
mod kimi;
mod latent;
mod layers;
mod lost;
mod medusa;
mod mtp;
mod names;
mod norm;
mod packed_experts;
mod positions;
mod recurrent;
mod unread;

use std::path::Path;
use std::sync::Arc;

use pyagent_kernels::attention::ScoreBias;
use pyagent_kernels::elementwise::RopeScaling;
use pyagent_kernels::ggml::GgmlType;
use pyagent_kernels::pack::{PackError, PackedMatrix};
use pyagent_kernels::thread_pool::ThreadPool;

use self::names::{Names, Part, Place};
use crate::config::gguf::longrope;
use crate::config::{Architecture, ModelConfig, invalid};
use crate::family::FamilyDescription;
use crate::gguf::GgufFile;
use crate::quantised::{Matrices, Matrix, quantization};
use crate::weights::{ModelFile, ModelFileError, TensorView};

pub(crate) use self::adapted::{RowOrder, adapted_place, row_order};
pub use self::assistant::{AssistantWeights, ClusterWeights, load_assistant, open_assistant};
pub use self::channels::ChannelWeights;
pub use self::curve::Curve;
pub(crate) use self::eagle::load_eagle;
pub use self::eagle::{EagleWeights, open_eagle};
pub(crate) use self::encoder_decoder::{PromptWeights, load_encoder_decoder};
pub use self::gemma4::{PerLayer, PerLayerInputs, SeparateExperts};
pub use self::kimi::KimiWeights;
pub use self::latent::{IndexerWeights, LatentWeights};
pub use self::layers::{Attention, FeedForward, Gated, Layer, Linear, Mixer, Shared, Weights};
pub(crate) use self::medusa::load_medusa;
pub use self::medusa::{MedusaWeights, open_medusa};
pub use self::mtp::{Fusion, HeadEntry, MtpWeights};
pub use self::norm::Norm;
pub use self::recurrent::{RecurrentWeights, ScanWeights};

/// Row groups one thread packs at a time.
const PACK_GROUPS: usize = 4;

/// Opens a model file and reads what it says about itself. Its weights are numbers that the kernels know.
pub fn open(path: &Path) -> Result<(ModelFile, ModelConfig), ModelFileError> {
    open_for(path, None, None)
}

/// As `open`, for texts of so many positions at most: `LongRoPE` has other frequencies for short ones. A folder may be
/// described as one of a family.
pub fn open_for(
    path: &Path,
    most_positions: Option<usize>,
    family: Option<&FamilyDescription>,
) -> Result<(ModelFile, ModelConfig), ModelFileError> {
    let (file, config) = open_stored(path, most_positions, family)?;
    let method = quantization(&file).and_then(|about| about.get("quant_method"));
    if method.is_some_and(|method| method == "mxfp4") && config.architecture != Architecture::GptOss {
        let text = "config.json: 'quantization_config' is mxfp4, which is implemented for gpt-oss; take the model as a GGUF file";
        return Err(invalid(text.to_owned()).in_file(path));
    }
    Matrices::of(&file).map_err(|error| error.in_file(path))?;
    Ok((file, config))
}

/// As `open_for`, with weights that may be quantised in ways that only who loads them knows.
pub fn open_stored(
    path: &Path,
    most_positions: Option<usize>,
    family: Option<&FamilyDescription>,
) -> Result<(ModelFile, ModelConfig), ModelFileError> {
    let file = ModelFile::open(path)?;
    let file = match family {
        None => file,
        Some(family) => file.described(family).map_err(|error| error.in_file(path))?,
    };
    let config = configuration(&file, most_positions).map_err(|error| error.in_file(path))?;
    Ok((file, config))
}

fn configuration(file: &ModelFile, most_positions: Option<usize>) -> Result<ModelConfig, ModelFileError> {
    let config = match file {
        ModelFile::Gguf(gguf) => ModelConfig::from_gguf(gguf)?,
        ModelFile::Safetensors(folder) => ModelConfig::from_hugging_face(folder.config(), most_positions)?,
    };
    if config.encoder_decoder.is_some() {
        file.scores().map_or(Ok(()), |scores| scores.check(&config))?;
        return encoder_decoder::with_tensors(file, config);
    }
    with_tensors(file, config, most_positions)
}

/// What a GGUF file says of a decoder that embeds or ranks.
pub(crate) fn pooled_configuration(file: &ModelFile, gguf: &GgufFile) -> Result<ModelConfig, ModelFileError> {
    with_tensors(file, ModelConfig::of_pooled_gguf(gguf)?, None)
}

/// Completes a configuration by what tensors say.
fn with_tensors(
    file: &ModelFile,
    mut config: ModelConfig,
    most_positions: Option<usize>,
) -> Result<ModelConfig, ModelFileError> {
    let names = Names::of(file);
    unread::refuse_uncounted(file, &names, &config)?;
    let embedding = file.tensor(&names.embedding())?;
    let (rows, cols) = (embedding.rows(), embedding.cols());
    if cols != config.hidden_size {
        return Err(invalid(format!(
            "the embedding is {rows} x {cols}, but the hidden size is {}",
            config.hidden_size
        )));
    }
    config.vocab_size = rows;
    if let Some(scaling) = scaling_by_tensors(file, &config, most_positions)? {
        config.rope_scaling = scaling;
        if !matches!(config.architecture, Architecture::Gemma3 | Architecture::Gemma4) {
            config.local_rope_scaling = config.rope_scaling.clone();
        }
    }
    config.rope_tables()?;
    file.scores().map_or(Ok(()), |scores| scores.check(&config))?;
    Ok(mtp::with_mtp(file, config))
}

/// Factors of rotary frequencies that are a tensor of the file: Llama 3's, or LongRoPE's for long texts or short ones.
fn scaling_by_tensors(
    file: &ModelFile,
    config: &ModelConfig,
    most_positions: Option<usize>,
) -> Result<Option<RopeScaling>, ModelFileError> {
    let ModelFile::Gguf(gguf) = file else { return Ok(None) };
    let (original, attention_factor) = longrope(gguf)?;
    let longest = most_positions.map_or(config.context_length, |most| most.min(config.context_length));
    let is_long = longest > original;
    let of_length = if is_long {
        "rope_factors_long.weight"
    } else {
        "rope_factors_short.weight"
    };
    let (tensor, attention_factor) = match file.find_tensor(of_length)? {
        Some(tensor) => (Some(tensor), attention_factor),
        None => (file.find_tensor("rope_freqs.weight")?, 1.0),
    };
    let divisors = tensor
        .map(|tensor| vector(&tensor, config.global_rotary_dims() / 2))
        .transpose()?;
    Ok(divisors.map(|divisors| RopeScaling::Factors {
        divisors,
        attention_factor,
    }))
}

/// Whether the embedding is the output matrix too.
pub fn is_output_tied(file: &ModelFile, config: &ModelConfig) -> Result<bool, ModelFileError> {
    match config.is_output_tied {
        Some(is_tied) => Ok(is_tied),
        None if matches!(file, ModelFile::Gguf(_)) && config.architecture.has_own_output() => Ok(false),
        None => {
            let name = Names::of(file).output();
            let ends = ["weight", "qweight", "weight_packed"];
            let begin = name.trim_end_matches("weight");
            for end in ends {
                if file.find_stored(&format!("{begin}{end}"))?.is_some() {
                    return Ok(false);
                }
            }
            Ok(true)
        }
    }
}

/// Whether Qwen3's experts lie in tensors of all of a layer's, as its models of pictures have them in folders.
pub fn has_joined_experts(file: &ModelFile, config: &ModelConfig) -> bool {
    let names = Names::of(file);
    let block = names.whole(0, "(none)", names.packed_experts(config)).name;
    let joined = file.find_tensor(&format!("{block}.down_proj"));
    config.architecture == Architecture::Qwen3Moe && matches!(joined, Ok(Some(_)))
}

/// The tensor of a decoder that GGUF files call `name`, if the file has it.
pub fn find<'a>(
    file: &'a ModelFile,
    config: &ModelConfig,
    name: &str,
) -> Result<Option<TensorView<'a>>, ModelFileError> {
    let names = Names::of_model(file, config);
    let whole = |name| (Place::whole(name), "");
    let place = match name {
        "token_embd.weight" => Some(whole(names.embedding())),
        "output_norm.weight" => Some(whole(names.final_norm(config.architecture))),
        "output.weight" => Some(whole(names.output())),
        _ => names.named(name, config),
    };
    match place {
        Some((place, ".bias")) if place.bias_row.is_some() => place.bias(file),
        Some((place, end)) => place.find(file, end),
        None => Ok(None),
    }
}

/// What the file calls the matrix that GGUF files call `name` (both without `.weight`), and its first row there, where
/// several lie in one.
pub fn place(file: &ModelFile, config: &ModelConfig, name: &str) -> Option<(String, usize)> {
    let names = Names::of_model(file, config);
    let whole = |weight: String| Some((weight.trim_end_matches(".weight").to_owned(), 0));
    match name {
        "token_embd" => whole(names.embedding()),
        "output" => whole(names.output()),
        _ => {
            let (place, end) = names.named(name, config)?;
            let first_row = place.rows.map_or(0, |rows| rows.start);
            end.is_empty().then_some((place.name, first_row))
        }
    }
}

/// Loads every tensor, using the pool's threads. Raises when a tensor is missing, has another shape than the
/// configuration says, or is of a type that cannot be packed.
pub fn load(file: &ModelFile, config: &ModelConfig, pool: &ThreadPool) -> Result<Weights, ModelFileError> {
    weights(file, config, pool).map_err(|error| error.in_file(file.path()))
}

/// The first fault of a file's tensors, if there is one: what is missing of what its configuration says, or of another size.
/// None of weights that only who loads them reads.
pub fn tensor_fault(file: &ModelFile, config: &ModelConfig) -> Option<ModelFileError> {
    let pool = ThreadPool::new(1);
    if let Some(own) = &config.encoder_decoder {
        return encoder_decoder::check(file, config, own, &pool).err();
    }
    let loader = Loader::new(file, config, &pool).ok()?;
    let whole = |name: String| file.tensor(&name).map(|_| ());
    let check_output = || match is_output_tied(file, config) {
        Ok(false) => check_matrix(
            file,
            &loader.matrices,
            &Place::whole(loader.names.output().trim_end_matches(".weight").to_owned()),
            config.vocab_size,
            config.hidden_size,
        ),
        tied => tied.map(|_| ()),
    };
    let checked = loader
        .check_all()
        .and_then(|()| match config.architecture.has_bare_norms() {
            true => Ok(()),
            false => whole(loader.names.final_norm(config.architecture)),
        })
        .and_then(|()| check_output());
    checked.err()
}

/// Rows of a decoder's embedding.
pub(crate) fn embedding_rows(file: &ModelFile) -> Result<usize, ModelFileError> {
    Ok(file.tensor(&Names::of(file).embedding())?.rows())
}

/// Refuses a file whose embedding is not as wide as the configuration says, or that lacks a layer's matrix or has one of
/// another size, before memory is taken for weights.
pub(crate) fn check(file: &ModelFile, config: &ModelConfig) -> Result<(), ModelFileError> {
    let (names, matrices) = (Names::of(file), Matrices::of(file)?);
    let hidden = config.hidden_size;
    expect_size(&file.tensor(&names.embedding())?, config.vocab_size, hidden)?;
    for layer in 0..config.num_layers {
        for (part, rows, cols) in [
            (Part::Query, config.query_size(), hidden),
            (Part::Key, config.kv_size(), hidden),
            (Part::Value, config.kv_size(), hidden),
            (Part::AttentionOutput, hidden, config.query_size()),
            (Part::Gate, config.ffn_size, hidden),
            (Part::Up, config.ffn_size, hidden),
            (Part::Down, hidden, config.ffn_size),
        ] {
            check_matrix(file, &matrices, &names.layer(layer, part, config), rows, cols)?;
        }
    }
    Ok(())
}

/// Refuses a matrix that is missing or of another size.
fn check_matrix<'a>(
    file: &'a ModelFile,
    matrices: &Matrices<'a>,
    place: &Place,
    rows: usize,
    cols: usize,
) -> Result<(), ModelFileError> {
    find_matrix(file, matrices, place, rows, cols).map(|_| ())
}

/// A matrix of this size; an error where it is missing or of another.
fn find_matrix<'a>(
    file: &'a ModelFile,
    matrices: &Matrices<'a>,
    place: &Place,
    rows: usize,
    cols: usize,
) -> Result<Matrix<'a>, ModelFileError> {
    let matrix = match place.matrix(file, matrices, cols)? {
        Some(matrix) => matrix,
        None => Matrix::Plain(file.tensor(&place.weight())?),
    };
    expect(matrix.name(), matrix.size(), (rows, cols))?;
    Ok(matrix)
}

fn weights(file: &ModelFile, config: &ModelConfig, pool: &ThreadPool) -> Result<Weights, ModelFileError> {
    file.forget_asked();
    let loader = Loader::new(file, config, pool)?;
    loader.check_all()?;
    let layers = config
        .all_layers()
        .map(|layer| loader.layer(layer))
        .collect::<Result<_, _>>()?;
    let output_name = loader.names.output();
    let has_output = !is_output_tied(file, config)?;
    let weights = Weights {
        embedding: Arc::new(loader.matrix(&loader.names.embedding(), config.vocab_size, config.hidden_size)?),
        layers,
        positions: loader.positions()?,
        embedding_norm: loader.embedding_norm()?,
        final_norm: loader.stream_norm(&loader.names.final_norm(config.architecture))?,
        output: has_output
            .then(|| loader.matrix(&output_name, config.vocab_size, config.hidden_size))
            .transpose()?,
        output_bias: loader.output_bias()?,
        per_layer: loader.per_layer_inputs()?,
        mtp: loader.mtp()?,
    };
    unread::refuse_unread(file, &loader.names, config)?;
    Ok(weights)
}

struct Loader<'a> {
    file: &'a ModelFile,
    config: &'a ModelConfig,
    pool: &'a ThreadPool,
    names: Names,
    matrices: Matrices<'a>,
    /// What all layers add to scores, where the family has that, and no description says otherwise.
    score_bias: Option<Arc<ScoreBias>>,
}

/// What is added to all layers' scores by distance, where the configuration says it.
fn score_bias(config: &ModelConfig) -> Result<Option<Arc<ScoreBias>>, ModelFileError> {
    let bias = config.alibi_slopes().map(ScoreBias::from_slopes).transpose();
    let bias = bias.map_err(|error| invalid(error.to_string()))?;
    Ok(bias.map(Arc::new))
}

impl<'a> Loader<'a> {
    fn new(file: &'a ModelFile, config: &'a ModelConfig, pool: &'a ThreadPool) -> Result<Self, ModelFileError> {
        Ok(Self {
            file,
            config,
            pool,
            names: Names::of_model(file, config),
            matrices: Matrices::of(file)?,
            score_bias: score_bias(config)?,
        })
    }

    /// Refuses tensors that are missing or of other sizes, before memory is taken for weights.
    fn check_all(&self) -> Result<(), ModelFileError> {
        self.check_experts()?;
        self.check_recurrent()?;
        self.check_latent()?;
        self.check_gemma4()?;
        self.check_attention()?;
        self.check_dense()?;
        self.check_mtp()?;
        self.check_positions()?;
        lost::refuse_lost(self.file, &self.names)
    }

    fn layer(&self, layer: usize) -> Result<Layer, ModelFileError> {
        let config = self.config;
        let hidden = config.hidden_size;
        let name = |part: Part| self.names.layer(layer, part, config);
        let (mixer, output) = self.mixer(layer)?;
        let has_input_norms = config.architecture.has_input_norms();
        let input_norm = |part, is_there: bool| {
            let norm = (has_input_norms && is_there).then(|| self.stream_norm(&name(part).name));
            norm.transpose()
        };
        let output_norm = |part| match config.architecture.needs_output_norms() {
            true => self.norm(&name(part).name, hidden).map(Some),
            false => self.optional_norm(&name(part).name, hidden),
        };
        Ok(Layer {
            attention_norm: input_norm(Part::AttentionNorm, config.has_mixer(layer))?,
            mixer,
            attention_output: output,
            sinks: self.sinks(layer)?,
            score_bias: match self.file.scores() {
                Some(scores) => scores.of_layer(layer),
                None => self.score_bias.clone().filter(|_| config.has_attention(layer)),
            },
            post_attention_norm: output_norm(Part::PostAttentionNorm)?,
            ffn_norm: input_norm(Part::FfnNorm, config.has_ffn(layer))?,
            ffn: self.feed_forward(layer)?,
            post_ffn_norm: match config.architecture {
                _ if config.leaves_ffn_output(layer) => None,
                Architecture::AxK1 => Some(self.norm(&name(Part::PostFfnNorm).name, hidden)?),
                _ => output_norm(Part::PostFfnNorm)?,
            },
            separate_experts: self.separate_experts(layer)?,
            per_layer: self.per_layer(layer)?,
            scale: self.layer_scale(layer)?,
        })
    }

    /// What brings a layer's tokens together, and its output matrix.
    fn mixer(&self, layer: usize) -> Result<(Mixer, Option<Linear>), ModelFileError> {
        let (config, hidden) = (self.config, self.config.hidden_size);
        if !config.has_mixer(layer) {
            return Ok((Mixer::Absent, None));
        }
        let name = |part: Part| self.names.layer(layer, part, config);
        if let Some(recurrent) = config.recurrent(layer) {
            let columns = recurrent.output_size(hidden);
            let output = self.linear(&name(Part::MixerOutput), hidden, columns)?;
            return Ok((
                Mixer::Recurrent(Box::new(self.recurrent(layer, recurrent)?)),
                Some(output),
            ));
        }
        if let Some(latent) = &config.latent {
            let (weights, output) = self.latent(layer, latent)?;
            return Ok((Mixer::Latent(Box::new(weights)), Some(output)));
        }
        let (attention, output) = self.attention(layer)?;
        Ok((Mixer::Attention(Box::new(attention)), Some(output)))
    }

    /// Refuses a matrix that is missing or of another size.
    fn check(&self, place: &Place, rows: usize, cols: usize) -> Result<(), ModelFileError> {
        self.find(place, rows, cols).map(|_| ())
    }

    /// Refuses a matrix with more rows than the parts that lie in it, of which this is the last.
    fn check_joined(&self, last: &Place) -> Result<(), ModelFileError> {
        match &last.rows {
            Some(rows) => {
                let whole = Place {
                    is_transposed: last.is_transposed,
                    ..Place::whole(last.name.clone())
                };
                self.check(&whole, rows.end, self.config.hidden_size)
            }
            None => Ok(()),
        }
    }

    /// A matrix of this size; an error where it is missing or of another.
    fn find(&self, place: &Place, rows: usize, cols: usize) -> Result<Matrix<'a>, ModelFileError> {
        find_matrix(self.file, &self.matrices, place, rows, cols)
    }

    fn linear(&self, place: &Place, rows: usize, cols: usize) -> Result<Linear, ModelFileError> {
        let bias = self.bias(place, rows)?;
        Ok(Linear {
            weight: self.packed(place, rows, cols)?,
            bias,
        })
    }

    /// A matrix's bias, if the file has one; that of a matrix in another is a part of the other's.
    fn bias(&self, place: &Place, rows: usize) -> Result<Option<Vec<f32>>, ModelFileError> {
        let (Some(range), None, false) = (&place.rows, place.bias_row, place.is_bare) else {
            return place.bias(self.file)?.map(|tensor| vector(&tensor, rows)).transpose();
        };
        let name = format!("{}.bias", place.name);
        let Some(whole) = self.file.find_tensor(&name)? else {
            return Ok(None);
        };
        let weight = self.file.find_stored(&place.weight())?;
        let expected = weight.map(|weight| match (place.is_transposed, weight.dims.as_slice()) {
            (true, [rows, _]) => *rows,
            (_, dims) => dims.iter().skip(1).product(),
        });
        let values = vector(&whole, expected.unwrap_or(whole.rows() * whole.cols()))?;
        let part = values.get(range.clone()).map(<[f32]>::to_vec);
        let (found, end) = (values.len(), range.end);
        part.map(Some)
            .ok_or_else(|| invalid(format!("tensor '{name}' has {found} values; expected at least {end}")))
    }

    /// What is added to logits, if the file has it.
    fn output_bias(&self) -> Result<Option<Vec<f32>>, ModelFileError> {
        if !self.config.architecture.has_output_bias() {
            return Ok(None);
        }
        let place = Place::whole(self.names.output().trim_end_matches(".weight").to_owned());
        self.bias(&place, self.config.vocab_size)
    }

    fn matrix(&self, name: &str, rows: usize, cols: usize) -> Result<PackedMatrix, ModelFileError> {
        let place = Place::whole(name.trim_end_matches(".weight").to_owned());
        self.packed(&place, rows, cols)
    }

    fn packed(&self, place: &Place, rows: usize, cols: usize) -> Result<PackedMatrix, ModelFileError> {
        let read = self.find(place, rows, cols)?.read(self.file, self.pool)?;
        self.pack(&read.view(), rows, cols)
    }

    fn pack(&self, tensor: &TensorView<'_>, rows: usize, cols: usize) -> Result<PackedMatrix, ModelFileError> {
        pack(self.file, self.pool, tensor, rows, cols)
    }

    fn norm(&self, name: &str, size: usize) -> Result<Vec<f32>, ModelFileError> {
        let mut weight = vector(&self.file.tensor(name)?, size)?;
        weight
            .iter_mut()
            .for_each(|value| *value += self.config.norm_weight_offset);
        Ok(weight)
    }

    fn optional_norm(&self, name: &str, size: usize) -> Result<Option<Vec<f32>>, ModelFileError> {
        self.file
            .find_tensor(name)?
            .is_some()
            .then(|| self.norm(name, size))
            .transpose()
    }
}

fn expect_size(tensor: &TensorView<'_>, rows: usize, cols: usize) -> Result<(), ModelFileError> {
    expect(tensor.name, (tensor.rows(), tensor.cols()), (rows, cols))
}

fn expect(name: &str, got: (usize, usize), expected: (usize, usize)) -> Result<(), ModelFileError> {
    if got == expected {
        return Ok(());
    }
    Err(invalid(format!(
        "tensor '{name}' is {} x {}; expected {} x {}",
        got.0, got.1, expected.0, expected.1
    )))
}

/// Packs a matrix, using the pool's threads, gives its pages in the file back, and counts it as loaded.
pub(crate) fn pack(
    file: &ModelFile,
    pool: &ThreadPool,
    tensor: &TensorView<'_>,
    rows: usize,
    cols: usize,
) -> Result<PackedMatrix, ModelFileError> {
    let name = tensor.name;
    expect_size(tensor, rows, cols)?;
    let refused = |error: PackError| invalid(format!("tensor '{name}' cannot be packed: {error}"));
    let packed = PackedMatrix::allocate(tensor.kind, rows, cols).map_err(refused)?;
    packed.check_source(tensor.bytes).map_err(refused)?;
    let num_groups = packed.num_groups();
    pool.run(&[num_groups.div_ceil(PACK_GROUPS)], |piece| {
        let groups = piece.index * PACK_GROUPS..((piece.index + 1) * PACK_GROUPS).min(num_groups);
        // SAFETY: each piece fills its own groups, and nobody reads them before the run ends.
        unsafe { packed.pack_groups(tensor.bytes, groups) };
    })
    .map_err(|error| invalid(format!("tensor '{name}' cannot be packed: {error}")))?;
    file.drop_pages(tensor.bytes);
    file.note_loaded(tensor.bytes.len());
    Ok(packed)
}

/// A tensor of `size` values, as f32.
pub(crate) fn vector(tensor: &TensorView<'_>, size: usize) -> Result<Vec<f32>, ModelFileError> {
    let count = tensor.rows() * tensor.cols();
    if count != size {
        return Err(invalid(format!(
            "tensor '{}' has {count} values; expected {size}",
            tensor.name
        )));
    }
    if !matches!(tensor.kind, GgmlType::F32 | GgmlType::F16 | GgmlType::BF16) {
        return Err(invalid(format!(
            "tensor '{}' is {}; a vector is F32, F16 or BF16",
            tensor.name,
            tensor.kind.name()
        )));
    }
    tensor
        .to_f32()
        .map_err(|error| invalid(format!("tensor '{}': {error}", tensor.name)))
}
