//! A head of a file of its own (EAGLE-3), attached to a model: every step stores its keys and values in the model's pages, and it is
//! asked between two steps, as a head of the model's own file.

use std::path::Path;

use pyagent_kernels::elementwise::RopeTable;
use pyagent_kernels::isa::Isa;
use pyagent_kernels::thread_pool::ThreadPool;

use super::{CpuModel, EngineError, rope_bytes};
use crate::config::eagle::NUM_TAPS;
use crate::config::{EagleConfig, ModelConfig, invalid};
use crate::forward::{HeadPass, Pass, Plan, Role, Segment, Taps};
use crate::kv::{KvMemory, KvPages};
use crate::model::{self, EagleWeights, Weights};
use crate::weights::{ModelFile, ModelFileError};
use crate::workspace::{LargestStep, Rows, Workspace};

/// A head, as it is attached to a model.
pub(super) struct Eagle {
    config: EagleConfig,
    weights: EagleWeights,
    /// Its layer in the model's pages.
    layer: usize,
    pub(super) taps: Taps,
    pub(super) space: Workspace,
    rope: [RopeTable; 2],
}

/// The shape of the head in a folder, for which a model's pages make room; an error where it is for another model.
pub fn head_shape(path: &Path, target: &ModelConfig) -> Result<ModelConfig, ModelFileError> {
    let other = || invalid("it is no head of EAGLE-3".to_owned()).in_file(path);
    let (_, config) = model::open_eagle(path)?.ok_or_else(other)?;
    config.taps_in(target).map_err(|error| error.in_file(path))?;
    Ok(config.head)
}

impl Eagle {
    pub(super) fn load(
        (file, mut config): (ModelFile, EagleConfig),
        target: &ModelConfig,
        pages: &KvPages,
        pool: &ThreadPool,
    ) -> Result<Self, EngineError> {
        let taps = config.taps_in(target).map_err(|error| error.in_file(file.path()))?;
        let layer = target.all_layers().end;
        if !pages.has_head(layer, &config.head) {
            let text = "the model was loaded without room for this head in its pages; name the head where it is loaded";
            return Err(invalid(text.to_owned()).in_file(file.path()).into());
        }
        let weights = model::load_eagle(&file, &config, pool)?;
        config.head.context_length = target.context_length; // positions are relative to each other
        Ok(Self {
            taps: Taps {
                layers: taps,
                features: Rows::new(NUM_TAPS * target.hidden_size),
            },
            space: Workspace::new(&config.head, &weights.head, pool.num_threads()),
            rope: config.head.rope_tables()?,
            layer,
            config,
            weights,
        })
    }

    /// Makes room for places of the stream of so many tokens.
    pub(super) fn begin(&mut self, tokens: usize) {
        self.taps.features.reserve(tokens);
    }

    pub(super) fn weight_bytes(&self) -> usize {
        self.weights.bytes()
    }

    /// Bytes that its passes have taken, and what steps keep for it.
    pub(super) fn workspace_bytes(&mut self) -> usize {
        rope_bytes(&self.rope) + self.space.bytes() + self.taps.features.bytes()
    }

    /// The token that a place among the logits is of.
    pub(super) fn token_at(&self, place: u32) -> u32 {
        self.weights.tokens.at(place)
    }

    /// Its shape, its buffers and its rotary tables, to prepare them.
    pub(super) fn parts(&mut self) -> (&ModelConfig, &mut Workspace, &mut [RopeTable; 2]) {
        (&self.config.head, &mut self.space, &mut self.rope)
    }

    /// What a pass of it has beside a decoder's, for a model with these weights.
    pub(super) fn role<'a>(&'a self, target: &'a Weights) -> HeadPass<'a> {
        HeadPass {
            layer: self.layer,
            window: self.config.window,
            embedding: self.weights.embedding.as_ref().unwrap_or(&target.embedding),
            features: &self.taps.features,
        }
    }

    /// A pass of it.
    pub(super) fn pass<'a>(&'a self, role: &'a HeadPass<'a>, kv: &'a KvMemory, isa: Isa) -> Pass<'a> {
        Pass {
            config: &self.config.head,
            weights: &self.weights.head,
            kv,
            space: &self.space,
            rope: &self.rope,
            write_norms: &[],
            role: Role::Head(role),
            isa,
        }
    }
}

impl EagleConfig {
    /// Bytes that a head's passes take at most, and what steps keep for it, by its shape alone: see
    /// [`LargestStep::most_bytes`].
    pub fn most_step_bytes(&self, step: LargestStep) -> usize {
        let mut head = self.head.clone();
        head.context_length = step.positions.max(1);
        let input = |columns: usize| (step.tokens as u128 + 16) * (columns as u128 + 32) * 7;
        let features = NUM_TAPS * self.target_size;
        let kept = step.tokens as u128 * 4 * (features + head.hidden_size) as u128;
        let own = kept + input(features) + input(2 * head.hidden_size);
        let drafting = LargestStep {
            tokens: step.outputs,
            ..step
        };
        // What a thread has to itself is as large as a piece of the step.
        let pieces = LargestStep { outputs: 1, ..step }.thread_bytes(&head);
        drafting
            .most_bytes(&head)
            .saturating_add(usize::try_from(own + pieces).unwrap_or(usize::MAX))
    }
}

impl CpuModel {
    /// Stores the head's keys and values for a step, if one of another file drafts for the model. Pages and tokens are known
    /// to be right, and the step is computed.
    pub(super) fn store_for_head(&mut self, segments: &[Segment<'_>]) -> Result<(), EngineError> {
        let Some(head) = &mut self.head else { return Ok(()) };
        let last = segments
            .iter()
            .map(|segment| segment.first_position + segment.tokens.len());
        let last = last.max().unwrap_or(0);
        let (config, space, rope) = head.parts();
        rope[0].grow_to(last)?;
        let threads = self.pool.num_threads();
        let plan = Plan::new(segments, config, &self.kv.pages, &self.adapters, threads);
        space.prepare_adapters((0, 0));
        space.prepare_storing(config, plan.num_rows());
        let role = head.role(&self.weights);
        let pass = head.pass(&role, &self.kv, self.isa);
        let (stages, num_pieces) = pass.storing_stages(&plan);
        self.pool.run(&num_pieces, |piece| {
            // SAFETY: as for the step, whose places of the stream are kept; room was made, and the head's layer is written by
            // nobody else.
            unsafe { pass.compute(&plan, stages[piece.stage], piece) };
        })?;
        Ok(())
    }
}
