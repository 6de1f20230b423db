//! LFM3 in a `config.json`: which layers convolve, which have a window, and how the others turn.

use pyagent_kernels::elementwise::RopeScaling;
use serde_json::Value;

use super::JsonConfig;
use crate::config::{MOST_LAYERS, Recurrent, invalid};
use crate::weights::ModelFileError;

pub(super) const NAME: &str = "lfm3";
/// What is read besides.
pub(super) const FIELDS: &str = "conv_L_cache conv_bias norm_eps";

const TAPS: usize = 7;
const WINDOW: usize = 256;
/// The share of a head's frequencies that turn in layers that see everything.
const SHARE: f64 = 0.5;

/// What a layer has in the place of a block that brings tokens together.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Convolution,
    Window,
    Everything,
}

impl Kind {
    fn from_name(name: &str) -> Option<Self> {
        match name {
            "conv" => Some(Self::Convolution),
            "sliding_attention" => Some(Self::Window),
            "full_attention" => Some(Self::Everything),
            _ => None,
        }
    }

    /// What a layer is where the file does not say.
    fn of_family(layer: usize) -> Self {
        match layer % 4 {
            2 => Self::Everything,
            0 if layer > 0 => Self::Window,
            _ => Self::Convolution,
        }
    }
}

impl JsonConfig<'_> {
    fn lfm3_kinds(&self, num_layers: usize) -> Result<Vec<Kind>, ModelFileError> {
        let Some(types) = self.0.get("layer_types").filter(|value| !value.is_null()) else {
            return Ok((0..num_layers.min(MOST_LAYERS)).map(Kind::of_family).collect());
        };
        let kinds = types.as_array().and_then(|types| {
            let kinds = types.iter().map(|name| name.as_str().and_then(Kind::from_name));
            kinds.collect::<Option<Vec<Kind>>>()
        });
        kinds.filter(|kinds| kinds.len() == num_layers).ok_or_else(|| {
            invalid(format!(
                "config.json: 'layer_types' must have conv, sliding_attention or full_attention for each of {num_layers} \
                 layers"
            ))
        })
    }

    /// The convolutions, and which layers have them.
    pub(super) fn lfm3_convolutions(
        &self,
        num_layers: usize,
    ) -> Result<(Option<Recurrent>, Vec<bool>), ModelFileError> {
        let taps = self.optional_size("conv_L_cache")?.unwrap_or(TAPS);
        let layers = self.lfm3_layers(Kind::Convolution, num_layers)?;
        let recurrent = layers.contains(&true).then_some(Recurrent::ShortConvolution { taps });
        Ok((recurrent, layers))
    }

    /// The width of windows.
    pub(super) fn lfm3_window(&self) -> Result<Option<usize>, ModelFileError> {
        Ok(match self.0.get("sliding_window") {
            Some(Value::Null) => None,
            _ => Some(self.optional_size("sliding_window")?.unwrap_or(WINDOW)),
        })
    }

    /// Which layers have a window.
    pub(super) fn lfm3_windows(&self, num_layers: usize) -> Result<Vec<bool>, ModelFileError> {
        self.lfm3_layers(Kind::Window, num_layers)
    }

    fn lfm3_layers(&self, kind: Kind, num_layers: usize) -> Result<Vec<bool>, ModelFileError> {
        Ok(self
            .lfm3_kinds(num_layers)?
            .into_iter()
            .map(|own| own == kind)
            .collect())
    }

    /// Base and scaling of layers that see everything.
    pub(super) fn lfm3_rope(&self, head_dim: usize) -> Result<(f64, RopeScaling), ModelFileError> {
        self.proportional_rope(head_dim, SHARE)
    }
}
