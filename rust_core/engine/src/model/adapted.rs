//! Where the matrices are that adapters add to: their names in adapters' files, and the order of their rows.

use std::ops::Range;

use pyagent_kernels::elementwise::RopeStyle;

use super::names::{Names, Part, Spelling};
use crate::adapters::Projection;
use crate::config::ModelConfig;

/// What an adapter's file calls a projection of a layer (without what names of decoders begin with), and which rows of
/// that matrix it is, where several lie in one.
pub(crate) fn adapted_place(
    is_gguf: bool,
    layer: usize,
    projection: Projection,
    config: &ModelConfig,
) -> (String, Option<Range<usize>>) {
    let names = if is_gguf {
        Names::Gguf
    } else {
        Names::HuggingFace(Spelling::of(""), None)
    };
    let place = names.layer(layer, part(projection), config);
    (place.name, place.rows)
}

fn part(projection: Projection) -> Part {
    match projection {
        Projection::Query => Part::Query,
        Projection::Key => Part::Key,
        Projection::Value => Part::Value,
        Projection::AttentionOutput => Part::AttentionOutput,
        Projection::Gate => Part::Gate,
        Projection::Up => Part::Up,
        Projection::Down => Part::Down,
    }
}

/// In which order an adapter's file has the rows of a projection, if not in the model's.
///
/// GGUF files of Llama's family have the rows of a head that rotate together side by side, others half a head apart.
pub(crate) fn row_order(is_gguf: bool, projection: Projection, config: &ModelConfig) -> Option<RowOrder> {
    let is_rotated = matches!(projection, Projection::Query | Projection::Key);
    let is_reordered = config.architecture.is_rearranged_in_gguf();
    let is_model_gguf = config.rope_style == RopeStyle::Interleaved;
    (is_rotated && is_reordered && is_model_gguf != is_gguf).then_some(RowOrder {
        head_dim: config.head_dim,
        is_model_gguf,
    })
}

/// How rows of heads are to be reordered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowOrder {
    head_dim: usize,
    is_model_gguf: bool,
}

impl RowOrder {
    /// The file's row that is this one of the model.
    pub(crate) fn source(self, row: usize) -> usize {
        let (head, place, half) = (row / self.head_dim, row % self.head_dim, self.head_dim / 2);
        let place = if self.is_model_gguf {
            place % 2 * half + place / 2
        } else {
            place % half * 2 + place / half
        };
        head * self.head_dim + place
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_order_is_the_others_inverse() {
        let [gguf, other] = [true, false].map(|is_model_gguf| RowOrder {
            head_dim: 8,
            is_model_gguf,
        });
        assert_eq!(
            (0..8).map(|row| gguf.source(row)).collect::<Vec<_>>(),
            [0, 4, 1, 5, 2, 6, 3, 7]
        );
        for row in 0..24 {
            assert_eq!(other.source(gguf.source(row)), row);
            assert_eq!(gguf.source(row) / 8, row / 8);
        }
    }
}
