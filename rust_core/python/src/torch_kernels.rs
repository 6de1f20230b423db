//! Kernels over the torch runner's tensors on the CPU: what lies between its products, and attention of single queries.
//!
//! Tensors come as buffers, whose shapes are checked here; none is kept. What is written is the caller's alone meanwhile.

use std::cell::RefCell;
use std::path::PathBuf;

use pyagent_kernels::attention::{RowPages, RowSequence, attend_rows};
use pyagent_kernels::elementwise::{RopeStyle, add, gelu_tanh_mul, rms_norm, rope, silu_mul};
use pyagent_kernels::isa::Isa;
use pyo3::buffer::{Element, PyBuffer};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::torch_team::TorchTeam;

/// Numbers that are worth another thread.
const WORTH_A_THREAD: usize = 1 << 15;

thread_local! {
    static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Kernels for float32 tensors of torch's CPU device, in the threads of the torch library at `library`, where it has any.
#[pyclass(frozen, module = "pyagent._rust")]
pub struct TorchKernels {
    team: TorchTeam,
    isa: Isa,
}

#[pymethods]
impl TorchKernels {
    #[new]
    #[pyo3(signature = (library = None))]
    #[expect(clippy::needless_pass_by_value, reason = "what Python gives")]
    fn new(library: Option<PathBuf>) -> Self {
        Self {
            team: TorchTeam::of(library.as_deref()),
            isa: Isa::best(),
        }
    }

    /// Whether torch's threads are there; the caller's computes alone otherwise.
    #[getter]
    const fn has_threads(&self) -> bool {
        self.team.has_threads()
    }

    /// Attention of one query [n, Hq, D] of each sequence into `out`, over pages [P, 16, Hkv, D] by `tables` [n, W].
    #[pyo3(signature = (q, keys, values, tables, lengths, out, *, num_threads, scale, window = None))]
    #[expect(clippy::too_many_arguments, reason = "tensors, each its own")]
    fn attend(
        &self,
        py: Python<'_>,
        q: PyBuffer<f32>,
        keys: PyBuffer<f32>,
        values: PyBuffer<f32>,
        tables: PyBuffer<i32>,
        lengths: PyBuffer<i32>,
        out: PyBuffer<f32>,
        num_threads: usize,
        scale: f32,
        window: Option<usize>,
    ) -> PyResult<()> {
        let (queries, target) = (Tensor::of(&q)?, Target::of(&out)?);
        let (tables, lengths) = (Tensor::of(&tables)?, Tensor::of(&lengths)?);
        let ([num, num_heads, head_dim], [_, _, num_kv_heads, _]) = (dims(&q)?, dims(&keys)?);
        if dims::<3, _>(&out)? != [num, num_heads, head_dim] || num_kv_heads == 0 || num_heads % num_kv_heads != 0 {
            return Err(misfit("the queries"));
        }
        let cache = RowPages::new(
            Tensor::of(&keys)?.numbers,
            Tensor::of(&values)?.numbers,
            num_kv_heads,
            head_dim,
        );
        let cache = cache.ok_or_else(|| misfit("the keys and values"))?;
        let (lengths, width) = (lengths.numbers, tables.numbers.len().checked_div(num).unwrap_or(0));
        if lengths.len() != num || tables.numbers.len() != num * width || window == Some(0) {
            return Err(misfit("the page tables"));
        }
        let mut sequences = Vec::with_capacity(num);
        for (row, length) in lengths.iter().enumerate() {
            let pages = &tables.numbers[row * width..(row + 1) * width];
            let sequence = usize::try_from(*length)
                .ok()
                .and_then(|length| RowSequence::new(&cache, pages, length, window));
            sequences.push(sequence.ok_or_else(|| misfit("a sequence's pages"))?);
        }
        let group = num_heads / num_kv_heads * head_dim;
        let queries = queries.numbers;
        py.detach(|| {
            self.team.run(num_threads, num * num_kv_heads, &|unit| {
                let (sequence, kv_head) = (&sequences[unit / num_kv_heads], unit % num_kv_heads);
                let q = &queries[unit * group..(unit + 1) * group];
                // SAFETY: each unit has heads of its own.
                let out = unsafe { target.part(unit * group, group) };
                SCRATCH.with_borrow_mut(|scratch| {
                    attend_rows(self.isa, &cache, sequence, kv_head, scale, q, out, scratch);
                });
            });
        });
        Ok(())
    }

    /// RMSNorm of `x` [..., D] into `out`; with a `branch`, of `x + branch`, which goes to `total`.
    #[pyo3(signature = (x, weight, out, *, epsilon, num_threads, branch = None, total = None))]
    #[expect(clippy::too_many_arguments, reason = "tensors, each its own")]
    fn rms_norm(
        &self,
        py: Python<'_>,
        x: PyBuffer<f32>,
        weight: PyBuffer<f32>,
        out: PyBuffer<f32>,
        epsilon: f32,
        num_threads: usize,
        branch: Option<PyBuffer<f32>>,
        total: Option<PyBuffer<f32>>,
    ) -> PyResult<()> {
        let (x, weight, out) = (Tensor::of(&x)?.numbers, Tensor::of(&weight)?.numbers, Target::of(&out)?);
        let branch = branch.as_ref().map(Tensor::of).transpose()?;
        let total = total.as_ref().map(Target::of).transpose()?;
        let width = weight.len();
        let is_even = width > 0 && x.len().is_multiple_of(width) && out.len == x.len();
        let sum = match (branch, total) {
            (None, None) => None,
            (Some(branch), Some(total)) if branch.numbers.len() == x.len() && total.len == x.len() => {
                Some((branch.numbers, total))
            }
            _ => return Err(misfit("the branch")),
        };
        if !is_even {
            return Err(misfit("the norm"));
        }
        py.detach(|| {
            self.rows(num_threads, x.len() / width, width, &|row| {
                let (start, here) = (row * width, row * width..(row + 1) * width);
                // SAFETY: each row is its own.
                let out = unsafe { out.part(start, width) };
                let Some((branch, total)) = sum else {
                    return rms_norm(self.isa, &x[here], weight, epsilon, out);
                };
                // SAFETY: as above.
                let total = unsafe { total.part(start, width) };
                total.copy_from_slice(&x[here.clone()]);
                add(self.isa, total, &branch[here]);
                rms_norm(self.isa, total, weight, epsilon, out);
            });
        });
        Ok(())
    }

    /// The activated first half of the columns of `gate_up` [T, 2 F] times the second, into `out` [T, F].
    #[pyo3(signature = (gate_up, out, *, is_silu, num_threads))]
    #[expect(clippy::needless_pass_by_value, reason = "what Python gives")]
    fn gated(
        &self,
        py: Python<'_>,
        gate_up: PyBuffer<f32>,
        out: PyBuffer<f32>,
        is_silu: bool,
        num_threads: usize,
    ) -> PyResult<()> {
        let ([num, width], [num_out, half]) = (dims(&gate_up)?, dims(&out)?);
        if num != num_out || width != 2 * half {
            return Err(misfit("the gate"));
        }
        let (gate_up, out) = (Tensor::of(&gate_up)?.numbers, Target::of(&out)?);
        py.detach(|| {
            self.rows(num_threads, num, width, &|row| {
                let (gate, up) = gate_up[row * width..(row + 1) * width].split_at(half);
                // SAFETY: each row is its own.
                let out = unsafe { out.part(row * half, half) };
                out.copy_from_slice(up);
                let gated = if is_silu { silu_mul } else { gelu_tanh_mul };
                gated(self.isa, out, gate);
            });
        });
        Ok(())
    }

    /// Turns queries [T, Hq, D] by cosines and sines [T, 1, R / 2] into `out`, and puts keys turned, and values, into the
    /// `rows` [T] of pages [P, 16, Hkv, D]. Tokens of heads may lie apart, their numbers may not.
    #[pyo3(signature = (heads, cos_sin, rows, keys, values, out, *, is_interleaved, num_threads))]
    #[expect(clippy::too_many_arguments, reason = "tensors, each its own")]
    fn rotate_and_store(
        &self,
        py: Python<'_>,
        heads: (PyBuffer<f32>, PyBuffer<f32>, PyBuffer<f32>),
        cos_sin: (PyBuffer<f32>, PyBuffer<f32>),
        rows: PyBuffer<i64>,
        keys: PyBuffer<f32>,
        values: PyBuffer<f32>,
        out: PyBuffer<f32>,
        is_interleaved: bool,
        num_threads: usize,
    ) -> PyResult<()> {
        let [q, k, v] = [Heads::of(&heads.0)?, Heads::of(&heads.1)?, Heads::of(&heads.2)?];
        let (cos, sin) = (Tensor::of(&cos_sin.0)?.numbers, Tensor::of(&cos_sin.1)?.numbers);
        let (targets, out) = ([Target::of(&keys)?, Target::of(&values)?], Target::of(&out)?);
        let rows = Tensor::of(&rows)?.numbers;
        let (num, kv_width) = (q.num, k.width);
        let half = cos.len().checked_div(num).unwrap_or(0);
        let fits = [k.num, v.num, rows.len()] == [num; 3] && [k.head_dim, v.head_dim] == [q.head_dim; 2];
        let has_angles = cos.len() == num * half && sin.len() == cos.len() && 2 * half <= q.head_dim;
        if !fits || !has_angles || v.width != kv_width || kv_width == 0 || out.len != num * q.width {
            return Err(misfit("the heads"));
        }
        let num_places = targets[0].len / kv_width;
        let is_there = |row: &i64| usize::try_from(*row).is_ok_and(|row| row < num_places);
        if targets[0].len != targets[1].len || !rows.iter().all(is_there) {
            return Err(misfit("the pages"));
        }
        let style = if is_interleaved {
            RopeStyle::Interleaved
        } else {
            RopeStyle::Neox
        };
        py.detach(|| {
            let turn = |token: usize, heads: &mut [f32]| {
                let angles = token * half..(token + 1) * half;
                for head in heads.chunks_exact_mut(q.head_dim) {
                    rope(self.isa, head, &cos[angles.clone()], &sin[angles.clone()], style);
                }
            };
            self.rows(num_threads, num, q.width, &|token| {
                // SAFETY: each token has its own row.
                let out = unsafe { out.part(token * q.width, q.width) };
                out.copy_from_slice(q.row(token));
                turn(token, out);
            });
            // In this thread alone, as rows of padding go to the same place.
            for (token, row) in rows.iter().enumerate() {
                let place = *row as usize * kv_width;
                // SAFETY: nobody else writes to the pages meanwhile.
                let [key, value] = unsafe { [targets[0].part(place, kv_width), targets[1].part(place, kv_width)] };
                key.copy_from_slice(k.row(token));
                turn(token, key);
                value.copy_from_slice(v.row(token));
            }
        });
        Ok(())
    }
}

impl TorchKernels {
    /// Does the work of rows of `width` numbers, in other threads too where it is worth it.
    fn rows(&self, num_threads: usize, num: usize, width: usize, work: &(dyn Fn(usize) + Sync)) {
        let at_once = (WORTH_A_THREAD / 2 / width.max(1)).max(1);
        let num_threads = if num * width < WORTH_A_THREAD { 1 } else { num_threads };
        self.team.run(num_threads, num.div_ceil(at_once), &|piece| {
            for row in piece * at_once..num.min((piece + 1) * at_once) {
                work(row);
            }
        });
    }
}

fn misfit(what: &str) -> PyErr {
    PyValueError::new_err(format!("{what} do not fit the other tensors"))
}

/// The sizes of a buffer of `N` dimensions.
fn dims<const N: usize, T: Element>(buffer: &PyBuffer<T>) -> PyResult<[usize; N]> {
    let found = buffer.shape().try_into();
    found.map_err(|_| PyValueError::new_err(format!("expected {N} dimensions, got {}", buffer.dimensions())))
}

/// A tensor's numbers, side by side.
struct Tensor<'a, T> {
    numbers: &'a [T],
}

