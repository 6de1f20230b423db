//! Quantised folders of safetensors: the weights that their formats stand for, to the bit where a type holds them, and what
//! faulty ones are told.
//!
//! The packers here are written from the formats' descriptions, and share nothing with the readers.

mod model_writer;

use std::fs;
use std::path::Path;

use model_writer::safetensors_bytes;
use proptest::prelude::*;
use pyagent_engine::config::ModelConfig;
use pyagent_engine::model::{self, FeedForward, Mixer, Weights};
use pyagent_engine::quantised::packed_bytes;
use pyagent_engine::weights::ModelFileError;
use pyagent_kernels::ggml::GgmlType;
use pyagent_kernels::pack::PackedMatrix;
use pyagent_kernels::thread_pool::ThreadPool;
use serde_json::{Value, json};

const HIDDEN: usize = 64;
const FFN: usize = 96;
const KV: usize = 32;
/// The matrices of a layer, and their rows and columns.
const MATRICES: [(&str, usize, usize); 7] = [
    ("self_attn.q_proj", HIDDEN, HIDDEN),
    ("self_attn.k_proj", KV, HIDDEN),
    ("self_attn.v_proj", KV, HIDDEN),
    ("self_attn.o_proj", HIDDEN, HIDDEN),
    ("mlp.gate_proj", FFN, HIDDEN),
    ("mlp.up_proj", FFN, HIDDEN),
    ("mlp.down_proj", HIDDEN, FFN),
];
/// AWQ's order of eight neighbours: what the nibbles of a word are, the lowest first.
const AWQ: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];

/// SplitMix64: all that weights need of randomness.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }
}

