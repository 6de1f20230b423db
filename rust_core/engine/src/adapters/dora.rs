//! `DoRA` (Liu et al. 2024, arXiv 2402.09353): each row of `W + s B A` is made as long as the adapter says.
//!
//! The lengths do not depend on the input: they are computed once, when the adapter is loaded, from the model's weights
//! as it computes with them (dequantised), so that outputs are multiplied by one number each.

use std::sync::Mutex;
use std::sync::PoisonError;

use pyagent_kernels::thread_pool::ThreadPool;

use super::{Projection, Resizing};
use crate::config::invalid;
use crate::model::Linear;
use crate::weights::ModelFileError;

/// Rows that one thread computes at a time.
const PIECE_ROWS: usize = 16;

/// An adapter's product of one matrix: `scale * B A`.
pub(super) struct Delta<'a, Row> {
    /// [rank, in].
    pub(super) a: &'a [f32],
    /// A row of `B`.
    pub(super) up_row: &'a Row,
    pub(super) scale: f32,
}

impl<'b, Row: Fn(usize) -> &'b [f32]> Delta<'_, Row> {
    /// The length of a row of `W + scale * B A`, whose row of `W` is in `values`.
    fn length(&self, row: usize, values: &mut [f32]) -> f64 {
        for (down, up) in self.a.chunks_exact(values.len()).zip((self.up_row)(row)) {
            let factor = self.scale * up;
            values
                .iter_mut()
                .zip(down)
                .for_each(|(value, down)| *value += factor * down);
        }
        let squares = values.iter().map(|value| f64::from(*value) * f64::from(*value));
        squares.sum::<f64>().sqrt()
    }
}

/// How a projection's outputs are resized, so that the rows have these magnitudes.
pub(super) fn resizing<'b, Row: Fn(usize) -> &'b [f32] + Sync>(
    linear: &Linear,
    projection: Projection,
    delta: &Delta<'_, Row>,
    magnitudes: &[f32],
    pool: &ThreadPool,
) -> Result<Resizing, ModelFileError> {
    let (rows, cols) = (linear.weight.rows(), linear.weight.cols());
    let factors = Mutex::new(vec![0.0_f32; rows]);
    let run = pool.run(&[rows.div_ceil(PIECE_ROWS)], |piece| {
        let mut values = vec![0.0; cols];
        let first = piece.index * PIECE_ROWS;
        let mut found = Vec::with_capacity(PIECE_ROWS);
        for (row, magnitude) in magnitudes.iter().enumerate().skip(first).take(PIECE_ROWS) {
            linear.weight.row(row, &mut values);
            found.push((f64::from(*magnitude) / delta.length(row, &mut values)) as f32);
        }
        let mut factors = factors.lock().unwrap_or_else(PoisonError::into_inner);
        factors[first..first + found.len()].copy_from_slice(&found);
    });
    run.map_err(|error| invalid(format!("the rows' lengths cannot be computed: {error}")))?;
    let factors = factors.into_inner().unwrap_or_else(PoisonError::into_inner);
    if !factors.iter().all(|factor| factor.is_finite()) {
        return Err(invalid(
            "a row that DoRA resizes has no length, or an infinite one".to_owned(),
        ));
    }
    let bias = linear.bias.as_ref().filter(|_| projection.adds_bias_first());
    let shift = bias.map(|bias| {
        bias.iter()
            .zip(&factors)
            .map(|(bias, factor)| (1.0 - factor) * bias)
            .collect()
    });
    Ok(Resizing { factors, shift })
}
