//! A model's assistant: attached to it, and asked between two steps. It reads the model's keys and values, keeps nothing of a
//! sequence, and goes on from the model's output for its last known token.

use std::collections::HashMap;
use std::path::Path;

use pyagent_kernels::elementwise::RopeTable;
use pyagent_kernels::sampling::SampleError;
use pyagent_kernels::thread_pool::ThreadPool;

use super::mtp::{DraftedRow, Likeliest, run_and_score};
use super::{CpuModel, EngineError, LastOutputs, rope_bytes};
use crate::config::{AssistantConfig, ModelConfig, invalid};
use crate::forward::{AssistantBuffers, AssistantPass, Pass, Plan, Role, Segment};
use crate::model::{self, AssistantWeights};
use crate::weights::{ModelFile, ModelFileError};
use crate::workspace::{LargestStep, Workspace, num_rope_tables};

/// An assistant, as it is attached to a model.
pub(super) struct Assistant {
    config: AssistantConfig,
    weights: AssistantWeights,
    /// Of each layer, the model's whose keys and values it reads.
    layers: Vec<usize>,
    space: Workspace,
    buffers: AssistantBuffers,
    rope: [RopeTable; 2],
    /// Of each row of the last pass, which of its drafts is its own; none where it could not be drafted for.
    places: Vec<Option<usize>>,
    num_drafted: usize,
}

/// Opens an assistant; an error where the folder holds another model.
pub(super) fn open(path: &Path) -> Result<(ModelFile, AssistantConfig), ModelFileError> {
    let other = || {
        invalid("it is neither an assistant of Gemma 4 nor a head of EAGLE-3, nor are there heads of Medusa".to_owned())
            .in_file(path)
    };
    model::open_assistant(path)?.ok_or_else(other)
}

impl Assistant {
    pub(super) fn load(
        (file, mut config): (ModelFile, AssistantConfig),
        target: &ModelConfig,
        pool: &ThreadPool,
    ) -> Result<Self, EngineError> {
        let layers = config.layers_in(target).map_err(|error| error.in_file(file.path()))?;
        let weights = model::load_assistant(&file, &config, pool)?;
        let rope = config.decoder.rope_tables()?;
        config.decoder.vocab_size = config.num_logits();
        let mut space = Workspace::new(&config.decoder, &weights.decoder, pool.num_threads());
        space.set_outputs(weights.outputs());
        Ok(Self {
            buffers: AssistantBuffers::new(&config, &weights),
            config,
            weights,
            layers,
            space,
            rope,
            places: Vec::new(),
            num_drafted: 0,
        })
    }

    /// Bytes held by its weights.
    pub(super) fn weight_bytes(&self) -> usize {
        self.weights.bytes()
    }

    /// Forgets what was drafted after the last batch.
    pub(super) fn begin(&mut self) {
        self.places.clear();
        self.num_drafted = 0;
    }

    /// The logits of the last pass, if no batch came after it.
    pub(super) fn logits(&mut self) -> Option<&mut [f32]> {
        let rows = self.num_drafted;
        (rows > 0).then(|| self.space.logits.first(rows))
    }

    /// Bytes that its passes have taken.
    pub(super) fn workspace_bytes(&mut self) -> usize {
        rope_bytes(&self.rope) + self.space.bytes() + self.buffers.bytes()
    }

    /// The row that a row goes on from: of the last pass where it goes on from a draft, otherwise of the model's outputs. None
    /// where neither is known.
    fn source(&self, outputs: &LastOutputs, row: &DraftedRow<'_>) -> Option<usize> {
        match row.before {
            Some(before) => self.places.get(before).copied().flatten(),
            None => outputs.before(row),
        }
    }
}

impl AssistantConfig {
    /// Logits of a row.
    fn num_logits(&self) -> usize {
        let vocab = self.decoder.vocab_size;
        self.clusters
            .map_or(vocab, |clusters| vocab / clusters.count * clusters.num_chosen)
    }

    /// Bytes that an assistant's passes take at most, by its shape alone: see [`LargestStep::most_bytes`].
    pub fn most_step_bytes(&self, step: LargestStep) -> usize {
        let mut decoder = self.decoder.clone();
        decoder.vocab_size = self.num_logits();
        let (rows, backbone) = (step.outputs as u128, self.backbone_size as u128);
        let clusters = self.clusters.map_or(0, |clusters| clusters.count + clusters.num_chosen) as u128;
        let joined = (rows + 16) * (2 * backbone + 32) * 7;
        let own = rows * 4 * (2 * backbone + decoder.hidden_size as u128 + clusters) + joined;
        step.most_bytes(&decoder)
            .saturating_add(usize::try_from(own).unwrap_or(usize::MAX))
    }
}

