//! `Texts`: a model file's tokens or merges without a Python object for each, and what a tokenizer is built from.

use pyagent_engine::vocabulary;
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString};

/// Texts by number.
#[pyclass(frozen, sequence, module = "pyagent._rust")]
pub struct Texts {
    pub(crate) inner: vocabulary::Texts,
}

#[pymethods]
impl Texts {
    #[new]
    fn new(texts: Vec<String>) -> Self {
        let inner = texts.iter().collect();
        Self { inner }
    }

    fn __len__(&self) -> usize {
        self.inner.len()
    }

    fn __getitem__(&self, index: usize) -> PyResult<&str> {
        let count = self.inner.len();
        let missing = || PyIndexError::new_err(format!("text {index} of {count}"));
        self.inner.get(index).ok_or_else(missing)
    }

    /// A JSON object with the number of each text.
    fn to_json<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let json = py.detach(|| self.inner.to_json());
        PyBytes::new(py, &json)
    }

    /// The texts as lines of a file of merges. Raises `ValueError` for one that is not two tokens with a space between.
    fn to_merge_lines<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let lines = py.detach(|| self.inner.to_merge_lines());
        let lines = lines.map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(PyBytes::new(py, &lines))
    }

    /// Every way to make a text of two others, if its number is in `made`; the text with the best score first.
    fn merges_by_score<'py>(
        &self,
        py: Python<'py>,
        made: Vec<usize>,
        scores: Vec<f32>,
    ) -> PyResult<Bound<'py, PyList>> {
        let merges = py.detach(|| {
            let mut is_made = vec![false; self.inner.len()];
            for index in made {
                if let Some(flag) = is_made.get_mut(index) {
                    *flag = true;
                }
            }
            self.inner.merges_by_score(|index| is_made[index], &scores)
        });
        // One object for each text, in however many merges it is.
        let texts: Vec<_> = self.inner.iter().map(|text| PyString::new(py, text)).collect();
        let pairs = merges
            .iter()
            .map(|&(left, right)| (&texts[left as usize], &texts[right as usize]));
        PyList::new(py, pairs.collect::<Vec<_>>())
    }
}