/// A tensor as it is written: element type, shape (rows first), bytes.
#[derive(Clone)]
struct Tensor(&'static str, Vec<usize>, Vec<u8>);

#[derive(Clone)]
struct Folder {
    config: Value,
    tensors: Vec<(String, Tensor)>,
    /// The weights that a matrix stands for, row after row.
    weights: Vec<Vec<f32>>,
}

fn floats(kind: &'static str, shape: &[usize], values: &[f32]) -> Tensor {
    let bytes = values.iter().flat_map(|value| match kind {
        "F32" => value.to_le_bytes().to_vec(),
        "BF16" => value.to_le_bytes()[2..].to_vec(),
        _ => half_bits(*value).to_le_bytes().to_vec(),
    });
    Tensor(kind, shape.to_vec(), bytes.collect())
}

/// A number that half precision has, above its subnormals.
fn half_bits(value: f32) -> u16 {
    let bits = value.to_bits();
    assert_eq!(bits & 0x1fff, 0, "{value} is not half precision's");
    ((bits >> 16 & 0x8000) | (((bits >> 23 & 0xff) - 112) << 10) | (bits >> 13 & 0x3ff)) as u16
}

/// Numbers of `[lines, count]` in words, neighbours of a line together, the first lowest.
fn words(bits: usize, count: usize, numbers: &[u8]) -> Vec<u8> {
    let per = 32 / bits;
    let line = |line: &[u8]| -> Vec<u8> {
        let word = |part: &[u8]| {
            let places = part.iter().enumerate();
            places.fold(0u32, |word, (place, number)| {
                word | u32::from(*number) << (bits * place)
            })
        };
        line.chunks(per).flat_map(|part| word(part).to_le_bytes()).collect()
    };
    numbers.chunks(count).flat_map(line).collect()
}

fn turned<T: Copy>(values: &[T], cols: usize) -> Vec<T> {
    let rows = values.len() / cols;
    (0..values.len())
        .map(|at| values[at % rows * cols + at / rows])
        .collect()
}

fn in_awq_order(numbers: &[u8]) -> Vec<u8> {
    let eights = numbers.chunks_exact(8);
    eights.flat_map(|eight| AWQ.map(|place| eight[place])).collect()
}

/// Numbers, scales (bits of bfloat16 and half precision alike) and zero points of a matrix, at random.
struct Numbers {
    bits: usize,
    rows: usize,
    cols: usize,
    num_groups: usize,
    numbers: Vec<u8>,
    scales: Vec<f32>,
    zeros: Vec<u8>,
    groups: Vec<usize>,
}

impl Numbers {
    fn of(bits: usize, (rows, cols): (usize, usize), group: usize, seed: u64) -> Self {
        let mut random = Random(seed);
        let num_groups = cols.div_ceil(group);
        let scales = (0..rows * num_groups)
            .map(|_| (128 + random.below(128)) as f32 / 65536.0)
            .collect();
        Self {
            bits,
            rows,
            cols,
            num_groups,
            numbers: (0..rows * cols).map(|_| random.below(1 << bits) as u8).collect(),
            scales,
            zeros: (0..rows * num_groups).map(|_| random.below(1 << bits) as u8).collect(),
            groups: (0..cols).map(|col| col / group).collect(),
        }
    }

    fn centred(mut self) -> Self {
        self.zeros.fill(1 << (self.bits - 1));
        self
    }

    fn weights(&self) -> Vec<f32> {
        let number = |at: usize| {
            let of_group = at / self.cols * self.num_groups + self.groups[at % self.cols];
            (f32::from(self.numbers[at]) - f32::from(self.zeros[of_group])) * self.scales[of_group]
        };
        (0..self.numbers.len()).map(number).collect()
    }

    fn word_shape(&self, lines: usize, count: usize) -> Vec<usize> {
        vec![lines, count.div_ceil(32 / self.bits)]
    }

    /// `qweight`, `qzeros`, `scales` and `g_idx`; zero points less `less`.
    fn gptq(&self, less: u8) -> Vec<(&'static str, Tensor)> {
        let (rows, cols, groups) = (self.rows, self.cols, self.num_groups);
        let most = ((1u16 << self.bits) - 1) as u8;
        // Words are of neighbours in a column: of the matrix's rows, turned as a whole.
        let lines = words(self.bits, cols, &self.numbers);
        let lines: Vec<[u8; 4]> = lines.as_chunks().0.to_vec();
        let qweight = turned(&lines, cols / (32 / self.bits)).as_flattened().to_vec();
        let zeros: Vec<u8> = turned(&self.zeros, groups)
            .iter()
            .map(|zero| zero.wrapping_sub(less) & most)
            .collect();
        let order = self.groups.iter().flat_map(|group| (*group as i32).to_le_bytes());
        vec![
            ("qweight", Tensor("I32", vec![cols / (32 / self.bits), rows], qweight)),
            (
                "qzeros",
                Tensor("I32", self.word_shape(groups, rows), words(self.bits, rows, &zeros)),
            ),
            ("scales", floats("F16", &[groups, rows], &turned(&self.scales, groups))),
            ("g_idx", Tensor("I32", vec![cols], order.collect())),
        ]
    }

    fn awq(&self) -> Vec<(&'static str, Tensor)> {
        let (rows, cols, groups) = (self.rows, self.cols, self.num_groups);
        let packed = |numbers: &[u8], count| words(4, rows, &in_awq_order(&turned(numbers, count)));
        vec![
            (
                "qweight",
                Tensor("I32", vec![cols, rows / 8], packed(&self.numbers, cols)),
            ),
            (
                "qzeros",
                Tensor("I32", vec![groups, rows / 8], packed(&self.zeros, groups)),
            ),
            ("scales", floats("F16", &[groups, rows], &turned(&self.scales, groups))),
        ]
    }

    fn packed(&self, has_zeros: bool) -> Vec<(&'static str, Tensor)> {
        let (rows, groups) = (self.rows, self.num_groups);
        let numbers = words(self.bits, self.cols, &self.numbers);
        let mut tensors = vec![
            (
                "weight_packed",
                Tensor("I32", self.word_shape(rows, self.cols), numbers),
            ),
            ("weight_scale", floats("BF16", &[rows, groups], &self.scales)),
        ];
        if has_zeros {
            let lines = words(self.bits, rows, &turned(&self.zeros, groups));
            let lines: Vec<[u8; 4]> = lines.as_chunks().0.to_vec();
            let per = rows.div_ceil(32 / self.bits);
            let zeros = turned(&lines, per).as_flattened().to_vec();
            tensors.push(("weight_zero_point", Tensor("I32", vec![per, groups], zeros)));
        }
        tensors
    }
}

/// What e4m3 stands for, by its definition.
fn e4m3(byte: u8) -> f32 {
    let (exponent, fraction) = (i32::from(byte >> 3 & 15), f32::from(byte & 7));
    let size = match exponent {
        0 => fraction * 2f32.powi(-9),
        _ => (1.0 + fraction / 8.0) * 2f32.powi(exponent - 7),
    };
    if byte < 128 { size } else { -size }
}

fn compressed(bits: usize, kind: &str, more: Value) -> Value {
    let mut weights = json!({"num_bits": bits, "type": kind, "symmetric": true});
    let fields = weights.as_object_mut().unwrap();
    fields.extend(more.as_object().unwrap().clone());
    json!({"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": {"weights": weights}}})
}

