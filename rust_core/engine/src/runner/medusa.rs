//! Heads of Medusa, attached to a model: they are asked between two steps, one after the other, each for the token at its own
//! place after the model's newest output. A sequence that the last step did not have waits for its next one.

use pyagent_kernels::sampling::SampleError;
use pyagent_kernels::thread_pool::ThreadPool;

use super::mtp::{DraftedRow, Likeliest, score_after};
use super::{CpuModel, EngineError, LastOutputs};
use crate::config::{MedusaConfig, ModelConfig};
use crate::forward::{MedusaBuffers, MedusaPass};
use crate::model::{self, MedusaWeights};
use crate::weights::ModelFile;
use crate::workspace::LargestStep;

/// Heads, as they are attached to a model.
pub(super) struct Medusa {
    config: MedusaConfig,
    weights: MedusaWeights,
    buffers: MedusaBuffers,
    /// Of each row of the last call, the head that drafted for it and the output that it read; none where none did.
    drafted: Vec<Option<(usize, usize)>>,
    /// Rows of logits of that call.
    num_drafted: usize,
}

impl Medusa {
    pub(super) fn load(
        (file, config): (ModelFile, MedusaConfig),
        target: &ModelConfig,
        pool: &ThreadPool,
    ) -> Result<Self, EngineError> {
        config
            .check_target(target)
            .map_err(|error| error.in_file(file.path()))?;
        let weights = model::load_medusa(&file, &config, pool)?;
        Ok(Self {
            buffers: MedusaBuffers::new(&config, &weights),
            config,
            weights,
            drafted: Vec::new(),
            num_drafted: 0,
        })
    }

    /// Forgets what was drafted after the last batch.
    pub(super) fn begin(&mut self) {
        self.drafted.clear();
        self.num_drafted = 0;
    }

    pub(super) fn weight_bytes(&self) -> usize {
        self.weights.bytes()
    }

    /// Bytes that passes have taken.
    pub(super) fn workspace_bytes(&mut self) -> usize {
        self.buffers.bytes()
    }

    /// The logits of the last call, if no batch came after it: those of the first head's rows before the second one's.
    pub(super) fn logits(&mut self) -> Option<&mut [f32]> {
        let rows = self.num_drafted;
        (rows > 0).then(|| self.buffers.logits.first(rows))
    }

    /// The head that drafts for a row, and the output that it reads: the first one, or the one after that which gave the row's
    /// token. None where there is no further one, or the output is not known.
    fn source(&self, outputs: &LastOutputs, row: &DraftedRow<'_>) -> Option<(usize, usize)> {
        match row.before {
            None => Some((0, outputs.before(row)?)),
            Some(before) => {
                let (head, output) = (*self.drafted.get(before)?)?;
                (head + 1 < self.config.num_heads).then_some((head + 1, output))
            }
        }
    }
}

impl MedusaConfig {
    /// Bytes that passes take at most, and outputs that steps keep for them, by the shape alone: see
    /// [`LargestStep::most_bytes`].
    pub fn most_step_bytes(&self, step: LargestStep) -> usize {
        let [rows, hidden, drafted] = [step.outputs, self.hidden_size, self.num_drafted].map(|size| size as u128);
        let input = (rows + 16) * (hidden + 32) * 7;
        usize::try_from(rows * 4 * (3 * hidden + drafted) + input).unwrap_or(usize::MAX)
    }
}

impl CpuModel {
    /// The token that the head of its turn finds likeliest after each row's; none where there is no further head, or the output
    /// for the token before is not known. Rows are known to be right.
    pub(super) fn draft_by_medusa(
        &self,
        medusa: &mut Medusa,
        outputs: &LastOutputs,
        rows: &[DraftedRow<'_>],
    ) -> Result<Vec<Option<Result<Likeliest, SampleError>>>, EngineError> {
        let sources: Vec<_> = rows.iter().map(|row| medusa.source(outputs, row)).collect();
        medusa.begin();
        medusa.buffers.reserve(rows.len());
        let mut found: Vec<_> = rows.iter().map(|_| None).collect();
        let mut first_logits = 0;
        for head in 0..medusa.config.num_heads {
            let of_head = |(place, source): (usize, &Option<(usize, usize)>)| {
                source.filter(|(of, _)| *of == head).map(|(_, output)| (place, output))
            };
            let (places, outputs_read): (Vec<_>, Vec<_>) = sources.iter().enumerate().filter_map(of_head).unzip();
            if places.is_empty() {
                continue;
            }
            let pass = MedusaPass {
                weights: &medusa.weights,
                head,
                buffers: &medusa.buffers,
                outputs: &outputs.rows,
                rows: &outputs_read,
                first_logits,
                num_threads: self.pool.num_threads(),
                isa: self.isa,
            };
            let logits = first_logits..first_logits + places.len();
            let likeliest = score_after(
                &self.pool,
                pass.num_pieces(),
                (&medusa.buffers.logits, logits),
                |piece| {
                    // SAFETY: the last batch computed these outputs, and room was made.
                    unsafe { pass.compute(piece) };
                },
            )?;
            first_logits += places.len();
            for (place, one) in places.into_iter().zip(likeliest) {
                found[place] = Some(one.map(|(place, logprob)| (medusa.weights.tokens.at(place), logprob)));
            }
        }
        (medusa.drafted, medusa.num_drafted) = (sources, first_logits);
        Ok(found)
    }
}
