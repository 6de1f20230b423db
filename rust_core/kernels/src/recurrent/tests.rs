//! The kernels against plain loops in `f64`, and against themselves: cut anywhere, on every instruction set.

use super::*;
use crate::isa::Isa;

/// Numbers of -1 to 1, from a seed.
pub(super) fn numbers(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
    (0..count)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect()
}

const C: usize = CELL_CHANNELS;

struct Conv {
    weights: Vec<f32>,
    bias: Vec<f32>,
    input: Vec<f32>,
    gates: [Vec<f32>; 2],
    num_tokens: usize,
}

impl Conv {
    fn new(taps: usize, num_tokens: usize) -> Self {
        Self {
            weights: numbers(taps * C, 1),
            bias: numbers(C, 2),
            input: numbers(num_tokens * C, 3),
            gates: [numbers(num_tokens * C, 4), numbers(num_tokens * C, 5)],
            num_tokens,
        }
    }

    /// Output and history, by runs of so many tokens.
    fn run(&self, isa: Isa, run: usize, is_gated: bool) -> (Vec<f32>, Vec<f32>) {
        let taps = self.weights.len() / C;
        let mut out = vec![0.0; self.num_tokens * C];
        let mut history = vec![0.0; history_len(taps)];
        for start in (0..self.num_tokens).step_by(run) {
            let at = start * C;
            let work = Convolution {
                weights: &self.weights,
                bias: (!is_gated).then_some(&self.bias[..]),
                input: self.input[at..].as_ptr(),
                input_stride: C,
                gates: is_gated.then(|| [self.gates[0][at..].as_ptr(), self.gates[1][at..].as_ptr()]),
                has_silu: !is_gated,
                out: out[at..].as_mut_ptr(),
                out_stride: C,
                num_tokens: run.min(self.num_tokens - start),
                history: history.as_mut_ptr(),
            };
            // SAFETY: the vectors hold the tokens.
            unsafe { convolve(isa, &work) };
        }
        (out, history)
    }

    fn expected(&self, is_gated: bool) -> Vec<f64> {
        let taps = self.weights.len() / C;
        let input = |token: usize, channel: usize| {
            let at = token * C + channel;
            f64::from(self.input[at]) * if is_gated { f64::from(self.gates[0][at]) } else { 1.0 }
        };
        let each = (0..self.num_tokens * C).map(|at| {
            let (token, channel) = (at / C, at % C);
            let seen = (0..taps).filter(|tap| token + tap + 1 >= taps);
            let terms =
                seen.map(|tap| f64::from(self.weights[tap * C + channel]) * input(token + tap + 1 - taps, channel));
            let sum: f64 = terms.sum();
            if is_gated {
                sum * f64::from(self.gates[1][at])
            } else {
                let sum = sum + f64::from(self.bias[channel]);
                sum / (1.0 + (-sum).exp())
            }
        });
        each.collect()
    }
}

pub(super) fn expect_near(got: &[f32], expected: &[f64], tolerance: f64) {
    assert_eq!(got.len(), expected.len());
    for (index, (got, expected)) in got.iter().zip(expected).enumerate() {
        assert!(
            (f64::from(*got) - expected).abs() < tolerance,
            "{index}: {got} for {expected}"
        );
    }
}

/// A convolution is the sum over the tokens before, gated or activated, and its history the last inputs.
#[test]
fn convolution_is_that_of_a_plain_loop() {
    for taps in 1..=MOST_TAPS {
        for is_gated in [false, true] {
            let conv = Conv::new(taps, 13);
            let (out, history) = conv.run(Isa::Scalar, 13, is_gated);
            expect_near(&out, &conv.expected(is_gated), 1e-5);
            if !is_gated {
                assert_eq!(history, conv.input[(14 - taps) * C..], "the last inputs");
            }
        }
    }
}

/// Cut into runs of any length, on every instruction set, a convolution has the same bits.
#[test]
fn convolution_has_the_same_bits_however_it_is_cut() {
    for (taps, is_gated) in [(3, true), (4, false)] {
        let conv = Conv::new(taps, 33);
        let whole = conv.run(Isa::Scalar, 33, is_gated);
        for isa in Isa::available() {
            for run in [1, 2, 5, 16, 33] {
                assert_eq!(conv.run(isa, run, is_gated), whole, "{} in runs of {run}", isa.name());
            }
        }
    }
}

