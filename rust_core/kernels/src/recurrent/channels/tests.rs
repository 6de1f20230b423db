//! Mamba's scan against the paper's recurrence in `f64`, and against itself: cut anywhere, on every instruction set.

use super::super::tests::{expect_near, numbers};
use super::super::{CELL_CHANNELS as C, matrix_len};
use super::*;

struct Channels {
    x: Vec<f32>,
    gate: Vec<f32>,
    steps: Vec<f32>,
    along: Vec<f32>,
    log_decays: Vec<f32>,
    skips: Vec<f32>,
    state_size: usize,
    num_tokens: usize,
}

impl Channels {
    fn new(state_size: usize, num_tokens: usize) -> Self {
        Self {
            x: numbers(num_tokens * C, 1),
            gate: numbers(num_tokens * C, 2),
            // Steps of a thousandth to two, as those of models.
            steps: numbers(num_tokens * C, 3).iter().map(|x| 4.0 * x - 2.0).collect(),
            along: numbers(num_tokens * 2 * state_size, 4),
            log_decays: numbers(state_size * C, 5).iter().map(|x| -4.0 * x.abs()).collect(),
            skips: numbers(C, 6),
            state_size,
            num_tokens,
        }
    }

    /// Outputs and states by runs of so many tokens.
    fn run(&self, isa: Isa, run: usize) -> (Vec<f32>, Vec<f32>) {
        let (mut steps, mut state) = (self.steps.clone(), vec![0.0; matrix_len(self.state_size)]);
        for start in (0..self.num_tokens).step_by(run) {
            let (at, along) = (start * C, start * 2 * self.state_size);
            let work = ChannelScan {
                b: self.along[along..].as_ptr(),
                c: self.along[along + self.state_size..].as_ptr(),
                along_stride: 2 * self.state_size,
                state_size: self.state_size,
                x: self.x[at..].as_ptr(),
                gate: self.gate[at..].as_ptr(),
                stride: C,
                steps: steps[at..].as_mut_ptr(),
                step_stride: C,
                log_decays: &self.log_decays,
                skips: &self.skips,
                num_tokens: run.min(self.num_tokens - start),
                state: state.as_mut_ptr(),
            };
            // SAFETY: the vectors hold the tokens and the state.
            unsafe { scan_channels(isa, &work) };
        }
        (steps, state)
    }

    /// The paper's recurrence in `f64`.
    fn expected(&self) -> Vec<f64> {
        let n = self.state_size;
        let mut state = vec![[0.0_f64; C]; n];
        let mut outputs = Vec::new();
        for token in 0..self.num_tokens {
            let (b, c) = self.along[token * 2 * n..(token + 1) * 2 * n].split_at(n);
            for channel in 0..C {
                let at = |values: &[f32]| f64::from(values[token * C + channel]);
                let (x, gate, step) = (at(&self.x), at(&self.gate), at(&self.steps).exp().ln_1p());
                let mut sum = f64::from(self.skips[channel]) * x;
                for (number, row) in state.iter_mut().enumerate() {
                    let decay = (f64::from(self.log_decays[number * C + channel]) * step).exp();
                    row[channel] = decay * row[channel] + f64::from(b[number]) * step * x;
                    sum += row[channel] * f64::from(c[number]);
                }
                outputs.push(sum * gate / (1.0 + (-gate).exp()));
            }
        }
        outputs
    }
}

/// Mamba's state space is the paper's in `f64`.
#[test]
fn scan_of_channels_is_that_of_the_paper() {
    for state_size in [16, 1, 33] {
        let channels = Channels::new(state_size, 50);
        let (outputs, _) = channels.run(Isa::Scalar, 50);
        expect_near(&outputs, &channels.expected(), 1e-5);
    }
}

/// Cut into runs of any length, on every instruction set, outputs and states have the same bits.
#[test]
fn scan_of_channels_has_the_same_bits_however_it_is_cut() {
    let channels = Channels::new(18, 40);
    let whole = channels.run(Isa::Scalar, 40);
    for isa in Isa::available() {
        for run in [1, 3, 16, 40] {
            assert_eq!(channels.run(isa, run), whole, "{} in runs of {run}", isa.name());
        }
    }
}
