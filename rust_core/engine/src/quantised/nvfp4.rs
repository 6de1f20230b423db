//! NVFP4: numbers of 4 bits (E2M1) in pairs, an e4m3 scale per 16 of a row, and one scale for all.
//!
//! compressed-tensors and NVIDIA's Model Optimizer name the tensors differently, and the first divides by the scale for all
//! where the second multiplies.

use super::matrix::{Numbers, QuantisedMatrix, Scales};
use super::scheme::Scheme;
use super::tensors::{Module, fault};
use crate::weights::{ModelFileError, StoredTensor};

/// What four bits are: a sign, two bits of an exponent, one of a fraction (OCP Microscaling Formats, version 1.0).
pub(super) const E2M1: [f32; 16] = [
    0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0,
];

/// The matrix of so many columns whose pairs are in a tensor called `end`.
pub(super) fn find<'a>(
    module: Module<'a, '_>,
    scheme: &Scheme,
    cols: usize,
    pairs: &StoredTensor<'a>,
    end: &str,
) -> Result<QuantisedMatrix<'a>, ModelFileError> {
    let kind = scheme
        .of(4, true)
        .ok_or_else(|| fault(pairs.name, "is of 4 bits, of which config.json says nothing"))?;
    let rows = pairs.dims.last().copied().unwrap_or(0);
    let pairs = module.expect(end, &[rows, cols.div_ceil(2)], &["U8"])?;
    let values = module.scales_of_8_bits("weight_scale", &[rows, cols.div_ceil(kind.group.max(1))])?;
    let (times, over) = match module.find("weight_global_scale")? {
        Some(_) => (1.0, module.one("weight_global_scale")?),
        None => (module.one("weight_scale_2")?, 1.0),
    };
    let scales = Scales::of_groups(values, times, over);
    let numbers = (pairs.name, Numbers::Pairs(pairs.bytes));
    QuantisedMatrix::of(module, kind, numbers, [rows, cols], scales, "weight_g_idx")
}
