//! Quantised folders of safetensors: the weights that their formats stand for, to the bit where a type holds them, and what
//! faulty ones are told.

mod model_writer;
mod quantised_writer;

use proptest::prelude::*;
use pyagent_kernels::ggml::GgmlType;
use quantised_writer::{
    Folder, Numbers, Tensor, awq, e4m3, expect_rows, expect_weights, floats, folder, fp8, gptq_of, int8, matrices,
    nvfp4, packed, rows_of,
};
use serde_json::{Value, json};

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
    expect_weights(&int8(1.0), GgmlType::Q8_0, 0.0);
}

/// e4m3 and its scales are kept as they are where 64 columns share a scale, however small or large these are; a matrix of
/// 96 columns is half precision.
#[test]
fn e4m3_keeps_every_bit() {
    // The matrix of 96 columns is single precision in the last two, which the header does not tell.
    for (folder, most) in [
        (fp8(0, 1e-3), 0.06),
        (fp8(64, 1e-3), 0.06),
        (fp8(64, 1e-4), 0.06),
        (fp8(128, 1e-12), 0.25),
        (fp8(64, 1e5), 0.25),
    ] {
        let (weights, estimated) = folder.load().unwrap();
        for (matrix, expected) in matrices(&weights).into_iter().zip(&folder.weights) {
            if matrix.cols().is_multiple_of(64) {
                assert_eq!((matrix.kind(), &rows_of(matrix)), (GgmlType::E4M3, expected));
            } else {
                assert!(matches!(matrix.kind(), GgmlType::F16 | GgmlType::F32));
            }
        }
        let taken = weights.bytes() as f64;
        assert!((estimated as f64 / taken - 1.0).abs() < most, "{estimated} for {taken}");
    }
}

/// e4m3 in blocks of 32, numbers of 8 bits with zero points and groups that are no whole blocks are half precision: within
/// 2^-11 of each.
#[test]
fn others_are_half_precision() {
    let most = 2f32.powi(-11);
    expect_weights(&fp8(32, 1e-3), GgmlType::F16, most);
    expect_weights(&fp8(32, 2f32.powi(-9)), GgmlType::F16, most);
    expect_weights(&gptq_of(8, 32, false, 1, json!({})), GgmlType::F16, most);
    expect_weights(&packed(4, 16, false, json!({})), GgmlType::F16, most);
    for is_modelopt in [false, true] {
        expect_weights(&nvfp4(is_modelopt), GgmlType::F16, most);
    }
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

/// Scales that half precision loses are multiplied first; numbers that it cannot hold are single precision.
#[test]
fn numbers_out_of_range_are_single_precision() {
    for folder in [
        fp8(32, 1e-12),
        fp8(32, 1e5),
        fp8(64, 1e-22),
        fp8(64, 2e18),
        int8(2f32.powi(-40)),
    ] {
        expect_rows(&folder, GgmlType::F32, 0.0);
    }
    expect_rows(&int8(2f32.powi(-14)), GgmlType::F16, 2f32.powi(-11));
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
        (
            nvfp4(false).without("q_proj.weight_global_scale"),
            "q_proj.weight_scale_2\" is missing",
        ),
        (
            nvfp4(true).with("q_proj.weight_scale_2", |t| *t = floats("F32", &[1], &[0.0])),
            "q_proj.weight_scale_2' is 0; expected a number above 0",
        ),
        (
            nvfp4(true).with("q_proj.weight_scale_2", |t| *t = floats("F32", &[2], &[1.0, 1.0])),
            "q_proj.weight_scale_2' is [2]; expected one number",
        ),
        (
            nvfp4(false).with("q_proj.weight_scale", |t| t.2[5] = 0x7f),
            "q_proj.weight_scale' has numbers that are not finite",
        ),
        (
            nvfp4(false).with("q_proj.weight_scale", |t| t.0 = "F8_E8M0"),
            "is of element type F8_E8M0; expected F8_E4M3",
        ),
        (
            nvfp4(false).with("q_proj.weight_packed", |t| t.1 = vec![32, 64]),
            "q_proj.weight_packed' is [32, 64]; expected [32, 32]",
        ),
        (
            fp8(0, 1e-3).with("q_proj.weight", |t| t.0 = "U8"),
            "is of 4 bits, of which config.json says nothing",
        ),
    ] {
        let text = folder.refusal();
        assert!(text.contains(expected), "{text}\n{expected}");
        assert!(text.contains("q_proj") && !text.contains('\n'), "{text}");
    }
}

/// Of a matrix that nothing reads, the numbers are refused by name; what a quantiser leaves beside matrices is not.
#[test]
fn matrices_that_nothing_reads_are_refused() {
    let beside = |end: &str, folder: Folder| {
        let mut folder = folder;
        let name = format!("model.layers.0.self_attn.extra.{end}");
        folder.tensors.push((name, floats("F32", &[2], &[1.0, 2.0])));
        folder
    };
    for (end, folder) in [
        ("weight", fp8(0, 1e-3)),
        ("bias", fp8(64, 1e-3)),
        ("qweight", awq()),
        ("weight_packed", packed(4, 32, true, json!({}))),
    ] {
        let text = beside(end, folder).refusal();
        assert!(
            text.contains(&format!("a tensor 'model.layers.0.self_attn.extra.{end}'")),
            "{text}"
        );
    }
    for end in ["input_scale", "weight_shape"] {
        beside(end, fp8(0, 1e-3)).load().unwrap();
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
            compressed(json!({"format": "mxfp4-pack-quantized"})),
            "'format': \"mxfp4-pack-quantized\", which is not",
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
            weights(json!({"type": "float", "group_size": 32})),
            "'group_size': 32, which is not implemented on the CPU; there are 16",
        ),
        (
            gptq(json!({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"})),
            "'quant_algo': \"W4A8_AWQ\", which is not",
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
    fn damaged_folders_do_no_harm(which in 0usize..6, faults in prop::collection::vec(damage(), 1..4)) {
        let whole = match which {
            0 => gptq_of(4, 32, false, 1, json!({"desc_act": true})),
            1 => awq(),
            2 => packed(4, 32, false, json!({})),
            3 => fp8(64, 1e-3),
            4 => nvfp4(false),
            _ => int8(1.0),
        };
        let damaged = faults.iter().fold(whole, Folder::damaged);
        if let Err(error) = damaged.load() {
            let text = error.to_string();
            prop_assert!(text.len() < 800 && !text.contains('\n'), "{text}");
        }
    }
}
