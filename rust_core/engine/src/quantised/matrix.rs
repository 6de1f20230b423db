//! A quantised matrix of a folder: its tensors found and measured, and its numbers row by row.
//!
//! A weight is `(number - zero point) * scale`; the scale and the zero point are those of its row and its column's group.

use std::ops::Range;

use super::nvfp4;
use super::scheme::{Kind, Naming, Scheme};
use super::tensors::{Floats, Module, Words, fault};
use crate::weights::{ModelFileError, StoredTensor};

/// Where each of eight neighbours is in AWQ's words.
const AWQ_PLACES: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

/// Rows of a quantised matrix.
pub(crate) struct QuantisedMatrix<'a> {
    /// The name of the tensor that has the numbers.
    pub(super) name: &'a str,
    numbers: Numbers<'a>,
    zeros: Zeros<'a>,
    scales: Scales<'a>,
    pub(super) kind: Kind,
    /// Rows of the whole matrix.
    all_rows: usize,
    /// Which of them are meant.
    pub(super) rows: Range<usize>,
    pub(super) cols: usize,
    /// The group of each column.
    pub(super) groups: Vec<u32>,
    pub(super) num_groups: usize,
}

/// How numbers lie.
#[derive(Clone, Copy)]
pub(super) enum Numbers<'a> {
    /// Words of neighbours in a column of `[K, N]`.
    Gptq(Words<'a>),
    /// Words of neighbours in a row of `[K, N]`, in an order of their own.
    Awq(Words<'a>),
    /// Words of neighbours in a row of `[N, K]`.
    Packed(Words<'a>),
    /// Bytes of `[N, K]`.
    Bytes(&'a [u8]),
    /// Bytes of two neighbours in a row of `[N, K]`, the first lowest.
    Pairs(&'a [u8]),
}

/// How zero points lie.
#[derive(Clone, Copy)]
enum Zeros<'a> {
    /// All are this one.
    One(i16),
    /// Words of neighbours in a row of `[groups, N]`, to which something is added.
    Gptq(Words<'a>, u32),
    /// Likewise, in AWQ's order.
    Awq(Words<'a>),
    /// Words of neighbours in a column of `[N, groups]`.
    Packed(Words<'a>),
}

/// How scales lie.
#[derive(Clone, Copy)]
pub(super) struct Scales<'a> {
    values: Floats<'a>,
    by: By,
    /// What all are multiplied by, and divided by.
    times: f32,
    over: f32,
}

impl<'a> Scales<'a> {
    fn new(values: Floats<'a>, by: By) -> Self {
        let (times, over) = (1.0, 1.0);
        Self {
            values,
            by,
            times,
            over,
        }
    }

    /// A scale for each row's groups, times one for all, over another.
    pub(super) fn of_groups(values: Floats<'a>, times: f32, over: f32) -> Self {
        let by = By::RowAndGroup;
        Self {
            values,
            by,
            times,
            over,
        }
    }
}

#[derive(Clone, Copy)]
enum By {
    All,
    Row,
    RowAndGroup,
    GroupAndRow,
    /// Blocks of so many rows.
    Block(usize),
}

impl<'a> QuantisedMatrix<'a> {
    /// The matrix of so many columns, if the module is quantised. An error where a tensor is missing, or of another
    /// shape or type.
    pub(super) fn find(module: Module<'a, '_>, scheme: &Scheme, cols: usize) -> Result<Option<Self>, ModelFileError> {
        match scheme.naming {
            Naming::Gptq => gptq(module, scheme, cols),
            Naming::Awq => awq(module, scheme, cols),
            Naming::Compressed => match module.find("weight_packed")? {
                Some(numbers) => packed(module, scheme, cols, &numbers).map(Some),
                None => plain(module, scheme, cols),
            },
        }
    }

    pub(super) fn of(
        module: Module<'a, '_>,
        kind: Kind,
        numbers: (&'a str, Numbers<'a>),
        [all_rows, cols]: [usize; 2],
        scales: Scales<'a>,
        order: &str,
    ) -> Result<Self, ModelFileError> {
        let group = group_of(kind, cols);
        let num_groups = cols.div_ceil(group);
        let ordered = order_of(module, order, kind, cols, num_groups)?;
        Ok(Self {
            name: numbers.0,
            numbers: numbers.1,
            zeros: Zeros::One(0),
            scales,
            kind,
            all_rows,
            rows: 0..all_rows,
            cols,
            groups: ordered.unwrap_or_else(|| (0..cols).map(|column| (column / group) as u32).collect()),
            num_groups,
        })
    }

    /// Some of its rows; `None` where it has no such rows.
    pub(super) fn part(self, rows: &Range<usize>) -> Option<Self> {
        let rows = self.rows.start.checked_add(rows.start)?..self.rows.start.checked_add(rows.end)?;
        (rows.end <= self.rows.end).then_some(Self { rows, ..self })
    }

    /// The bytes of its numbers, all rows.
    pub(super) fn source(&self) -> &'a [u8] {
        match self.numbers {
            Numbers::Gptq(words) | Numbers::Awq(words) | Numbers::Packed(words) => words.bytes(),
            Numbers::Bytes(bytes) | Numbers::Pairs(bytes) => bytes,
        }
    }

    pub(super) fn scale_name(&self) -> &'a str {
        self.scales.values.name
    }

    pub(super) fn scale(&self, row: usize, group: usize) -> f32 {
        let (num_groups, num_rows) = (self.num_groups, self.all_rows);
        let value = self.scales.values.at(match self.scales.by {
            By::All => 0,
            By::Row => row,
            By::RowAndGroup => row * num_groups + group,
            By::GroupAndRow => group * num_rows + row,
            By::Block(rows) => row / rows * num_groups + group,
        });
        value * self.scales.times / self.scales.over
    }

    /// The zero point of numbers that are as far from it on both sides.
    pub(super) fn middle(&self) -> i16 {
        match self.numbers {
            Numbers::Bytes(_) => 0,
            _ => 1 << (self.kind.bits - 1),
        }
    }

    pub(super) fn zero(&self, row: usize, group: usize) -> i16 {
        let bits = self.kind.bits;
        let (per, most) = (32 / bits, (1 << bits) - 1);
        let words_of_rows = self.all_rows.div_ceil(per);
        match self.zeros {
            Zeros::One(zero) => zero,
            Zeros::Gptq(words, added) => {
                let stored = words.at(group * words_of_rows + row / per) >> (bits * (row % per));
                ((stored & most) + added) as i16 & most as i16 // 0 was written as the most, one less
            }
            Zeros::Awq(words) => {
                let stored = words.at(group * words_of_rows + row / per);
                (stored >> (4 * AWQ_PLACES[row % per]) & most) as i16
            }
            Zeros::Packed(words) => {
                let stored = words.at(row / per * self.num_groups + group);
                (stored >> (bits * (row % per)) & most) as i16
            }
        }
    }

    /// Writes the numbers of some rows, with what formats without a sign add to them; of floats, their bits.
    pub(super) fn unpack(&self, rows: &Range<usize>, out: &mut [i16]) {
        let (bits, cols) = (self.kind.bits, self.cols);
        let (per, most) = (32 / bits, (1u32 << bits) - 1);
        match self.numbers {
            Numbers::Gptq(words) => {
                for first in (0..cols).step_by(per) {
                    let line = words.run(first / per * self.all_rows + rows.start, rows.len());
                    for (word, row) in line.zip(out.chunks_exact_mut(cols)) {
                        for (place, number) in row[first..].iter_mut().take(per).enumerate() {
                            *number = (word >> (bits * place) & most) as i16;
                        }
                    }
                }
            }
            Numbers::Awq(words) => {
                let per_column = self.all_rows / per;
                for column in 0..cols {
                    for row in rows.clone() {
                        let word = words.at(column * per_column + row / per);
                        out[(row - rows.start) * cols + column] = (word >> (4 * AWQ_PLACES[row % per]) & most) as i16;
                    }
                }
            }
            Numbers::Packed(words) => {
                let per_row = cols.div_ceil(per);
                for (row, out) in rows.clone().zip(out.chunks_exact_mut(cols)) {
                    for (word, numbers) in words.run(row * per_row, per_row).zip(out.chunks_mut(per)) {
                        for (place, number) in numbers.iter_mut().enumerate() {
                            *number = (word >> (bits * place) & most) as i16;
                        }
                    }
                }
            }
            Numbers::Pairs(bytes) => {
                let per_row = cols.div_ceil(2);
                let bytes = &bytes[rows.start * per_row..rows.end * per_row];
                for (pairs, out) in bytes.chunks_exact(per_row).zip(out.chunks_exact_mut(cols)) {
                    for (column, number) in out.iter_mut().enumerate() {
                        *number = i16::from(pairs[column / 2] >> (4 * (column % 2)) & 0x0f);
                    }
                }
            }
            Numbers::Bytes(bytes) => {
                let bytes = &bytes[rows.start * cols..rows.end * cols];
                for (number, byte) in out.iter_mut().zip(bytes) {
                    *number = if self.kind.is_float {
                        i16::from(*byte)
                    } else {
                        i16::from(byte.cast_signed())
                    };
                }
            }
        }
    }
}

/// The columns of a matrix that share a scale.
fn group_of(kind: Kind, cols: usize) -> usize {
    if kind.group == 0 { cols } else { kind.group.min(cols) }
}

/// The group of each column, where a tensor of the file says it.
fn order_of(
    module: Module<'_, '_>,
    end: &str,
    kind: Kind,
    cols: usize,
    num_groups: usize,
) -> Result<Option<Vec<u32>>, ModelFileError> {
    if !kind.has_order && module.find(end)?.is_none() {
        return Ok(None);
    }
    let words = module.words(end, &[cols])?;
    let groups: Vec<u32> = words.all().collect();
    if groups.iter().any(|group| *group as usize >= num_groups) {
        let name = format!("{}.{end}", module.name);
        return Err(fault(
            &name,
            &format!("names a group that there is not: there are {num_groups}"),
        ));
    }
    Ok(Some(groups))
}

/// The last dimension of a matrix of two.
fn columns_of(tensor: &StoredTensor<'_>) -> Result<usize, ModelFileError> {
    match tensor.dims[..] {
        [columns, _] => Ok(columns),
        _ => {
            let shape: Vec<usize> = tensor.dims.iter().rev().copied().collect();
            Err(fault(tensor.name, &format!("is {shape:?}; expected rows and columns")))
        }
    }
}

fn gptq<'a>(
    module: Module<'a, '_>,
    scheme: &Scheme,
    cols: usize,
) -> Result<Option<QuantisedMatrix<'a>>, ModelFileError> {
    let (Some(kind), Some(numbers)) = (scheme.first(), module.find("qweight")?) else {
        return Ok(None);
    };
    let (rows, per, groups) = (
        columns_of(&numbers)?,
        32 / kind.bits,
        cols.div_ceil(group_of(kind, cols)),
    );
    let words = module.words("qweight", &[cols.div_ceil(per), rows])?;
    let values = module.floats("scales", &[groups, rows])?;
    let zeros = module.words("qzeros", &[groups, rows.div_ceil(per)])?;
    let by = By::GroupAndRow;
    let numbers = (numbers.name, Numbers::Gptq(words));
    let matrix = QuantisedMatrix::of(module, kind, numbers, [rows, cols], Scales::new(values, by), "g_idx")?;
    let zeros = Zeros::Gptq(zeros, u32::from(scheme.is_zero_one_less));
    Ok(Some(QuantisedMatrix { zeros, ..matrix }))
}

fn awq<'a>(
    module: Module<'a, '_>,
    scheme: &Scheme,
    cols: usize,
) -> Result<Option<QuantisedMatrix<'a>>, ModelFileError> {
    let (Some(kind), Some(numbers)) = (scheme.first(), module.find("qweight")?) else {
        return Ok(None);
    };
    let (words_of_rows, groups) = (columns_of(&numbers)?, cols.div_ceil(group_of(kind, cols)));
    let rows = 8 * words_of_rows;
    let words = module.words("qweight", &[cols, words_of_rows])?;
    let values = module.floats("scales", &[groups, rows])?;
    let zeros = Zeros::Awq(module.words("qzeros", &[groups, words_of_rows])?);
    let by = By::GroupAndRow;
    let numbers = (numbers.name, Numbers::Awq(words));
    let matrix = QuantisedMatrix::of(module, kind, numbers, [rows, cols], Scales::new(values, by), "g_idx")?;
    Ok(Some(QuantisedMatrix { zeros, ..matrix }))
}

