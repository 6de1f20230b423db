//! Nemotron-H's layers in a GGUF's metadata: a layer with a feed-forward size has that block alone, one with key-value heads
//! attention alone, the others Mamba-2 alone.

use super::Keys;
use crate::config::{Architecture, Blocks, MOST_LAYERS, invalid};
use crate::weights::ModelFileError;

/// What is read besides.
pub(super) const KEYS: [&str; 6] = [
    "rope.scaling.finetuned",
    "ssm.conv_kernel",
    "ssm.group_count",
    "ssm.inner_size",
    "ssm.state_size",
    "ssm.time_step_rank",
];

impl Keys<'_> {
    /// Width inside a feed-forward block: Nemotron-H's files have a number for each layer, 0 where it has none.
    pub(super) fn ffn_size(&self, architecture: Architecture) -> Result<usize, ModelFileError> {
        if architecture.is_recurrent_alone() {
            return Ok(1); // nothing has it
        }
        if architecture != Architecture::NemotronH {
            let size = self.size("feed_forward_length")?;
            // Files of the first Qwen have the width of gates and ups together.
            return Ok(if architecture == Architecture::Qwen {
                size / 2
            } else {
                size
            });
        }
        Ok(self.ffn_sizes()?.into_iter().max().unwrap_or(0))
    }

    /// The same of each layer.
    fn ffn_sizes(&self) -> Result<Vec<usize>, ModelFileError> {
        let sizes = self.sizes("feed_forward_length")?;
        let most = sizes.iter().copied().max().unwrap_or(0);
        if sizes.iter().any(|size| ![0, most].contains(size)) {
            let key = self.key("feed_forward_length");
            return Err(invalid(format!(
                "'{key}' differs between layers with a feed-forward block"
            )));
        }
        Ok(sizes)
    }

    /// Which blocks each layer has.
    pub(super) fn blocks(&self, architecture: Architecture, num_layers: usize) -> Result<Vec<Blocks>, ModelFileError> {
        match architecture {
            Architecture::NemotronH => {}
            Architecture::FalconH1 => return Ok(crate::config::layers::halves(num_layers)),
            _ if architecture.is_recurrent_alone() => return Ok(vec![Blocks::Mixer; num_layers.min(MOST_LAYERS)]),
            _ => return Ok(vec![Blocks::Both; num_layers.min(MOST_LAYERS)]),
        }
        let sizes = self.ffn_sizes()?.into_iter().take(num_layers);
        let blocks = sizes.map(|size| if size > 0 { Blocks::FeedForward } else { Blocks::Mixer });
        Ok(blocks.collect())
    }

    /// Of each layer, whether it is Mamba-2.
    pub(super) fn nemotron_recurrent(&self, num_layers: usize) -> Result<Vec<bool>, ModelFileError> {
        let layers = self.heads_of_layers()?.into_iter().zip(self.ffn_sizes()?);
        let layers = layers.take(num_layers).enumerate();
        let is_recurrent = |(layer, kinds)| match kinds {
            (heads, size) if heads > 0 && size > 0 => {
                let names = ["attention.head_count_kv", "feed_forward_length"].map(|suffix| self.key(suffix));
                Err(invalid(format!(
                    "'{}' and '{}' both say that layer {layer} is theirs; expected one block a layer",
                    names[0], names[1]
                )))
            }
            kinds => Ok(kinds == (0, 0)),
        };
        layers.map(is_recurrent).collect()
    }
}
