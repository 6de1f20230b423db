//! `TokenIndex`: what came after a text's last tokens before.

use std::sync::{Mutex, MutexGuard};

use pyagent_text::token_index;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

/// The last tokens of some texts, to propose from them what comes next.
#[pyclass(frozen, module = "pyagent._rust")]
pub struct TokenIndex(Mutex<token_index::TokenIndex>);

#[pymethods]
impl TokenIndex {
    /// It holds `most_tokens` at most, 16 bytes each; matches have `least` tokens at least.
    #[new]
    fn new(least: usize, most_tokens: usize) -> PyResult<Self> {
        if least == 0 || most_tokens == 0 {
            return Err(PyValueError::new_err(
                "least and most_tokens: expected 1 or more, got 0",
            ));
        }
        Ok(Self(Mutex::new(token_index::TokenIndex::new(least, most_tokens))))
    }

    /// Goes on with the present text.
    fn extend(&self, tokens: Vec<u32>) -> PyResult<()> {
        self.lock()?.extend(&tokens);
        Ok(())
    }

    /// Ends the present text: no match and no proposal reaches across.
    fn end_text(&self) -> PyResult<()> {
        self.lock()?.end_text();
        Ok(())
    }

    /// What came after `text`'s last tokens where they were before: `most` tokens at most, for each the share of the
    /// places that went on so, and how many tokens matched.
    fn propose(&self, text: Vec<u32>, most: usize) -> PyResult<(Vec<u32>, Vec<f32>, usize)> {
        let found = self.lock()?.propose(&text, most);
        Ok((found.tokens, found.shares, found.num_matched))
    }

    /// Bytes held.
    #[getter]
    fn num_bytes(&self) -> PyResult<usize> {
        Ok(self.lock()?.num_bytes())
    }

    /// Tokens held.
    #[getter]
    fn num_tokens(&self) -> PyResult<usize> {
        Ok(self.lock()?.num_tokens())
    }
}

impl TokenIndex {
    fn lock(&self) -> PyResult<MutexGuard<'_, token_index::TokenIndex>> {
        let failed = |_| PyRuntimeError::new_err("this index failed in another thread; make a new one");
        self.0.lock().map_err(failed)
    }
}
