//! The curve of Apertus's activation (xIELU, arXiv 2411.13010), which each layer has learned.

use pyagent_kernels::elementwise;
use pyagent_kernels::isa::Isa;

use super::{Loader, vector};
use crate::config::{Activation, invalid};
use crate::weights::{ModelFile, ModelFileError};

/// The numbers of a layer's curve: `above x^2 + slope x` above zero, else `below (e^min(x, least) - 1 - x) + slope x`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Curve {
    above: f32,
    below: f32,
    slope: f32,
    least: f32,
}

/// What files call a curve's numbers.
const NUMBERS: [&str; 4] = ["alpha_p", "alpha_n", "beta", "eps"];

impl Curve {
    /// A curve as files have it: both sides as what `ln(1 + e^x)` makes positive, and that of below zero without the slope.
    fn stored([above, below, slope, least]: [f32; 4]) -> Self {
        let positive = |x: f32| (f64::from(x).exp().ln_1p()) as f32;
        Self {
            above: positive(above),
            below: slope + positive(below),
            slope,
            least,
        }
    }

    /// Gives each number its place on the curve.
    pub(crate) fn bend(&self, isa: Isa, x: &mut [f32]) {
        elementwise::xielu(isa, x, self.above, self.below, self.slope, self.least);
    }

    fn is_finite(&self) -> bool {
        [self.above, self.below, self.slope, self.least]
            .iter()
            .all(|number| number.is_finite())
    }
}

impl Loader<'_> {
    /// A layer's curve, where the family has them.
    pub(super) fn curve(&self, layer: usize) -> Result<Option<Curve>, ModelFileError> {
        if self.config.activation != Activation::Xielu {
            return Ok(None);
        }
        let numbers = NUMBERS.map(|name| self.curve_number(layer, name));
        let [above, below, slope, least] = numbers;
        let curve = Curve::stored([above?, below?, slope?, least?]);
        let error = || {
            invalid(format!(
                "the curve of layer {layer}'s activation has numbers that are not finite"
            ))
        };
        curve.is_finite().then_some(Some(curve)).ok_or_else(error)
    }

    /// A number of a layer's curve: GGUF files have those of all layers in their metadata, or one for all.
    fn curve_number(&self, layer: usize, name: &str) -> Result<f32, ModelFileError> {
        let ModelFile::Gguf(gguf) = self.file else {
            let tensor = self.names.whole(layer, "", &format!("mlp.act_fn.{name}")).name;
            return Ok(vector(&self.file.tensor(&tensor)?, 1)?[0]);
        };
        let key = format!("xielu.{name}");
        if let Ok(number) = gguf.metadata_f32(&key) {
            return Ok(number);
        }
        let numbers = gguf.metadata_f32s(&key)?;
        let (count, expected) = (numbers.len(), self.config.num_layers);
        let error = || {
            invalid(format!(
                "'{key}' has {count} values; expected {expected}, one for each layer"
            ))
        };
        (count == expected).then(|| numbers[layer]).ok_or_else(error)
    }
}
