//! Writes quantised folders of safetensors, each beside the weights that it stands for.
//!
//! The packers are written from the formats' descriptions, and share nothing with the readers.

use std::fs;
use std::path::Path;

use pyagent_engine::config::ModelConfig;
use pyagent_engine::model::{self, FeedForward, Mixer, Weights};
use pyagent_engine::quantised::packed_bytes;
use pyagent_engine::weights::ModelFileError;
use pyagent_kernels::ggml::GgmlType;
use pyagent_kernels::pack::PackedMatrix;
use pyagent_kernels::thread_pool::ThreadPool;
use serde_json::{Value, json};

use crate::model_writer::safetensors_bytes;

pub const HIDDEN: usize = 64;
pub const FFN: usize = 96;
pub const KV: usize = 32;
/// The matrices of a layer, and their rows and columns.
pub const MATRICES: [(&str, usize, usize); 7] = [
    ("self_attn.q_proj", HIDDEN, HIDDEN),
    ("self_attn.k_proj", KV, HIDDEN),
    ("self_attn.v_proj", KV, HIDDEN),
    ("self_attn.o_proj", HIDDEN, HIDDEN),
    ("mlp.gate_proj", FFN, HIDDEN),
    ("mlp.up_proj", FFN, HIDDEN),
    ("mlp.down_proj", HIDDEN, FFN),
];
/// AWQ's order of eight neighbours: what the nibbles of a word are, the lowest first.
pub const AWQ: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];

/// SplitMix64: all that weights need of randomness.
pub struct Random(u64);

impl Random {
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }
}

