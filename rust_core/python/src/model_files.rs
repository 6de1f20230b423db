//! `read_model_header` and `dequantise`: what is in a model file, for the tokenizer, tools and tests.

use std::path::PathBuf;

use pyagent_engine::gguf::{MetadataArray, MetadataValue};
use pyagent_engine::tensorizer::{self, SumKind};
use pyagent_engine::weights::{self, ModelFile};
use pyagent_kernels::ggml::{self, GgmlError, GgmlType};
use pyo3::IntoPyObjectExt;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::engine::ModelFileError;
use crate::vocabulary::Texts;

/// Name, dimensions (the contiguous one first), element type, bytes.
type TensorRow = (String, Vec<usize>, &'static str, usize);

/// What the header of a GGUF file, or of a folder of safetensors, says; tensors' bytes are not read.
///
/// A dict of `file_bytes`, `metadata` (empty for a folder, whose `config.json` says it) and `tensors`, rows of
/// (name, dimensions with the contiguous one first, element type, bytes). Without `arrays` the metadata's arrays, such as
/// the vocabulary, are left out; `packed` arrays of strings are `Texts`. Raises `ModelFileError`.
#[pyfunction]
#[pyo3(signature = (path, *, arrays = true, packed = false))]
pub fn read_model_header(py: Python<'_>, path: PathBuf, arrays: bool, packed: bool) -> PyResult<Bound<'_, PyDict>> {
    let file = py
        .detach(|| ModelFile::open(&path))
        .map_err(|error| file_error(&error))?;
    let tensors: Vec<TensorRow> = file
        .tensors()
        .map(|tensor| {
            (
                tensor.name.to_owned(),
                tensor.dims.to_vec(),
                tensor.kind.name(),
                tensor.bytes.len(),
            )
        })
        .collect();
    let metadata = PyDict::new(py);
    if let ModelFile::Gguf(gguf) = &file {
        for (key, value) in gguf.metadata() {
            match value {
                MetadataValue::Array(_) if !arrays => {}
                MetadataValue::Array(MetadataArray::String(texts)) if packed => {
                    let inner = texts.iter().collect();
                    metadata.set_item(key, Texts { inner })?;
                }
                _ => metadata.set_item(key, value_object(py, value)?)?,
            }
        }
    }
    let header = PyDict::new(py);
    header.set_item("file_bytes", file.file_bytes())?;
    header.set_item("metadata", metadata)?;
    header.set_item("tensors", tensors)?;
    Ok(header)
}

/// Kind, first byte, byte after the last.
type Checksum = (&'static str, usize, usize);

/// Name, the header's start and end, the end, checksums.
type SumsRow = (String, usize, usize, usize, Vec<Checksum>);

/// What the checksums in a file of tensorizer's are of; no tensor is read.
///
/// Of each tensor: its name, where its header starts, where its bytes start (the header's end) and end, and its
/// checksums, which were zeros when they were computed over all that. Raises `ModelFileError`.
#[pyfunction]
pub fn tensor_checksums(py: Python<'_>, path: PathBuf) -> PyResult<Vec<SumsRow>> {
    let sums = py
        .detach(|| tensorizer::sums_of(&path))
        .map_err(|error| file_error(&error))?;
    let row = |of: tensorizer::TensorSums| {
        let places = of.places.into_iter().map(|(kind, place)| {
            let kind = match kind {
                SumKind::Crc32 => "CRC-32",
                SumKind::Sha256 => "SHA-256",
            };
            (kind, place.start, place.end)
        });
        (of.name, of.header.start, of.header.end, of.end, places.collect())
    };
    Ok(sums.into_iter().map(row).collect())
}

/// The numbers in whole blocks of an element type such as `Q4_K`, as little-endian f32.
#[pyfunction]
pub fn dequantise<'py>(py: Python<'py>, type_name: &str, data: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    let kind = element_type(type_name)?;
    // `data` is a bytes object, which nobody can change while the GIL is free.
    let bytes = py
        .detach(|| dequantised_bytes(kind, data))
        .map_err(|error| PyValueError::new_err(error.to_string()))?;
    Ok(PyBytes::new(py, &bytes))
}

/// Numbers as whole blocks of an element type such as `Q4_K`; `values` is a buffer of 32-bit floats.
///
/// Nothing may write to the buffer meanwhile: the GIL is free. Raises `ValueError` for numbers the type cannot hold, and
/// for a type that is read but not written.
#[pyfunction]
pub fn quantise<'py>(
    py: Python<'py>,
    type_name: &str,
    values: PyBuffer<f32>,
    threads: usize,
) -> PyResult<Bound<'py, PyBytes>> {
    let kind = element_type(type_name)?;
    let values = floats_in(&values)?;
    let invalid = |error: GgmlError| PyValueError::new_err(error.to_string());
    let num_bytes = kind.row_bytes(values.len()).map_err(invalid)?;
    PyBytes::new_with(py, num_bytes, |out| {
        py.detach(|| ggml::quantise(kind, values, out, threads))
            .map_err(invalid)
    })
}

