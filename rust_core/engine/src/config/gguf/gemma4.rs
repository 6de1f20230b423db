//! What GGUF files say of Gemma 4's layers.

use super::Keys;
use crate::config::assistant::GGUF_NAME;
use crate::config::{Architecture, Experts, Gemma4, invalid};
use crate::gguf::MetadataValue;
use crate::weights::ModelFileError;

/// What is read of it besides.
pub(super) const KEYS: [&str; 9] = [
    "attention.key_length_swa",
    "attention.shared_kv_layers",
    "attention.value_length_swa",
    "embedding_length_per_layer_input",
    "expert_count",
    "expert_feed_forward_length",
    "expert_used_count",
    "final_logit_softcapping",
    "rope.dimension_count_swa",
];

/// Heads of sliding-window layers, the first layers' feed-forward width, and what other layers have instead.
pub(super) struct Shapes {
    pub(super) num_kv_heads: usize,
    pub(super) head_dim: usize,
    pub(super) ffn_size: usize,
    pub(super) gemma4: Gemma4,
}

impl Keys<'_> {
    /// The experts of a Gemma 4 that has some: a dense block lies beside them.
    pub(super) fn gemma4_experts(&self) -> Result<Option<Experts>, ModelFileError> {
        let count = self.optional_size("expert_count")?.unwrap_or(0);
        if count == 0 {
            return Ok(None);
        }
        let mut experts = Experts::of(count, self.size("expert_used_count")?);
        experts.shared_size = self.layer_sizes("feed_forward_length", 1)?[0];
        Ok(Some(experts))
    }

    /// The shapes of a Gemma 4 of these kinds of layers; `None` of other families.
    pub(super) fn gemma4(
        &self,
        architecture: Architecture,
        sliding_layers: &[bool],
    ) -> Result<Option<Shapes>, ModelFileError> {
        if architecture != Architecture::Gemma4 {
            return Ok(None);
        }
        let num_layers = sliding_layers.len();
        let (global_head_dim, head_dim) = (
            self.size("attention.key_length")?,
            self.size("attention.key_length_swa")?,
        );
        for (suffix, expected) in [
            ("attention.value_length", global_head_dim),
            ("attention.value_length_swa", head_dim),
            ("rope.dimension_count", global_head_dim),
            ("rope.dimension_count_swa", head_dim),
        ] {
            self.expect_size(suffix, expected)?;
        }
        let kv_heads = self.layer_sizes("attention.head_count_kv", num_layers)?;
        let global_kv_heads = self.same("attention.head_count_kv", &kv_heads, |layer| !sliding_layers[layer])?;
        let local_kv_heads = self.same("attention.head_count_kv", &kv_heads, |layer| sliding_layers[layer])?;
        let global_kv_heads = global_kv_heads.or(local_kv_heads).unwrap_or(0);
        let makes_no_kv = self.name == GGUF_NAME;
        let num_kv_shared_layers = match self.optional_size("attention.shared_kv_layers")? {
            Some(shared) if !makes_no_kv => shared,
            _ => 0,
        };
        let first_shared = num_layers.saturating_sub(num_kv_shared_layers);
        let sizes = self.layer_sizes("feed_forward_length", num_layers)?;
        let ffn_size = self.same("feed_forward_length", &sizes, |layer| layer < first_shared)?;
        let wide = self.same("feed_forward_length", &sizes, |layer| layer >= first_shared)?;
        let ffn_size = ffn_size.or(wide).unwrap_or(0);
        let first_global = sliding_layers.iter().position(|is_sliding| !is_sliding).unwrap_or(0);
        Ok(Some(Shapes {
            num_kv_heads: local_kv_heads.unwrap_or(global_kv_heads),
            head_dim,
            ffn_size,
            gemma4: Gemma4 {
                makes_no_kv,
                global_kv_heads,
                global_head_dim,
                num_kv_shared_layers,
                wide_size: wide.filter(|size| *size != ffn_size).unwrap_or(0),
                has_keys_for_values: self
                    .file
                    .find_tensor(&format!("blk.{first_global}.attn_v.weight"))
                    .is_none(),
                per_layer_size: self.optional_size("embedding_length_per_layer_input")?.unwrap_or(0),
            },
        }))
    }

    /// A size that a file says once, or for each of so many layers.
    fn layer_sizes(&self, suffix: &str, num_layers: usize) -> Result<Vec<usize>, ModelFileError> {
        let key = self.key(suffix);
        let Some(MetadataValue::Array(_)) = self.file.find(&key) else {
            return Ok(vec![self.size(suffix)?; num_layers]);
        };
        let sizes = self.file.metadata_i32s(&key)?;
        let sizes: Option<Vec<usize>> = sizes.into_iter().map(|size| usize::try_from(size).ok()).collect();
        match sizes {
            Some(sizes) if sizes.len() >= num_layers => Ok(sizes),
            Some(sizes) => Err(invalid(format!(
                "'{key}' has {} numbers for {num_layers} layers",
                sizes.len()
            ))),
            None => Err(invalid(format!("'{key}' has a negative number"))),
        }
    }

    /// The size that all meant layers have; `None` if there is no such layer.
    fn same(
        &self,
        suffix: &str,
        sizes: &[usize],
        is_meant: impl Fn(usize) -> bool,
    ) -> Result<Option<usize>, ModelFileError> {
        let mut meant = sizes
            .iter()
            .enumerate()
            .filter(|(layer, _)| is_meant(*layer))
            .map(|(_, size)| *size);
        let first = meant.next();
        if meant.any(|size| Some(size) != first) {
            let key = self.key(suffix);
            return Err(invalid(format!("'{key}' differs between layers of one kind")));
        }
        Ok(first)
    }
}