fn packed<'a>(
    module: Module<'a, '_>,
    scheme: &Scheme,
    cols: usize,
    numbers: &StoredTensor<'a>,
) -> Result<QuantisedMatrix<'a>, ModelFileError> {
    if numbers.kind == "U8" {
        return nvfp4::find(module, scheme, cols, numbers, "weight_packed");
    }
    let bits = if columns_of(numbers)? == cols.div_ceil(4) { 8 } else { 4 };
    let kind = scheme.of(bits, false).ok_or_else(|| unknown(numbers.name, bits))?;
    let (rows, per, groups) = (numbers.dims[1], 32 / bits, cols.div_ceil(group_of(kind, cols)));
    let words = module.words("weight_packed", &[rows, cols.div_ceil(per)])?;
    let zeros = match kind.is_symmetric {
        true => Zeros::One(1 << (bits - 1)),
        false => Zeros::Packed(module.words("weight_zero_point", &[rows.div_ceil(per), groups])?),
    };
    let scales = scales(module, kind, [rows, groups])?;
    let numbers = (numbers.name, Numbers::Packed(words));
    let matrix = QuantisedMatrix::of(module, kind, numbers, [rows, cols], scales, "weight_g_idx")?;
    Ok(QuantisedMatrix { zeros, ..matrix })
}