fn element_type(name: &str) -> PyResult<GgmlType> {
    GgmlType::from_name(name).ok_or_else(|| {
        let known: Vec<_> = GgmlType::ALL.iter().map(|kind| kind.name()).collect();
        PyValueError::new_err(format!(
            "element type {name:?} is not known; expected one of {}",
            known.join(", ")
        ))
    })
}

pub(crate) fn floats_in(values: &PyBuffer<f32>) -> PyResult<&[f32]> {
    if !values.is_c_contiguous() {
        return Err(PyValueError::new_err("the buffer's numbers do not lie side by side"));
    }
    if values.item_count() == 0 {
        return Ok(&[]); // it may have no address
    }
    // SAFETY: the buffer is contiguous, of aligned 32-bit floats, and stays exported while it is borrowed; the caller has
    // promised that nothing writes to it meanwhile.
    Ok(unsafe { std::slice::from_raw_parts(values.buf_ptr().cast::<f32>(), values.item_count()) })
}

fn dequantised_bytes(kind: GgmlType, data: &[u8]) -> Result<Vec<u8>, GgmlError> {
    let mut values = vec![0.0f32; data.len() / kind.block_bytes() * kind.block_elements()];
    ggml::dequantise(kind, data, &mut values)?;
    Ok(values.iter().flat_map(|value| value.to_le_bytes()).collect())
}

pub(crate) fn file_error(error: &weights::ModelFileError) -> PyErr {
    ModelFileError::new_err(error.to_string())
}

fn value_object<'py>(py: Python<'py>, value: &MetadataValue) -> PyResult<Bound<'py, PyAny>> {
    match value {
        MetadataValue::U8(number) => number.into_bound_py_any(py),
        MetadataValue::I8(number) => number.into_bound_py_any(py),
        MetadataValue::U16(number) => number.into_bound_py_any(py),
        MetadataValue::I16(number) => number.into_bound_py_any(py),
        MetadataValue::U32(number) => number.into_bound_py_any(py),
        MetadataValue::I32(number) => number.into_bound_py_any(py),
        MetadataValue::F32(number) => number.into_bound_py_any(py),
        MetadataValue::Bool(truth) => truth.into_bound_py_any(py),
        MetadataValue::String(text) => text.into_bound_py_any(py),
        MetadataValue::Array(array) => array_object(py, array),
        MetadataValue::U64(number) => number.into_bound_py_any(py),
        MetadataValue::I64(number) => number.into_bound_py_any(py),
        MetadataValue::F64(number) => number.into_bound_py_any(py),
    }
}

fn array_object<'py>(py: Python<'py>, array: &MetadataArray) -> PyResult<Bound<'py, PyAny>> {
    match array {
        // As integers: bytes would be turned into a bytes object.
        MetadataArray::U8(numbers) => {
            let numbers: Vec<u16> = numbers.iter().copied().map(u16::from).collect();
            numbers.into_bound_py_any(py)
        }
        MetadataArray::I8(numbers) => numbers.into_bound_py_any(py),
        MetadataArray::U16(numbers) => numbers.into_bound_py_any(py),
        MetadataArray::I16(numbers) => numbers.into_bound_py_any(py),
        MetadataArray::U32(numbers) => numbers.into_bound_py_any(py),
        MetadataArray::I32(numbers) => numbers.into_bound_py_any(py),
        MetadataArray::F32(numbers) => numbers.into_bound_py_any(py),
        MetadataArray::Bool(truths) => truths.into_bound_py_any(py),
        MetadataArray::String(texts) => texts.into_bound_py_any(py),
        MetadataArray::Array(arrays) => {
            let objects = arrays
                .iter()
                .map(|array| array_object(py, array))
                .collect::<PyResult<Vec<_>>>()?;
            objects.into_bound_py_any(py)
        }
        MetadataArray::U64(numbers) => numbers.into_bound_py_any(py),
        MetadataArray::I64(numbers) => numbers.into_bound_py_any(py),
        MetadataArray::F64(numbers) => numbers.into_bound_py_any(py),
    }
}