impl<'a, T: Element> Tensor<'a, T> {
    fn of(buffer: &'a PyBuffer<T>) -> PyResult<Self> {
        if !buffer.is_c_contiguous() {
            return Err(PyValueError::new_err(
                "expected a tensor whose numbers lie side by side",
            ));
        }
        let numbers = match buffer.item_count() {
            0 => &[],
            // SAFETY: the buffer holds so many numbers while it is borrowed; torch's operations follow each other, so that
            // none writes them meanwhile.
            count => unsafe { std::slice::from_raw_parts(buffer.buf_ptr().cast(), count) },
        };
        Ok(Self { numbers })
    }
}

/// Memory that is written in parts, each by one thread.
#[derive(Clone, Copy)]
struct Target {
    start: *mut f32,
    len: usize,
}

// SAFETY: whoever takes a part promises that no other thread has it.
unsafe impl Sync for Target {}

impl Target {
    fn of(buffer: &PyBuffer<f32>) -> PyResult<Self> {
        if buffer.readonly() || !buffer.is_c_contiguous() {
            return Err(PyValueError::new_err(
                "expected a tensor to write, whose numbers lie side by side",
            ));
        }
        Ok(Self {
            start: buffer.buf_ptr().cast(),
            len: buffer.item_count(),
        })
    }