/// A model of one layer; `quantise` gives a matrix's tensors and its weights.
fn folder(
    quantization: Value,
    quantise: impl Fn(usize, usize, u64) -> (Vec<(&'static str, Tensor)>, Vec<f32>),
) -> Folder {
    let config = json!({
        "model_type": "llama", "vocab_size": 16, "hidden_size": HIDDEN, "intermediate_size": FFN, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
        "hidden_act": "silu", "tie_word_embeddings": true, "quantization_config": quantization,
    });
    let ones = |size| floats("F32", &[size], &vec![1.0; size]);
    let mut tensors = vec![
        (
            "model.embed_tokens.weight".to_owned(),
            floats("F32", &[16, HIDDEN], &[0.5; 16 * HIDDEN]),
        ),
        ("model.norm.weight".to_owned(), ones(HIDDEN)),
        ("model.layers.0.input_layernorm.weight".to_owned(), ones(HIDDEN)),
        (
            "model.layers.0.post_attention_layernorm.weight".to_owned(),
            ones(HIDDEN),
        ),
    ];
    let mut weights = Vec::new();
    for (seed, (name, rows, cols)) in MATRICES.into_iter().enumerate() {
        let (of_matrix, expected) = quantise(rows, cols, seed as u64);
        weights.push(expected);
        let of_matrix = of_matrix.into_iter();
        tensors.extend(of_matrix.map(|(end, tensor)| (format!("model.layers.0.{name}.{end}"), tensor)));
    }
    Folder {
        config,
        tensors,
        weights,
    }
}

impl Folder {
    fn write(&self, path: &Path) {
        let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
        for (name, Tensor(kind, shape, bytes)) in &self.tensors {
            let offsets = [data.len(), data.len() + bytes.len()];
            header.insert(
                name.clone(),
                json!({"dtype": kind, "shape": shape, "data_offsets": offsets}),
            );
            data.extend_from_slice(bytes);
        }
        let bytes = safetensors_bytes(&Value::Object(header).to_string(), &data);
        fs::write(path.join("config.json"), self.config.to_string()).unwrap();
        fs::write(path.join("model.safetensors"), bytes).unwrap();
    }

    fn load(&self) -> Result<(Weights, usize), ModelFileError> {
        let path = tempfile::tempdir().unwrap();
        self.write(path.path());
        let (file, config): (_, ModelConfig) = model::open(path.path())?;
        let bytes = packed_bytes(&file)?;
        Ok((model::load(&file, &config, &ThreadPool::shared(2))?, bytes))
    }

    fn refusal(&self) -> String {
        let text = self.load().err().expect("a faulty folder").to_string();
        text.split_once(": ").expect("a path first").1.to_owned()
    }

    fn tensor(&mut self, end: &str) -> &mut Tensor {
        let mut tensors = self.tensors.iter_mut();
        &mut tensors.find(|(name, _)| name.ends_with(end)).expect("there is one").1
    }

    fn with(mut self, end: &str, change: impl Fn(&mut Tensor)) -> Self {
        change(self.tensor(end));
        self
    }

    fn without(mut self, end: &str) -> Self {
        let at = self.tensors.iter().position(|(name, _)| name.ends_with(end));
        self.tensors.remove(at.expect("there is one"));
        self
    }
}

fn matrices(weights: &Weights) -> Vec<&PackedMatrix> {
    let layer = &weights.layers[0];
    let (Mixer::Attention(attention), FeedForward::Dense(gated)) = (&layer.mixer, &layer.ffn) else {
        panic!("Llama's layer");
    };
    let linears = [
        &attention.query,
        &attention.key,
        &attention.value,
        &layer.attention_output,
        &gated.gate,
        &gated.up,
        &gated.down,
    ];
    linears.into_iter().map(|linear| &linear.weight).collect()
}

fn rows_of(matrix: &PackedMatrix) -> Vec<f32> {
    let mut all = vec![0.0; matrix.rows() * matrix.cols()];
    for (row, out) in all.chunks_exact_mut(matrix.cols()).enumerate() {
        matrix.row(row, out);
    }
    all
}

/// Loads a folder: its matrices are of one type, and its weights as far from what they stand for as is said, as a share
/// of each, or half a step of half precision's smallest numbers. What is estimated from the header is what they take, but for what packing rounds up.
fn expect_weights(folder: &Folder, kind: GgmlType, most: f32) {
    let (weights, estimated) = folder.load().expect("a right folder");
    for (matrix, expected) in matrices(&weights).into_iter().zip(&folder.weights) {
        assert_eq!(matrix.kind(), kind);
        for (got, expected) in rows_of(matrix).iter().zip(expected) {
            let subnormal = if most > 0.0 { 2f32.powi(-25) } else { 0.0 };
            assert!(
                (got - expected).abs() <= most * expected.abs() + subnormal,
                "{got} for {expected}"
            );
        }
    }
    let taken = weights.bytes() as f64;
    assert!((estimated as f64 / taken - 1.0).abs() < 0.06, "{estimated} for {taken}");
}

fn gptq_of(bits: usize, group: usize, centred: bool, less: u8, config: Value) -> Folder {
    let mut quantization = json!({"quant_method": "gptq", "bits": bits, "group_size": group, "sym": centred});
    let fields = quantization.as_object_mut().unwrap();
    fields.extend(config.as_object().unwrap().clone());
    folder(quantization, |rows, cols, seed| {
        let numbers = Numbers::of(bits, (rows, cols), group, seed);
        let numbers = if centred { numbers.centred() } else { numbers };
        (numbers.gptq(less), numbers.weights())
    })
}

fn awq() -> Folder {
    let quantization =
        json!({"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": true});
    folder(quantization, |rows, cols, seed| {
        let numbers = Numbers::of(4, (rows, cols), 32, seed);
        (numbers.awq(), numbers.weights())
    })
}

fn packed(bits: usize, group: usize, centred: bool, more: Value) -> Folder {
    let mut weights = json!({"strategy": "group", "group_size": group, "symmetric": centred});
    weights
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    folder(compressed(bits, "int", weights), |rows, cols, seed| {
        let numbers = Numbers::of(bits, (rows, cols), group, seed);
        let numbers = if centred { numbers.centred() } else { numbers };
        (numbers.packed(!centred), numbers.weights())
    })
}

/// FP8 with scales of blocks of `block` rows and columns, or of rows where that is 0.
fn fp8(block: usize, scale: f32) -> Folder {
    let mut quantization = json!({"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"});
    if block > 0 {
        quantization["weight_block_size"] = json!([block, block]);
    }
    folder(quantization, |rows, cols, seed| {
        let mut random = Random(seed);
        let (of_rows, of_cols) = if block > 0 { (block, block) } else { (1, cols) };
        let numbers: Vec<u8> = (0..rows * cols)
            .map(|_| (random.below(2) * 128 + random.below(127)) as u8)
            .collect();
        let shape = [rows.div_ceil(of_rows), cols.div_ceil(of_cols)];
        let scales: Vec<f32> = (0..shape[0] * shape[1])
            .map(|_| scale * (1 + random.below(999)) as f32)
            .collect();
        let weight = |at: usize| e4m3(numbers[at]) * scales[at / cols / of_rows * shape[1] + at % cols / of_cols];
        let name = if block > 0 { "weight_scale_inv" } else { "weight_scale" };
        let tensors = vec![
            ("weight", Tensor("F8_E4M3", vec![rows, cols], numbers.clone())),
            (name, floats("F32", &shape, &scales)),
        ];
        (tensors, (0..numbers.len()).map(weight).collect())
    })
}

fn int8() -> Folder {
    folder(
        compressed(8, "int", json!({"strategy": "channel"})),
        |rows, cols, seed| {
            let numbers = Numbers::of(8, (rows, cols), cols, seed).centred();
            let signed: Vec<u8> = numbers.numbers.iter().map(|number| number ^ 128).collect();
            let tensors = vec![
                ("weight", Tensor("I8", vec![rows, cols], signed)),
                ("weight_scale", floats("BF16", &[rows, 1], &numbers.scales)),
            ];
            (tensors, numbers.weights())
        },
    )
}

/// 4 bits with zero points are `Q5_0`, without `Q4_0`, 8 bits `Q8_0`: bit for bit.
#[test]
fn integers_keep_every_bit() {
    for group in [32, 64] {
        expect_weights(&gptq_of(4, group, false, 1, json!({})), GgmlType::Q5_0, 0.0);
    }
    let second = json!({"checkpoint_format": "gptq_v2", "dynamic": {"-:.*gate": {}}});
    expect_weights(&gptq_of(4, 32, true, 0, second), GgmlType::Q4_0, 0.0);
    expect_weights(&gptq_of(8, 32, true, 1, json!({})), GgmlType::Q8_0, 0.0);
    expect_weights(&awq(), GgmlType::Q5_0, 0.0);
    expect_weights(&packed(4, 32, true, json!({})), GgmlType::Q4_0, 0.0);
    expect_weights(&packed(4, 32, false, json!({})), GgmlType::Q5_0, 0.0);
    expect_weights(&packed(8, 32, true, json!({})), GgmlType::Q8_0, 0.0);
    expect_weights(&int8(), GgmlType::Q8_0, 0.0);
}

/// e4m3, numbers of 8 bits with zero points and groups that are no whole blocks are half precision: within 2^-11 of each.
#[test]
fn others_are_half_precision() {
    let most = 2f32.powi(-11);
    expect_weights(&fp8(0, 1e-3), GgmlType::F16, most);
    expect_weights(&fp8(32, 1e-3), GgmlType::F16, most);
    expect_weights(&fp8(32, 2f32.powi(-9)), GgmlType::F16, most);
    expect_weights(&gptq_of(8, 32, false, 1, json!({})), GgmlType::F16, most);
    expect_weights(&packed(4, 16, false, json!({})), GgmlType::F16, most);
}

/// Columns in an order of their own stay in blocks where runs of 32 share a group, and are half precision elsewhere.
#[test]
fn columns_are_in_the_groups_that_the_file_says() {
    let reordered = |shuffle: fn(usize, usize) -> usize| {
        let quantization = json!({"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": false, "desc_act": true});
        folder(quantization, |rows, cols, seed| {
            let mut numbers = Numbers::of(4, (rows, cols), 32, seed);
            numbers.groups = (0..cols).map(|col| shuffle(col, cols / 32)).collect();
            (numbers.gptq(1), numbers.weights())
        })
    };
    let (kept, _) = reordered(|col, groups| groups - 1 - col / 32).load().unwrap();
    assert!(matrices(&kept).iter().all(|matrix| matrix.kind() == GgmlType::Q5_0));
    let ordered = reordered(|col, groups| col * 7 % groups);
    expect_weights(&ordered, GgmlType::F16, 2f32.powi(-11));
}

/// Scales that half precision loses, and numbers that it cannot hold, are single precision.
#[test]
fn numbers_out_of_range_are_single_precision() {
    expect_single(&fp8(0, 1e-12));
    expect_single(&fp8(0, 1e5));
}

fn expect_single(folder: &Folder) {
    let (weights, _) = folder.load().unwrap();
    for (matrix, expected) in matrices(&weights).into_iter().zip(&folder.weights) {
        assert_eq!(matrix.kind(), GgmlType::F32);
        assert_eq!(&rows_of(matrix), expected);
    }
}

/// A file that calls itself symmetric is what its zero points say.
#[test]
fn zero_points_are_followed_where_a_file_is_called_symmetric() {
    let mut folder = gptq_of(4, 32, false, 1, json!({}));
    folder.config["quantization_config"]["sym"] = json!(true);
    let (weights, _) = folder.load().unwrap();
    for (matrix, expected) in matrices(&weights).into_iter().zip(&folder.weights) {
        assert_eq!(&rows_of(matrix), expected);
    }
}

/// Scales that are one number for all, and powers of two in a byte.
#[test]
fn scales_of_other_shapes_are_read() {
    let whole = |shape: &'static [usize]| {
        let mut folder = fp8(0, 1e-3);
        for (name, tensor) in &mut folder.tensors {
            if name.ends_with("weight_scale") {
                *tensor = floats("F32", shape, &[0.25]);
            }
        }
        let (weights, _) = folder.load().unwrap();
        let tensor = folder.tensor("q_proj.weight").2.clone();
        let expected: Vec<f32> = tensor.iter().map(|byte| e4m3(*byte) * 0.25).collect();
        assert_eq!(rows_of(matrices(&weights)[0]), expected);
    };
    whole(&[]);
    whole(&[1]);
    let mut powers = fp8(32, 1e-3).with("q_proj.weight_scale_inv", |tensor| {
        *tensor = Tensor("F8_E8M0", vec![2, 2], vec![120; 4])
    });
    let (weights, _) = powers.load().unwrap();
    let numbers = powers.tensor("q_proj.weight").2.clone();
    let expected: Vec<f32> = numbers.iter().map(|byte| e4m3(*byte) / 128.0).collect();
    assert_eq!(rows_of(matrices(&weights)[0]), expected);
}

/// A tensor that is missing, of another shape or type, or not finite is said by name.
#[test]
fn hostile_tensors_are_named() {
    let words = |shape: &[usize]| Tensor("I32", shape.to_vec(), vec![0; 4 * shape.iter().product::<usize>()]);
    let gptq = || gptq_of(4, 32, false, 1, json!({"desc_act": true}));
    let infinite = |shape: &[usize]| {
        Tensor(
            "F32",
            shape.to_vec(),
            f32::INFINITY.to_le_bytes().repeat(shape.iter().product()),
        )
    };
    for (folder, expected) in [
        (gptq().without("q_proj.qzeros"), "q_proj.qzeros\" is missing"),
        (gptq().without("q_proj.g_idx"), "q_proj.g_idx\" is missing"),
        (
            gptq().with("q_proj.qweight", |t| *t = words(&[3, 64])),
            "q_proj.qweight' is [3, 64]; expected [8, 64]",
        ),
        (
            gptq().with("q_proj.qweight", |t| *t = words(&[8])),
            "q_proj.qweight' is [8]; expected rows and columns",
        ),
        (
            gptq().with("q_proj.qweight", |t| t.0 = "F32"),
            "is of element type F32; expected I32",
        ),
        (
            gptq().with("q_proj.scales", |t| t.1 = vec![64, 2]),
            "q_proj.scales' is [64, 2]; expected [2, 64]",
        ),
        (
            gptq().with("q_proj.scales", |t| *t = words(&[2, 64])),
            "is of element type I32; expected F32, F16, BF16",
        ),
        (
            gptq().with("q_proj.scales", |t| *t = infinite(&[2, 64])),
            "q_proj.scales' has numbers that are not finite",
        ),
        (
            gptq().with("q_proj.g_idx", |t| t.2[0] = 2),
            "names a group that there is not: there are 2",
        ),
        (
            gptq().with("q_proj.g_idx", |t| t.2[3] = 0xff),
            "names a group that there is not: there are 2",
        ),
        (
            awq().with("q_proj.qweight", |t| *t = words(&[64, 4])),
            "q_proj.scales' is [2, 64]; expected [2, 32]",
        ),
        (
            packed(4, 32, false, json!({})).with("q_proj.weight_zero_point", |t| *t = words(&[1, 2])),
            "expected [8, 2]",
        ),
        (
            packed(4, 32, true, json!({})).with("q_proj.weight_packed", |t| *t = words(&[64, 16])),
            "is of 8 bits, of which",
        ),
        (
            fp8(0, 1e-3).with("q_proj.weight", |t| t.2[7] = 0xff),
            "q_proj.weight' has numbers that are not finite",
        ),
        (
            fp8(0, 1e-3).with("q_proj.weight", |t| t.1 = vec![32, 128]),
            "q_proj.weight' is [32, 128]; expected [32, 64]",
        ),
        (
            fp8(0, 1e-3).without("q_proj.weight_scale"),
            "q_proj.weight_scale\" is missing",
        ),
        (
            fp8(32, 1e-3).with("q_proj.weight_scale_inv", |t| t.1 = vec![4, 1]),
            "is [4, 1]; expected [2, 2]",
        ),
    ] {
        let text = folder.refusal();
        assert!(text.contains(expected), "{text}\n{expected}");
        assert!(text.contains("q_proj") && !text.contains('\n'), "{text}");
    }
}

/// What is not implemented, or out of range, is said by name before a tensor is read.
#[test]
fn configurations_that_are_not_implemented_are_refused() {
    let gptq = |more: Value| gptq_of(4, 32, false, 1, more);
    let compressed = |more: Value| {
        let mut folder = packed(4, 32, true, json!({}));
        let fields = folder.config["quantization_config"].as_object_mut().unwrap();
        fields.extend(more.as_object().unwrap().clone());
        folder
    };
    let weights = |more: Value| packed(4, 32, true, more);
    for (folder, expected) in [
        (
            gptq(json!({"quant_method": "bitsandbytes"})),
            "'quant_method': \"bitsandbytes\", which is not implemented on the CPU",
        ),
        (
            gptq(json!({"quant_method": "mxfp4"})),
            "is mxfp4, which is implemented for gpt-oss",
        ),
        (
            gptq(json!({"bits": 3})),
            "'bits': 3, which is not implemented on the CPU; there are 4, 8",
        ),
        (gptq(json!({"bits": true})), "'bits': true, which is not"),
        (
            gptq(json!({"group_size": 0})),
            "'group_size': 0; expected a number of columns, or -1",
        ),
        (
            gptq(json!({"group_size": 1u64 << 40})),
            "'group_size': 1099511627776; expected",
        ),
        (gptq(json!({"sym": "no"})), "'sym': \"no\"; expected true or false"),
        (
            gptq(json!({"checkpoint_format": "marlin"})),
            "'checkpoint_format': \"marlin\", which is not",
        ),
        (
            gptq(json!({"dynamic": {"+:.*down": {"bits": 8}}})),
            "'dynamic': {\"+:.*down\":{\"bits\":8}}, which is not",
        ),
        (
            compressed(json!({"format": "nvfp4-pack-quantized"})),
            "'format': \"nvfp4-pack-quantized\", which is not",
        ),
        (
            compressed(json!({"format": "marlin-24"})),
            "'format': \"marlin-24\", which is not",
        ),
        (
            compressed(json!({"sparsity_config": {"format": "sparse-24-bitmask"}})),
            "'format': \"sparse-24-bitmask\", which",
        ),
        (compressed(json!({"config_groups": {}})), "has no 'config_groups'"),
        (
            compressed(json!({"config_groups": {"a": {"weights": 4}}})),
            "'quantization_config.config_groups.a.weights' must be an",
        ),
        (
            compressed(json!({"config_groups": 4})),
            "'quantization_config.config_groups' must be an object",
        ),
        (
            weights(json!({"strategy": "tensor_group"})),
            "'strategy': \"tensor_group\", which is not",
        ),
        (weights(json!({"num_bits": 2})), "'num_bits': 2, which is not"),
        (
            weights(json!({"strategy": "block", "block_structure": [0, 128]})),
            "[0,128]; expected rows and columns",
        ),
    ] {
        let text = folder.refusal();
        assert!(text.contains(expected) && text.len() < 400, "{text}\n{expected}");
    }
}

/// A part of a folder that is damaged: a byte of a tensor, its shape, or a field.
#[derive(Debug, Clone)]
enum Damage {
    Byte(prop::sample::Index, prop::sample::Index, u8),
    Shape(prop::sample::Index, Vec<usize>),
    Kind(prop::sample::Index, &'static str),
    Field(&'static str, i64),
}

fn damage() -> impl Strategy<Value = Damage> {
    let kinds = vec!["I32", "F16", "F32", "I8", "F8_E4M3", "U8"];
    let fields = vec!["bits", "group_size", "quant_method", "weight_block_size"];
    prop_oneof![
        any::<(prop::sample::Index, prop::sample::Index, u8)>().prop_map(|(a, b, c)| Damage::Byte(a, b, c)),
        (any::<prop::sample::Index>(), prop::collection::vec(1usize..200, 0..4)).prop_map(|(a, b)| Damage::Shape(a, b)),
        (any::<prop::sample::Index>(), prop::sample::select(kinds)).prop_map(|(a, b)| Damage::Kind(a, b)),
        (prop::sample::select(fields), any::<i64>()).prop_map(|(a, b)| Damage::Field(a, b)),
    ]
}

impl Folder {
    fn damaged(mut self, damage: &Damage) -> Self {
        let num_tensors = self.tensors.len();
        match damage {
            Damage::Byte(tensor, at, byte) => {
                let bytes = &mut self.tensors[tensor.index(num_tensors)].1.2;
                let at = at.index(bytes.len());
                bytes[at] = *byte;
            }
            Damage::Shape(tensor, shape) => {
                let tensor = &mut self.tensors[tensor.index(num_tensors)].1;
                let width = tensor.2.len() / tensor.1.iter().product::<usize>().max(1);
                tensor.2.resize(width * shape.iter().product::<usize>().min(1 << 16), 0);
                tensor.1.clone_from(shape);
            }
            Damage::Kind(tensor, kind) => self.tensors[tensor.index(num_tensors)].1.0 = kind,
            Damage::Field(field, value) => self.config["quantization_config"][*field] = json!(value),
        }
        self
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    /// Damaged folders are loaded or refused in a sentence, never anything else.
    #[test]
    fn damaged_folders_do_no_harm(which in 0usize..5, faults in prop::collection::vec(damage(), 1..4)) {
        let whole = match which {
            0 => gptq_of(4, 32, false, 1, json!({"desc_act": true})),
            1 => awq(),
            2 => packed(4, 32, false, json!({})),
            3 => fp8(32, 1e-3),
            _ => int8(),
        };
        let damaged = faults.iter().fold(whole, Folder::damaged);
        if let Err(error) = damaged.load() {
            let text = error.to_string();
            prop_assert!(text.len() < 800 && !text.contains('\n'), "{text}");
        }
    }
}
