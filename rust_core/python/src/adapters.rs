//! `AdapterFile`: an adapter opened for a model, and what it takes, before it is loaded.

use std::path::PathBuf;
use std::sync::Arc;

use pyagent_engine::adapters::{self, AdapterLoader};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::engine::CpuModel;
use crate::model_files::file_error;

/// What an adapter's file says of itself: a dict of `method` (LoRA, rsLoRA, DoRA), `rank` (the largest), `targets` (ends
/// of matrices' names) and `tensor_bytes`. It is not checked against a model. Raises `ModelFileError`.
#[pyfunction]
pub fn describe_adapter(py: Python<'_>, path: PathBuf) -> PyResult<Bound<'_, PyDict>> {
    let about = py.detach(|| adapters::AdapterAbout::of(&path));
    let about = about.map_err(|error| file_error(&error))?;
    let described = PyDict::new(py);
    described.set_item("method", about.method)?;
    described.set_item("rank", about.rank)?;
    described.set_item("targets", about.targets)?;
    described.set_item("tensor_bytes", about.tensor_bytes)?;
    Ok(described)
}

/// The files of an adapter, or of several that add up, checked against a model of this machine's CPU.
#[pyclass(frozen, module = "pyagent._rust")]
pub struct AdapterFile {
    inner: adapters::AdapterStack,
    loader: AdapterLoader,
}

#[pymethods]
impl AdapterFile {
    /// Opens a folder of peft's or a GGUF file, and checks it against the model; with `more` of them all add up. Raises
    /// `ModelFileError`.
    #[staticmethod]
    #[pyo3(signature = (model, path, *more))]
    fn open(py: Python<'_>, model: &CpuModel, path: PathBuf, more: Vec<PathBuf>) -> PyResult<Self> {
        let loader = model.lock_attached(py)?.adapter_loader();
        let paths = [vec![path], more].concat();
        let inner = py.detach(|| loader.open(&paths)).map_err(|error| file_error(&error))?;
        Ok(Self { inner, loader })
    }

    /// Bytes that it takes when it is loaded.
    #[getter]
    fn bytes(&self) -> usize {
        self.inner.bytes()
    }

    /// Its largest rank.
    #[getter]
    fn rank(&self) -> usize {
        self.inner.rank()
    }

    /// Matrices that it adds to.
    #[getter]
    fn num_modules(&self) -> usize {
        self.inner.num_modules()
    }

    /// Whether it is a DoRA, which does not add up with others.
    #[getter]
    fn is_dora(&self) -> bool {
        self.inner.is_dora()
    }

    /// Bytes that steps of up to so many tokens take for adapters of this rank, beside what they take without.
    fn step_bytes(&self, num_tokens: usize) -> usize {
        self.loader.step_bytes(num_tokens, self.inner.rank())
    }

    /// Loads it: sequences of the model's that name `adapter_id` are computed with it from now on. Raises
    /// `ModelFileError`.
    fn load(&self, py: Python<'_>, model: &CpuModel, adapter_id: u64) -> PyResult<()> {
        if adapter_id == 0 {
            return Err(PyValueError::new_err("adapter 0 is the bare model"));
        }
        let loaded = py
            .detach(|| self.loader.load(&self.inner))
            .map_err(|error| file_error(&error))?;
        model.lock_attached(py)?.add_adapter(adapter_id, loaded);
        Ok(())
    }
}

/// The bytes of a file that are a tensor's, to which something is added: name, first byte, byte after it, rows.
type AddedTo = (String, usize, usize, usize);

/// A folder of safetensors, and adapters that are merged into it, checked against each other.
#[pyclass(frozen, module = "pyagent._rust")]
pub struct AdapterMerge {
    inner: Arc<adapters::AdapterMerge>,
}

#[pymethods]
impl AdapterMerge {
    /// Opens a model's folder, and folders of peft's. Raises `ModelFileError`.
    #[staticmethod]
    fn open(py: Python<'_>, model: PathBuf, adapters: Vec<PathBuf>) -> PyResult<Self> {
        let opened = py.detach(|| adapters::AdapterMerge::open(&model, &adapters));
        let inner = Arc::new(opened.map_err(|error| file_error(&error))?);
        Ok(Self { inner })
    }

    /// The model's files: path, bytes, and the tensors in it that are added to, rows of (name, first byte, byte after the
    /// last, rows) in the order of the file.
    fn shards(&self) -> Vec<(PathBuf, usize, Vec<AddedTo>)> {
        let shards = self.inner.shards().into_iter().map(|shard| {
            let tensors = shard.tensors.into_iter();
            let tensors = tensors.map(|(name, range, rows)| (name.to_owned(), range.start, range.end, rows));
            (shard.path.to_owned(), shard.bytes, tensors.collect())
        });
        shards.collect()
    }

    /// Reads what is added to a tensor. Raises `ModelFileError`.
    fn tensor(&self, py: Python<'_>, name: &str) -> PyResult<MergedTensor> {
        let read = py.detach(|| self.inner.tensor(name));
        let inner = read.map_err(|error| file_error(&error))?;
        let merge = Arc::clone(&self.inner);
        Ok(MergedTensor { merge, inner })
    }
}

/// A tensor and what is added to it.
#[pyclass(frozen, module = "pyagent._rust")]
pub struct MergedTensor {
    merge: Arc<adapters::AdapterMerge>,
    inner: adapters::MergedTensor,
}

#[pymethods]
impl MergedTensor {
    /// So many rows from one on as they are written, in the model's own type. Raises `ModelFileError`.
    fn rows<'py>(&self, py: Python<'py>, first: usize, count: usize, threads: usize) -> PyResult<Bound<'py, PyBytes>> {
        let rows = first..first.saturating_add(count);
        let merged = py.detach(|| self.merge.rows(&self.inner, &rows, threads));
        Ok(PyBytes::new(py, &merged.map_err(|error| file_error(&error))?))
    }
}