struct Scan {
    keys: Vec<f32>,
    queries: Vec<f32>,
    values: Vec<f32>,
    decays: Vec<f32>,
    rates: Vec<f32>,
    key_size: usize,
    num_tokens: usize,
    /// Whether each number of a key has a decay.
    is_of_keys: bool,
}

impl Scan {
    fn new(key_size: usize, num_tokens: usize, is_of_keys: bool) -> Self {
        let num_decays = num_tokens * if is_of_keys { key_size } else { 1 };
        let mut scan = Self {
            keys: numbers(num_tokens * key_size, 1),
            queries: numbers(num_tokens * key_size, 2),
            values: numbers(num_tokens * C, 3),
            decays: numbers(num_decays, 4).iter().map(|x| 0.5 + 0.5 * x.abs()).collect(),
            rates: numbers(num_tokens, 5).iter().map(|x| x.abs()).collect(),
            key_size,
            num_tokens,
            is_of_keys,
        };
        for key in scan.keys.chunks_exact_mut(key_size) {
            l2_normalise(Isa::Scalar, key, 1e-6, 1.0);
        }
        scan
    }

    fn run(&self, isa: Isa, run: usize) -> (Vec<f32>, Vec<f32>) {
        let mut out = vec![0.0; self.num_tokens * C];
        let mut state = vec![0.0; matrix_len(self.key_size)];
        for start in (0..self.num_tokens).step_by(run) {
            let end = (start + run).min(self.num_tokens);
            let work = DeltaRule {
                keys: self.keys[start * self.key_size..].as_ptr(),
                queries: self.queries[start * self.key_size..].as_ptr(),
                key_stride: self.key_size,
                key_size: self.key_size,
                values: self.values[start * C..].as_ptr(),
                value_stride: C,
                decays: match self.is_of_keys {
                    true => Decays::OfKeys(self.decays[start * self.key_size..].as_ptr()),
                    false => Decays::OfHead(&self.decays[start..end]),
                },
                rates: &self.rates[start..end],
                out: out[start * C..].as_mut_ptr(),
                out_stride: C,
                state: state.as_mut_ptr(),
            };
            // SAFETY: the vectors hold the tokens and the state.
            unsafe { scan(isa, &work) };
        }
        (out, state)
    }

    /// The rule as the paper has it, in `f64`.
    fn expected(&self) -> Vec<f64> {
        let wide = |x: &[f32]| x.iter().map(|x| f64::from(*x)).collect::<Vec<f64>>();
        let mut state = vec![vec![0.0_f64; C]; self.key_size];
        let mut out = Vec::new();
        for token in 0..self.num_tokens {
            let key = wide(&self.keys[token * self.key_size..(token + 1) * self.key_size]);
            let query = wide(&self.queries[token * self.key_size..(token + 1) * self.key_size]);
            let decay = |row: usize| {
                let decay = if self.is_of_keys {
                    token * self.key_size + row
                } else {
                    token
                };
                f64::from(self.decays[decay])
            };
            let rate = f64::from(self.rates[token]);
            for channel in 0..C {
                let rows = state.iter_mut().enumerate();
                rows.for_each(|(row, values)| values[channel] *= decay(row));
                let said: f64 = state.iter().zip(&key).map(|(row, key)| row[channel] * key).sum();
                let value = f64::from(self.values[token * C + channel]);
                let added = rate * (value - said);
                state
                    .iter_mut()
                    .zip(&key)
                    .for_each(|(row, key)| row[channel] += key * added);
                out.push(state.iter().zip(&query).map(|(row, query)| row[channel] * query).sum());
            }
        }
        out
    }
}

/// The delta rule is the papers' in `f64`, with one decay and with one for each number of a key.
#[test]
fn scan_is_the_rule_of_the_paper() {
    for (key_size, is_of_keys) in [
        (16, false),
        (128, false),
        (33, false),
        (16, true),
        (128, true),
        (33, true),
    ] {
        let scan = Scan::new(key_size, 70, is_of_keys);
        let (out, _) = scan.run(Isa::Scalar, 70);
        expect_near(&out, &scan.expected(), 1e-4);
    }
}

