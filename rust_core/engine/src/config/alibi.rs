//! `ALiBi`: no rotary positions; a score falls by its head's slope for each position that the key lies behind the query
//! (Press et al., 2022).

use super::{Architecture, ModelConfig, invalid};
use crate::weights::ModelFileError;

impl ModelConfig {
    /// What is added to each head's scores for a position of distance, where the family does so.
    ///
    /// Exponents go up to the greatest in as many steps as there are heads; where these are no power of two, in as many as
    /// the next one, of which first every other one is taken, then those that were left.
    pub fn alibi_slopes(&self) -> Option<Vec<f32>> {
        let max_bias = f64::from(self.alibi_max_bias?);
        let steps = self.num_heads.next_power_of_two();
        // Falcon's are added before scores are scaled.
        let scale = match self.architecture {
            Architecture::Falcon => f64::from(self.attention_scale),
            _ => 1.0,
        };
        let slope = |step: usize| -(scale * (-max_bias * step as f64 / steps as f64).exp2()) as f32;
        let slopes = if steps == self.num_heads {
            (1..=steps).map(slope).collect()
        } else {
            let (taken, left) = ((2..=steps).step_by(2), (1..=steps).step_by(2));
            taken.chain(left).take(self.num_heads).map(slope).collect()
        };
        Some(slopes)
    }

    pub(super) fn check_alibi(&self) -> Result<(), ModelFileError> {
        match self.alibi_max_bias {
            Some(max_bias) if !(0.0..=1_000.0).contains(&max_bias) => Err(invalid(format!(
                "ALiBi's greatest exponent is {max_bias}; expected 0 to 1000"
            ))),
            _ => Ok(()),
        }
    }
}