/// Numbers of 8 bits in the matrix's own place.
fn plain<'a>(
    module: Module<'a, '_>,
    scheme: &Scheme,
    cols: usize,
) -> Result<Option<QuantisedMatrix<'a>>, ModelFileError> {
    let Some(numbers) = module.find("weight")? else {
        return Ok(None);
    };
    if numbers.kind == "U8" {
        return nvfp4::find(module, scheme, cols, &numbers, "weight").map(Some);
    }
    if !["F8_E4M3", "I8"].contains(&numbers.kind) {
        return Ok(None);
    }
    let is_float = numbers.kind == "F8_E4M3";
    let kind = scheme.of(8, is_float).ok_or_else(|| unknown(numbers.name, 8))?;
    if let (false, Some(zeros)) = (kind.is_symmetric, module.find("weight_zero_point")?) {
        return Err(fault(
            zeros.name,
            "is not implemented for numbers that are not packed; take the model as a GGUF file",
        ));
    }
    columns_of(&numbers)?;
    let (rows, groups) = (numbers.dims[1], cols.div_ceil(group_of(kind, cols)));
    let checked = module.expect("weight", &[rows, cols], &["F8_E4M3", "I8"])?;
    if is_float && checked.bytes.iter().any(|byte| byte & 0x7f == 0x7f) {
        return Err(fault(checked.name, "has numbers that are not finite"));
    }
    let scales = scales(module, kind, [rows, groups])?;
    let numbers = (checked.name, Numbers::Bytes(checked.bytes));
    QuantisedMatrix::of(module, kind, numbers, [rows, cols], scales, "weight_g_idx").map(Some)
}

fn unknown(name: &str, bits: usize) -> ModelFileError {
    fault(name, &format!("is of {bits} bits, of which config.json says nothing"))
}

/// compressed-tensors' scales: one for all, for each row, for its groups, or for blocks.
fn scales<'a>(module: Module<'a, '_>, kind: Kind, [rows, groups]: [usize; 2]) -> Result<Scales<'a>, ModelFileError> {
    let end = match module.find("weight_scale_inv")? {
        Some(_) => "weight_scale_inv",
        None => "weight_scale",
    };
    let tensor = module.tensor(end)?;
    let shape: Vec<usize> = tensor.dims.iter().rev().copied().collect();
    let (by, expected) = if kind.block_rows > 0 {
        (By::Block(kind.block_rows), vec![rows.div_ceil(kind.block_rows), groups])
    } else if groups == 1 && shape.iter().product::<usize>() == 1 {
        (By::All, shape)
    } else if groups == 1 && shape.len() == 1 {
        (By::Row, vec![rows])
    } else {
        (By::RowAndGroup, vec![rows, groups])
    };
    let values = module.floats(end, &expected)?;
    Ok(Scales::new(values, by))
}