/// Cut into runs of any length, on every instruction set, a scan has the same bits.
#[test]
fn scan_has_the_same_bits_however_it_is_cut() {
    for is_of_keys in [false, true] {
        let scan = Scan::new(48, 40, is_of_keys);
        let whole = scan.run(Isa::Scalar, 40);
        for isa in Isa::available() {
            for run in [1, 3, 16, 40] {
                assert_eq!(scan.run(isa, run), whole, "{} in runs of {run}", isa.name());
            }
        }
    }
}

/// With the same decay for all numbers of a key, what is left of a state is what one decay leaves.
#[test]
fn equal_decays_of_keys_are_one_decay() {
    let one = Scan::new(32, 30, false);
    let decays = one.decays.iter().flat_map(|decay| [*decay; 32]).collect();
    let each = Scan {
        decays,
        is_of_keys: true,
        ..Scan::new(32, 30, false)
    };
    let expected: Vec<f64> = one.run(Isa::Scalar, 30).0.into_iter().map(f64::from).collect();
    expect_near(&each.run(Isa::Scalar, 30).0, &expected, 1e-5);
}

/// What is left of each row is the paper's in `f64`, from steps that leave all to steps that leave nothing, with the same
/// bits on every instruction set.
#[test]
fn rows_fade_as_in_the_paper() {
    let steps: Vec<f32> = numbers(37, 3).iter().map(|x| 12.0 * x).collect();
    let biases = numbers(37, 4);
    for log_decay in [-0.05, -1.0, -16.0] {
        let faded = |isa| {
            let mut faded = steps.clone();
            fade(isa, &mut faded, &biases, log_decay);
            faded
        };
        let terms = steps.iter().zip(&biases).map(|(step, bias)| f64::from(step + bias));
        let expected: Vec<f64> = terms.map(|x| (f64::from(log_decay) * x.exp().ln_1p()).exp()).collect();
        let whole = faded(Isa::Scalar);
        expect_near(&whole, &expected, 1e-6);
        let is_same = |isa| faded(isa) == whole;
        assert!(Isa::available().into_iter().all(is_same), "the same bits");
    }
}

/// A normalised vector has the length that was asked for, and one of zeros stays.
#[test]
fn l2_norm_is_one_over_the_length() {
    for isa in Isa::available() {
        let mut x = numbers(50, 9);
        let length = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
        let expected: Vec<f64> = x.iter().map(|x| f64::from(*x) / length * 0.25).collect();
        l2_normalise(isa, &mut x, 1e-6, 0.25);
        expect_near(&x, &expected, 1e-6);
        let mut zeros = [0.0; 20];
        l2_normalise(isa, &mut zeros, 1e-6, 1.0);
        assert_eq!(zeros, [0.0; 20]);
    }
}

struct Space {
    x: Vec<f32>,
    along: Vec<f32>,
    decays: Vec<f32>,
    steps: Vec<f32>,
    skip: f32,
    state_size: usize,
    num_tokens: usize,
}

const SKIP: f32 = 0.7;

impl Space {
    fn new(state_size: usize, num_tokens: usize) -> Self {
        let steps: Vec<f32> = numbers(num_tokens, 4).iter().map(|x| x.abs()).collect();
        Self {
            x: numbers(num_tokens * C, 1),
            along: numbers(num_tokens * 2 * state_size, 2),
            decays: steps.iter().map(|step| (-0.5 * step).exp()).collect(),
            steps,
            skip: SKIP,
            state_size,
            num_tokens,
        }
    }

    /// Lightning attention: tokens leave the same share of the state, steps are 1, and nothing is skipped.
    fn lightning(head_size: usize, num_tokens: usize, decay: f32) -> Self {
        Self {
            decays: vec![decay; num_tokens],
            steps: vec![1.0; num_tokens],
            skip: 0.0,
            ..Self::new(head_size, num_tokens)
        }
    }