/// A tensor as it is written: element type, shape (rows first), bytes.
#[derive(Clone)]
pub struct Tensor(pub &'static str, pub Vec<usize>, pub Vec<u8>);

#[derive(Clone)]
pub struct Folder {
    pub config: Value,
    pub tensors: Vec<(String, Tensor)>,
    /// The weights that a matrix stands for, row after row.
    pub weights: Vec<Vec<f32>>,
}

pub fn floats(kind: &'static str, shape: &[usize], values: &[f32]) -> Tensor {
    let bytes = values.iter().flat_map(|value| match kind {
        "F32" => value.to_le_bytes().to_vec(),
        "BF16" => value.to_le_bytes()[2..].to_vec(),
        _ => half_bits(*value).to_le_bytes().to_vec(),
    });
    Tensor(kind, shape.to_vec(), bytes.collect())
}

/// A number that half precision has, above its subnormals.
pub fn half_bits(value: f32) -> u16 {
    let bits = value.to_bits();
    assert_eq!(bits & 0x1fff, 0, "{value} is not half precision's");
    ((bits >> 16 & 0x8000) | (((bits >> 23 & 0xff) - 112) << 10) | (bits >> 13 & 0x3ff)) as u16
}

/// Numbers of `[lines, count]` in words, neighbours of a line together, the first lowest.
pub fn words(bits: usize, count: usize, numbers: &[u8]) -> Vec<u8> {
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

pub fn turned<T: Copy>(values: &[T], cols: usize) -> Vec<T> {
    let rows = values.len() / cols;
    (0..values.len())
        .map(|at| values[at % rows * cols + at / rows])
        .collect()
}

pub fn in_awq_order(numbers: &[u8]) -> Vec<u8> {
    let eights = numbers.chunks_exact(8);
    eights.flat_map(|eight| AWQ.map(|place| eight[place])).collect()
}

/// Numbers, scales (bits of bfloat16 and half precision alike) and zero points of a matrix, at random.
pub struct Numbers {
    bits: usize,
    rows: usize,
    cols: usize,
    num_groups: usize,
    numbers: Vec<u8>,
    scales: Vec<f32>,
    zeros: Vec<u8>,
    pub groups: Vec<usize>,
}

impl Numbers {
    pub fn of(bits: usize, (rows, cols): (usize, usize), group: usize, seed: u64) -> Self {
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

    pub fn centred(mut self) -> Self {
        self.zeros.fill(1 << (self.bits - 1));
        self
    }

    pub fn scaled(mut self, factor: f32) -> Self {
        self.scales.iter_mut().for_each(|scale| *scale *= factor);
        self
    }

    pub fn weights(&self) -> Vec<f32> {
        let number = |at: usize| {
            let of_group = at / self.cols * self.num_groups + self.groups[at % self.cols];
            (f32::from(self.numbers[at]) - f32::from(self.zeros[of_group])) * self.scales[of_group]
        };
        (0..self.numbers.len()).map(number).collect()
    }

    pub fn word_shape(&self, lines: usize, count: usize) -> Vec<usize> {
        vec![lines, count.div_ceil(32 / self.bits)]
    }

    /// `qweight`, `qzeros`, `scales` and `g_idx`; zero points less `less`.
    pub fn gptq(&self, less: u8) -> Vec<(&'static str, Tensor)> {
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

    pub fn awq(&self) -> Vec<(&'static str, Tensor)> {
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

    pub fn packed(&self, has_zeros: bool) -> Vec<(&'static str, Tensor)> {
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
pub fn e4m3(byte: u8) -> f32 {
    let (exponent, fraction) = (i32::from(byte >> 3 & 15), f32::from(byte & 7));
    let size = match exponent {
        0 => fraction * 2f32.powi(-9),
        _ => (1.0 + fraction / 8.0) * 2f32.powi(exponent - 7),
    };
    if byte < 128 { size } else { -size }
}

pub fn compressed(bits: usize, kind: &str, more: Value) -> Value {
    let mut weights = json!({"num_bits": bits, "type": kind, "symmetric": true});
    let fields = weights.as_object_mut().unwrap();
    fields.extend(more.as_object().unwrap().clone());
    json!({"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": {"weights": weights}}})
}

/// A model of one layer; `quantise` gives a matrix's tensors and its weights.
pub fn folder(
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
    pub fn write(&self, path: &Path) {
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

    pub fn load(&self) -> Result<(Weights, usize), ModelFileError> {
        let path = tempfile::tempdir().unwrap();
        self.write(path.path());
        let (file, config): (_, ModelConfig) = model::open(path.path())?;
        let bytes = packed_bytes(&file)?;
        Ok((model::load(&file, &config, &ThreadPool::shared(2))?, bytes))
    }

    pub fn refusal(&self) -> String {
        let text = self.load().err().expect("a faulty folder").to_string();
        text.split_once(": ").expect("a path first").1.to_owned()
    }

    pub fn tensor(&mut self, end: &str) -> &mut Tensor {
        let mut tensors = self.tensors.iter_mut();
        &mut tensors.find(|(name, _)| name.ends_with(end)).expect("there is one").1
    }

    pub fn with(mut self, end: &str, change: impl Fn(&mut Tensor)) -> Self {
        change(self.tensor(end));
        self
    }

    pub fn without(mut self, end: &str) -> Self {
        let at = self.tensors.iter().position(|(name, _)| name.ends_with(end));
        self.tensors.remove(at.expect("there is one"));
        self
    }
}

pub fn matrices(weights: &Weights) -> Vec<&PackedMatrix> {
    let layer = &weights.layers[0];
    let (Mixer::Attention(attention), FeedForward::Dense(gated)) = (&layer.mixer, &layer.ffn) else {
        panic!("Llama's layer");
    };
    let linears = [
        Some(&attention.query),
        attention.key.as_ref(),
        attention.value.as_ref(),
        layer.attention_output.as_ref(),
        gated.gate.as_ref(),
        Some(&gated.up),
        Some(&gated.down),
    ];
    linears.into_iter().flatten().map(|linear| &linear.weight).collect()
}

pub fn rows_of(matrix: &PackedMatrix) -> Vec<f32> {
    let mut all = vec![0.0; matrix.rows() * matrix.cols()];
    for (row, out) in all.chunks_exact_mut(matrix.cols()).enumerate() {
        matrix.row(row, out);
    }
    all
}

/// Loads a folder: its weights are as `expect_rows` says, and what is estimated from the header is what they take, but for
/// what packing rounds up.
pub fn expect_weights(folder: &Folder, kind: GgmlType, most: f32) {
    let (weights, estimated) = expect_rows(folder, kind, most);
    let taken = weights.bytes() as f64;
    assert!((estimated as f64 / taken - 1.0).abs() < 0.06, "{estimated} for {taken}");
}

/// Loads a folder: its matrices are of one type, and its weights as far from what they stand for as is said, as a share of
/// each, or half a step of half precision's smallest numbers.
pub fn expect_rows(folder: &Folder, kind: GgmlType, most: f32) -> (Weights, usize) {
    let (weights, estimated) = folder.load().expect("a right folder");
    let subnormal = if most > 0.0 { 2f32.powi(-25) } else { 0.0 };
    for (matrix, expected) in matrices(&weights).into_iter().zip(&folder.weights) {
        assert_eq!(matrix.kind(), kind);
        for (got, expected) in rows_of(matrix).iter().zip(expected) {
            let error = (got - expected).abs();
            assert!(error <= most * expected.abs() + subnormal, "{got} for {expected}");
        }
    }
    (weights, estimated)
}

pub fn gptq_of(bits: usize, group: usize, centred: bool, less: u8, config: Value) -> Folder {
    let mut quantization = json!({"quant_method": "gptq", "bits": bits, "group_size": group, "sym": centred});
    let fields = quantization.as_object_mut().unwrap();
    fields.extend(config.as_object().unwrap().clone());
    folder(quantization, |rows, cols, seed| {
        let numbers = Numbers::of(bits, (rows, cols), group, seed);
        let numbers = if centred { numbers.centred() } else { numbers };
        (numbers.gptq(less), numbers.weights())
    })
}

pub fn awq() -> Folder {
    let quantization =
        json!({"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": true});
    folder(quantization, |rows, cols, seed| {
        let numbers = Numbers::of(4, (rows, cols), 32, seed);
        (numbers.awq(), numbers.weights())
    })
}

pub fn packed(bits: usize, group: usize, centred: bool, more: Value) -> Folder {
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
pub fn fp8(block: usize, scale: f32) -> Folder {
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

/// INT8 with a scale a row, each times `factor`.
pub fn int8(factor: f32) -> Folder {
    folder(
        compressed(8, "int", json!({"strategy": "channel"})),
        |rows, cols, seed| {
            let numbers = Numbers::of(8, (rows, cols), cols, seed).centred().scaled(factor);
            let signed: Vec<u8> = numbers.numbers.iter().map(|number| number ^ 128).collect();
            let tensors = vec![
                ("weight", Tensor("I8", vec![rows, cols], signed)),
                ("weight_scale", floats("BF16", &[rows, 1], &numbers.scales)),
            ];
            (tensors, numbers.weights())
        },
    )
}

/// NVFP4 as compressed-tensors has it, whose scale for all is a divisor, or as NVIDIA's Model Optimizer.
pub fn nvfp4(is_modelopt: bool) -> Folder {
    const SIZES: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let weights = json!({"num_bits": 4, "type": "float", "group_size": 16});
    let quantization = if is_modelopt {
        json!({"quant_method": "modelopt", "quant_algo": "NVFP4", "config_groups": {"group_0": {"weights": weights}}})
    } else {
        let mut quantization = compressed(4, "float", json!({"strategy": "tensor_group", "group_size": 16}));
        quantization["format"] = json!("nvfp4-pack-quantized");
        quantization
    };
    let (name, whole_name, whole) = match is_modelopt {
        true => ("weight", "weight_scale_2", 0.0625),
        false => ("weight_packed", "weight_global_scale", 16.0),
    };
    folder(quantization, |rows, cols, seed| {
        let mut random = Random(seed);
        let pairs: Vec<u8> = (0..rows * cols / 2).map(|_| random.below(256) as u8).collect();
        let scales: Vec<u8> = (0..rows * cols / 16).map(|_| random.below(127) as u8).collect();
        let weight = |at: usize| {
            let bits = usize::from(pairs[at / 2] >> (4 * (at % 2)));
            let sign = if bits & 8 == 0 { 1.0 } else { -1.0 };
            sign * SIZES[bits & 7] * e4m3(scales[at / 16]) / 16.0
        };
        let tensors = vec![
            (name, Tensor("U8", vec![rows, cols / 2], pairs.clone())),
            ("weight_scale", Tensor("F8_E4M3", vec![rows, cols / 16], scales.clone())),
            (whole_name, floats("F32", &[1], &[whole])),
        ];
        (tensors, (0..rows * cols).map(weight).collect())
    })
}
