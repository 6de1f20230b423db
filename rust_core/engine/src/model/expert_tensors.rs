//! Tensors of feed-forward blocks and their experts: looked up, measured, and packed.

use super::names::{Part, Place};
use super::packed_experts::PackedExperts;
use super::{FeedForward, Gated, Loader, Shared, vector};
use crate::config::{Architecture, Experts, invalid};
use crate::weights::{ModelFile, ModelFileError};

/// The matrices of a gated block.
const GATED: [Part; 3] = [Part::Gate, Part::Up, Part::Down];

impl Loader<'_> {
    /// A layer's feed-forward block, or its experts.
    pub(super) fn feed_forward(&self, layer: usize) -> Result<FeedForward, ModelFileError> {
        let config = self.config;
        if !config.has_ffn(layer) {
            return Ok(FeedForward::Absent);
        }
        if !config.has_experts(layer) {
            let place = |part| self.dense_place(layer, part);
            let gated = self.gated(&place, config.dense_size_of(layer))?;
            let curve = self.curve(layer)?;
            return Ok(FeedForward::Dense(Gated { curve, ..gated }));
        }
        let Experts { num_experts, .. } = config.experts.unwrap_or_else(|| unreachable!("a layer with experts"));
        let correction = self.names.correction(layer, config);
        let is_needed = config.architecture != Architecture::AxK1; // its published files have none
        let correction = correction.filter(|name| is_needed || !matches!(self.file.find_tensor(name), Ok(None)));
        let correction = correction.map(|name| vector(&self.file.tensor(&name)?, num_experts));
        Ok(FeedForward::Experts {
            router: self.linear(&self.names.router(layer, config), num_experts, config.hidden_size)?,
            correction: correction.transpose()?,
            experts: self.experts(layer, num_experts)?,
            shared: self.shared(layer)?,
        })
    }

    fn experts(&self, layer: usize, num_experts: usize) -> Result<Vec<Gated>, ModelFileError> {
        if let Some(packed) = self.packed_experts(layer)? {
            return packed.read(self.pool);
        }
        let expert = |expert| self.gated(&|part| self.expert_place(layer, part, expert), self.config.ffn_size);
        (0..num_experts).map(expert).collect()
    }

    /// Where an expert's matrix is: in a tensor of its own, or in one of all experts.
    fn expert_place(&self, layer: usize, part: Part, expert: usize) -> Place {
        let stacked = self.names.stacked_expert(layer, part, expert, self.config);
        let stacked = stacked.filter(|(place, _)| self.is_meant(&place.name));
        match stacked {
            Some((place, _)) => place,
            None => self.names.expert(layer, part, expert, self.config),
        }
    }

    /// Whether experts are looked for in a tensor of all: where there is one, or always, as Granite has no others.
    fn is_meant(&self, name: &str) -> bool {
        self.config.architecture.is_granite() || !matches!(self.file.find_tensor(name), Ok(None))
    }

    /// Whether gates and ups of a layer's experts lie in one tensor.
    fn has_stacked(&self, layer: usize, part: Part) -> bool {
        let stacked = self.names.stacked_expert(layer, part, 0, self.config);
        stacked.is_some_and(|(place, _)| self.is_meant(&place.name))
    }

    /// Refuses a tensor of all experts that has not a matrix of the right size for each.
    fn check_stacked(&self, layer: usize, part: Part) -> Result<(), ModelFileError> {
        let Some((place, expected)) = self.names.stacked_expert(layer, part, 0, self.config) else {
            return Ok(());
        };
        match self.file.find_tensor(&place.name)? {
            Some(tensor) if tensor.dims != expected => {
                let (name, dims) = (&place.name, tensor.dims);
                Err(invalid(format!("tensor '{name}' is {dims:?}; expected {expected:?}")))
            }
            _ => Ok(()),
        }
    }

    /// Experts that a folder of safetensors has as gpt-oss's, or Llama 4's; of Qwen3 those of its models of pictures are so.
    fn packed_experts(&self, layer: usize) -> Result<Option<PackedExperts<'_>>, ModelFileError> {
        let ModelFile::Safetensors(_) = self.file else {
            return Ok(None);
        };
        let block = self.names.whole(layer, "", self.names.packed_experts(self.config)).name;
        let has_them = match self.config.architecture {
            Architecture::Qwen3Moe => self.are_turned(&block)?,
            _ => self.names.has_packed_experts(self.config),
        };
        let packed = has_them.then(|| PackedExperts::find(self.file, &block, self.config));
        packed.transpose()
    }

    /// Whether the matrices of all experts have their inputs as rows, as published files have them; transformers' newer
    /// ones have outputs.
    fn are_turned(&self, block: &str) -> Result<bool, ModelFileError> {
        let config = self.config;
        let num_experts = config.experts.map_or(0, |experts| experts.num_experts);
        let down = self.file.find_tensor(&format!("{block}.down_proj"))?;
        Ok(down.is_some_and(|down| down.dims == [config.hidden_size, config.ffn_size, num_experts]))
    }

    fn shared(&self, layer: usize) -> Result<Option<Box<Shared>>, ModelFileError> {
        let (config, hidden) = (self.config, self.config.hidden_size);
        let Some(experts) = config.experts.filter(|experts| experts.shared_size > 0) else {
            return Ok(None);
        };
        let place = |part| self.names.shared_expert(layer, part, config);
        let gate = experts
            .is_shared_gated
            .then(|| self.linear(&self.names.shared_gate(layer), 1, hidden));
        Ok(Some(Box::new(Shared {
            gated: self.gated(&place, experts.shared_size)?,
            gate: gate.transpose()?,
        })))
    }

    fn gated(&self, place: &dyn Fn(Part) -> Place, size: usize) -> Result<Gated, ModelFileError> {
        let hidden = self.config.hidden_size;
        let has_gate = self.config.activation.has_gate();
        let gate = has_gate.then(|| self.linear(&place(Part::Gate), size, hidden));
        Ok(Gated {
            gate: gate.transpose()?,
            up: self.linear(&place(Part::Up), size, hidden)?,
            down: self.linear(&place(Part::Down), hidden, size)?,
            curve: None,
        })
    }

    /// The sinks of a layer's heads, where the family has them.
    pub(super) fn sinks(&self, layer: usize) -> Result<Option<Vec<f32>>, ModelFileError> {
        let config = self.config;
        let sinks = config.architecture.has_sinks().then(|| {
            let tensor = self.file.tensor(&self.names.sinks(layer))?;
            vector(&tensor, config.num_heads)
        });
        sinks.transpose()
    }

    /// The matrices of a block.
    fn parts(&self) -> &'static [Part] {
        if self.config.activation.has_gate() {
            &GATED
        } else {
            &GATED[1..]
        }
    }

    /// Refuses blocks of a model without experts, as [`Self::check_experts`] does those of others.
    pub(super) fn check_dense(&self) -> Result<(), ModelFileError> {
        let config = self.config;
        let is_meant = |&layer: &usize| config.experts.is_none() && config.has_ffn(layer);
        let mut layers = config.all_layers().filter(is_meant);
        layers.try_for_each(|layer| {
            self.check_joined(&self.names.layer(layer, Part::Up, config))?;
            self.check_gated(
                &|part| self.names.layer(layer, part, config),
                config.dense_size_of(layer),
            )
        })
    }

    /// Refuses experts that are missing, or of other sizes, before any memory is taken for weights.
    pub(super) fn check_experts(&self) -> Result<(), ModelFileError> {
        let (config, hidden) = (self.config, self.config.hidden_size);
        let Some(experts) = config.experts else { return Ok(()) };
        for layer in config.all_layers().filter(|&layer| config.has_ffn(layer)) {
            if !config.has_experts(layer) {
                self.check_gated(&|part| self.dense_place(layer, part), experts.dense_size)?;
                continue;
            }
            self.check(&self.names.router(layer, config), experts.num_experts, hidden)?;
            if experts.shared_size > 0 {
                self.check_joined(&self.names.shared_expert(layer, Part::Up, config))?;
                self.check_gated(
                    &|part| self.names.shared_expert(layer, part, config),
                    experts.shared_size,
                )?;
            }
            if self.packed_experts(layer)?.is_some() {
                continue; // measured when they are found
            }
            for &part in self.parts() {
                let size = sizes(part, config.ffn_size, hidden);
                if !self.has_stacked(layer, part) {
                    self.names.check_stack(self.file, layer, part, size, config)?;
                }
                self.check_stacked(layer, part)?;
            }
            for expert in 0..experts.num_experts {
                self.check_gated(&|part| self.expert_place(layer, part, expert), config.ffn_size)?;
            }
        }
        Ok(())
    }

    fn check_gated(&self, place: &dyn Fn(Part) -> Place, size: usize) -> Result<(), ModelFileError> {
        self.parts().iter().try_for_each(|&part| {
            let (rows, cols) = sizes(part, size, self.config.hidden_size);
            self.check(&place(part), rows, cols)
        })
    }
}

/// Rows and columns of a gated block's matrix.
fn sizes(part: Part, size: usize, hidden: usize) -> (usize, usize) {
    match part {
        Part::Down => (hidden, size),
        _ => (size, hidden),
    }
}