    /// Outputs and states by runs of so many tokens; a token has its channels, then both vectors.
    fn run(&self, isa: Isa, run: usize) -> (Vec<f32>, Vec<f32>) {
        let stride = C + 2 * self.state_size;
        let tokens = self.x.chunks_exact(C).zip(self.along.chunks_exact(2 * self.state_size));
        let mut rows: Vec<f32> = tokens.flat_map(|(x, along)| [x, along].concat()).collect();
        let mut state = vec![0.0; matrix_len(self.state_size)];
        for start in (0..self.num_tokens).step_by(run) {
            let end = (start + run).min(self.num_tokens);
            let first = rows[start * stride..].as_mut_ptr();
            let work = SelectiveScan {
                b: first.wrapping_add(C),
                c: first.wrapping_add(C + self.state_size),
                state_size: self.state_size,
                x: first,
                stride,
                decays: &self.decays[start..end],
                steps: &self.steps[start..end],
                skip: self.skip,
                state: state.as_mut_ptr(),
            };
            // SAFETY: the vectors hold the tokens and the state.
            unsafe { selective_scan(isa, &work) };
        }
        (
            rows.chunks_exact(stride).flat_map(|row| row[..C].to_vec()).collect(),
            state,
        )
    }

    /// The paper's recurrence in `f64`, and as its quadratic form: `y_t = sum_s (c_t b_s) exp(sum a) dt_s x_s + d x_t`.
    fn expected(&self) -> [Vec<f64>; 2] {
        let wide = |x: &[f32]| x.iter().map(|x| f64::from(*x)).collect::<Vec<f64>>();
        let (x, along, decays, steps) = (wide(&self.x), wide(&self.along), wide(&self.decays), wide(&self.steps));
        let n = self.state_size;
        let (b, c) = (
            |token: usize| &along[token * 2 * n..token * 2 * n + n],
            |token: usize| &along[token * 2 * n + n..(token + 1) * 2 * n],
        );
        let (mut recurrent, mut quadratic) = (Vec::new(), Vec::new());
        let mut state = vec![[0.0_f64; C]; n];
        for token in 0..self.num_tokens {
            for (row, b) in state.iter_mut().zip(b(token)) {
                for (channel, value) in row.iter_mut().enumerate() {
                    *value = decays[token] * *value + b * steps[token] * x[token * C + channel];
                }
            }
            for channel in 0..C {
                let own = f64::from(self.skip) * x[token * C + channel];
                let read: f64 = state.iter().zip(c(token)).map(|(row, c)| row[channel] * c).sum();
                recurrent.push(read + own);
                let seen = (0..=token).map(|from| {
                    let product: f64 = c(token).iter().zip(b(from)).map(|(c, b)| c * b).sum();
                    let decay: f64 = decays[from + 1..=token].iter().product();
                    product * decay * steps[from] * x[from * C + channel]
                });
                quadratic.push(seen.sum::<f64>() + own);
            }
        }
        [recurrent, quadratic]
    }
}

/// A state space is the paper's in `f64`, in both of its forms.
#[test]
fn state_space_is_that_of_the_paper() {
    for state_size in [16, 128, 33] {
        let space = Space::new(state_size, 50);
        let (out, _) = space.run(Isa::Scalar, 50);
        for expected in space.expected() {
            expect_near(&out, &expected, 1e-4);
        }
    }
}

/// Cut into runs of any length, on every instruction set, a state space has the same bits.
#[test]
fn state_space_has_the_same_bits_however_it_is_cut() {
    let space = Space::new(48, 40);
    let whole = space.run(Isa::Scalar, 40);
    for isa in Isa::available() {
        for run in [1, 3, 16, 40] {
            assert_eq!(space.run(isa, run), whole, "{} in runs of {run}", isa.name());
        }
    }
}

/// Lightning attention is the paper's in `f64`, as a recurrence and as attention whose scores fade, for slopes that forget at
/// once and that keep all; cut anywhere, on every instruction set, with the same bits.
#[test]
fn lightning_attention_is_a_state_space_of_steps_of_one() {
    for (head_size, decay) in [(16, 0.5), (128, 0.9999), (48, 1e-4)] {
        let attention = Space::lightning(head_size, 50, decay);
        let whole = attention.run(Isa::Scalar, 50);
        for expected in attention.expected() {
            expect_near(&whole.0, &expected, 1e-4);
        }
        for isa in Isa::available() {
            for run in [1, 7, 16] {
                assert_eq!(attention.run(isa, run), whole, "{} in runs of {run}", isa.name());
            }
        }
    }
}
