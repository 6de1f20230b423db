//! Granite with windows and sinks in a `config.json`: which layers have a window, and how each turns.

use pyagent_kernels::elementwise::RopeScaling;
use serde_json::Value;

use super::JsonConfig;
use crate::config::{Architecture, MOST_LAYERS, invalid};
use crate::weights::ModelFileError;

/// Its names, without experts and with.
pub(super) const NAMES: [&str; 2] = ["granite_swa", "granitemoe_swa"];
/// What is read of it besides.
pub(super) const FIELDS: &str = "layer_rope_theta shared_intermediate_size";
/// The width of windows, and which layer of so many sees everything, where nothing is said.
pub(super) const WINDOW: usize = 128;
const PERIOD: usize = 4;

/// Which layers have a window where the first of so many sees everything: Granite's, and CWM's.
pub(super) fn after_the_first(num_layers: usize) -> Vec<bool> {
    let layers = 0..num_layers.min(MOST_LAYERS);
    layers.map(|layer| !layer.is_multiple_of(PERIOD)).collect()
}

impl JsonConfig<'_> {
    /// Which layers have rotary positions: those whose base is not 0.
    pub(super) fn granite_rotary_layers(&self, num_layers: usize) -> Result<Vec<bool>, ModelFileError> {
        let bases = self.granite_bases(num_layers)?;
        Ok(bases.map_or_else(
            || vec![true; num_layers.min(MOST_LAYERS)],
            |bases| bases.into_iter().map(|base| base != 0.0).collect(),
        ))
    }

    /// Base and scaling of the layers that see everything, or of those with windows: all of a kind have one base.
    pub(super) fn granite_rope(&self, windows: &[bool], is_local: bool) -> Result<(f64, RopeScaling), ModelFileError> {
        let (base, scaling) = self.global_rope(Architecture::GraniteSwa)?;
        let bases = self.granite_bases(windows.len())?.unwrap_or_default();
        let of_kind = bases.into_iter().zip(windows);
        let mut of_kind = of_kind.filter(|(base, has_window)| *base != 0.0 && **has_window == is_local);
        let Some((first, _)) = of_kind.next() else {
            return Ok((base, scaling));
        };
        if of_kind.any(|(other, _)| other != first) {
            let text = "config.json: 'layer_rope_theta' differs between layers of one of 'layer_types', which is not implemented";
            return Err(invalid(text.to_owned()));
        }
        Ok((first, scaling))
    }

    /// Each layer's base, if the file has them.
    fn granite_bases(&self, num_layers: usize) -> Result<Option<Vec<f64>>, ModelFileError> {
        let Some(bases) = self.0.get("layer_rope_theta").filter(|value| !value.is_null()) else {
            return Ok(None);
        };
        let bases = bases.as_array().map(|bases| bases.iter().map(Value::as_f64));
        let bases: Option<Vec<f64>> = bases.and_then(Iterator::collect);
        let bases = bases.filter(|bases| bases.len() == num_layers && bases.iter().all(|base| *base >= 0.0));
        bases.map(Some).ok_or_else(|| {
            invalid("config.json: 'layer_rope_theta' must have a number from 0 up for each layer".to_owned())
        })
    }
}