    /// Some of the numbers.
    ///
    /// # Safety
    /// Nobody else uses them, and the buffer lives.
    #[expect(clippy::mut_from_ref, reason = "parts that do not overlap")]
    unsafe fn part(&self, start: usize, len: usize) -> &mut [f32] {
        assert!(start + len <= self.len, "beyond the tensor");
        // SAFETY: they are within the buffer; the caller promises the rest.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(start), len) }
    }
}

/// Heads [T, H, D] whose tokens may lie apart.
#[derive(Clone, Copy)]
struct Heads {
    start: *const f32,
    num: usize,
    stride: usize,
    width: usize,
    head_dim: usize,
}

// SAFETY: they are only read.
unsafe impl Sync for Heads {}

impl Heads {
    fn of(buffer: &PyBuffer<f32>) -> PyResult<Self> {
        const NUMBER: isize = size_of::<f32>() as isize;
        let [num, num_heads, head_dim] = dims(buffer)?;
        let [between, heads, numbers] = buffer.strides() else {
            return Err(misfit("the heads"));
        };
        let width = num_heads * head_dim;
        let is_whole = *numbers == NUMBER && (num_heads == 1 || *heads == NUMBER * head_dim as isize);
        let stride = usize::try_from(between / NUMBER).unwrap_or(0);
        if head_dim == 0 || !is_whole || (num > 1 && stride < width) {
            return Err(PyValueError::new_err("expected heads whose numbers lie side by side"));
        }
        Ok(Self {
            start: buffer.buf_ptr().cast(),
            num,
            stride,
            width,
            head_dim,
        })
    }

    /// A token's numbers.
    fn row(&self, token: usize) -> &[f32] {
        assert!(token < self.num, "no such token");
        // SAFETY: the token's heads lie in the buffer by its shape and strides, which were checked, while the call lasts.
        unsafe { std::slice::from_raw_parts(self.start.add(token * self.stride), self.width) }
    }
}