impl CpuModel {
    /// The token that the assistant finds likeliest after each row's; none where the output for the token before is not known.
    /// Rows are known to be right.
    pub(super) fn draft_by_assistant(
        &self,
        assistant: &mut Assistant,
        outputs: &LastOutputs,
        rows: &[DraftedRow<'_>],
    ) -> Result<Vec<Option<Result<Likeliest, SampleError>>>, EngineError> {
        let sources: Vec<_> = rows.iter().map(|row| assistant.source(outputs, row)).collect();
        let given: Vec<_> = rows
            .iter()
            .zip(&sources)
            .filter_map(|(row, source)| Some((row, (*source)?)))
            .collect();
        let mut next = 0..given.len();
        let places: Vec<_> = sources.iter().map(|source| source.and_then(|_| next.next())).collect();
        let likeliest = if given.is_empty() {
            Vec::new()
        } else {
            self.pass_of_assistant(assistant, outputs, &given)?
        };
        (assistant.num_drafted, assistant.places) = (given.len(), places);
        let mut likeliest = likeliest.into_iter();
        let found = assistant
            .places
            .iter()
            .map(|place| place.and_then(|_| likeliest.next()));
        Ok(found.collect())
    }

    fn pass_of_assistant(
        &self,
        assistant: &mut Assistant,
        outputs: &LastOutputs,
        rows: &[(&DraftedRow<'_>, usize)],
    ) -> Result<Vec<Result<Likeliest, SampleError>>, EngineError> {
        let segments: Vec<_> = rows.iter().map(|(row, _)| row.segment()).collect();
        let config = &assistant.config.decoder;
        let last = rows.iter().map(|(row, _)| row.position + 1).max().unwrap_or(0);
        for table in &mut assistant.rope[..num_rope_tables(config)] {
            table.grow_to(last)?;
        }
        let plan = Plan::new(
            &segments,
            config,
            &self.kv.pages,
            &HashMap::new(),
            self.pool.num_threads(),
        );
        let space = &mut assistant.space;
        space.prepare_adapters((0, 0));
        space.prepare(config, rows.len(), rows.len(), plan.num_split_rows());
        assistant.buffers.reserve(&assistant.config, rows.len());
        self.join_inputs(assistant, outputs, rows);
        let pass = Pass {
            config,
            weights: &assistant.weights.decoder,
            kv: &self.kv,
            space: &assistant.space,
            rope: &assistant.rope,
            write_norms: &[],
            role: Role::Assistant(&AssistantPass {
                weights: &assistant.weights,
                buffers: &assistant.buffers,
                layers: &assistant.layers,
            }),
            isa: self.isa,
        };
        let found = run_and_score(&self.pool, &pass, &plan, pass.stages(&plan))?;
        let Some(clusters) = &assistant.weights.clusters else {
            return Ok(found);
        };
        let found = found.into_iter().enumerate().map(|(row, found)| {
            // SAFETY: the pass is over.
            let token = |place| unsafe { assistant.buffers.token_at(clusters, row, place as usize) };
            found.map(|(place, logprob)| (token(place), logprob))
        });
        Ok(found.collect())
    }

    /// Writes the inputs: of each row its token's embedding by the model, and what it goes on from.
    fn join_inputs(&self, assistant: &Assistant, outputs: &LastOutputs, rows: &[(&DraftedRow<'_>, usize)]) {
        let hidden = self.config.hidden_size;
        let mut pair = vec![0.0; 2 * hidden];
        for (place, (row, source)) in rows.iter().enumerate() {
            let (embedding, before) = pair.split_at_mut(hidden);
            self.weights.embedding.row(row.token as usize, embedding);
            embedding
                .iter_mut()
                .for_each(|value| *value *= self.config.embedding_scale);
            // SAFETY: this thread has the assistant to itself, and `source` found rows that were computed.
            unsafe {
                let rows = match row.before {
                    Some(_) => &assistant.buffers.drafted,
                    None => &outputs.rows,
                };
                before.copy_from_slice(rows.shared_row(*source));
                assistant.buffers.joined.write_row(self.isa, place, &pair);
            }
        }
    }

    /// Refuses a row that an assistant cannot draft for.
    pub(super) fn check_assisted(&mut self, row: &DraftedRow<'_>) -> Result<(), String> {
        let Some(assistant) = &self.assistant else {
            return Ok(());
        };
        let context = assistant.config.decoder.context_length;
        if row.position >= context {
            return Err(format!(
                "there is no draft after position {} in a context of {context}",
                row.position
            ));
        }
        self.kv.check(row.tables, row.position, row.position, &mut self.checked)
    }
}

impl<'a> DraftedRow<'a> {
    /// Its token as what a pass computes.
    pub(super) fn segment(&'a self) -> Segment<'a> {
        Segment {
            tables: self.tables,
            first_position: self.position,
            tokens: std::slice::from_ref(&self.token),
            num_outputs: 1,
            scoring: None,
            num_drafts: 0,
            adapter_id: 0,
            probe: None,
            prompt: &[],
        }
    }
}
