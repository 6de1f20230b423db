//! Safetensors folders: what is read from valid ones, and how each kind of damage is refused.

mod model_writer;

use std::fs;
use std::path::Path;

use model_writer::{full_safetensors, safetensors_bytes};
use pyagent_engine::safetensors::{SafetensorsFolder, SafetensorsHeader};
use pyagent_engine::weights::{ModelFile, ModelFileError};
use pyagent_kernels::ggml::GgmlType;

fn folder_with(files: &[(&str, &[u8])]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    fs::write(
        folder.path().join("config.json"),
        br#"{"model_type": "llama", "hidden_size": 4}"#,
    )
    .unwrap();
    for (name, bytes) in files {
        fs::write(folder.path().join(name), bytes).unwrap();
    }
    folder
}

fn one_tensor(name: &str) -> Vec<u8> {
    let header = format!(r#"{{"{name}":{{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}}}"#);
    safetensors_bytes(&header, &1f32.to_le_bytes())
}

fn refusal(path: &Path) -> String {
    SafetensorsFolder::open(path)
        .expect_err("the folder is damaged")
        .to_string()
}

/// A folder gives its config and its tensors, dimensions turned to the contiguous one first.
#[test]
fn a_folder_is_read() {
    let folder = folder_with(&[("model.safetensors", &full_safetensors())]);
    let model = ModelFile::open(folder.path()).unwrap();
    let names: Vec<_> = model.tensors().map(|tensor| tensor.name.to_owned()).collect();
    assert_eq!(names, ["a.weight", "b.weight", "c.weight"]);
    let tensor = model.tensor("a.weight").unwrap();
    assert_eq!(
        (tensor.dims, tensor.cols(), tensor.rows(), tensor.kind),
        (&[3, 2][..], 3, 2, GgmlType::F32)
    );
    assert_eq!(tensor.to_f32().unwrap(), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    assert_eq!(model.tensor("b.weight").unwrap().to_f32().unwrap(), [1.0, -2.0]);
    assert_eq!(model.tensor("c.weight").unwrap().to_f32().unwrap(), [1.0, -1.0]);
    assert_eq!(model.find_tensor("absent").unwrap(), None);
    assert_eq!(model.file_bytes(), full_safetensors().len() as u64);
    model.drop_pages(tensor.bytes);
    assert_eq!(tensor.to_f32().unwrap()[5], 5.0);
    let ModelFile::Safetensors(folder) = &model else {
        panic!("a folder")
    };
    assert_eq!(folder.config()["hidden_size"], 4);
}

/// A tensor of another type does not keep the folder closed, but asking for it names it and its type.
#[test]
fn a_type_that_is_not_read_is_refused_by_name() {
    let folder = folder_with(&[("model.safetensors", &full_safetensors())]);
    let model = ModelFile::open(folder.path()).unwrap();
    let text = model.tensor("position_ids").unwrap_err().to_string();
    let expected =
        "tensor \"position_ids\" has element type I64, which is not supported; expected one of F32, F16, BF16";
    assert!(text.ends_with(expected), "{text}");
}

/// Shards are found by an index, or by their ending without one.
#[test]
fn shards_are_joined() {
    let index = br#"{"weight_map": {"a": "x-1.safetensors", "b": "x-2.safetensors"}}"#;
    let shards: [(&str, &[u8]); 2] = [
        ("x-1.safetensors", &one_tensor("a")),
        ("x-2.safetensors", &one_tensor("b")),
    ];
    for folder in [
        folder_with(&shards),
        folder_with(&[&shards[..], &[("model.safetensors.index.json", index)]].concat()),
    ] {
        let model = ModelFile::open(folder.path()).unwrap();
        assert_eq!(model.tensors().count(), 2);
        assert_eq!(model.tensor("b").unwrap().to_f32().unwrap(), [1.0]);
    }
}

/// Beside `model.safetensors` other programs' copies of the weights may lie; an index goes before it.
#[test]
fn other_programs_weights_are_left_aside() {
    let index = br#"{"weight_map": {"a": "x-1.safetensors"}}"#;
    let files: [(&str, &[u8]); 3] = [
        ("model.safetensors", &one_tensor("whole")),
        ("consolidated.safetensors", &one_tensor("b")),
        ("x-1.safetensors", &one_tensor("a")),
    ];
    let names = |folder: &tempfile::TempDir| -> Vec<String> {
        let model = ModelFile::open(folder.path()).unwrap();
        model.tensors().map(|tensor| tensor.name.to_owned()).collect()
    };
    assert_eq!(names(&folder_with(&files)), ["whole"]);
    assert_eq!(names(&folder_with(&files[1..])), ["a", "b"]);
    let indexed = [&files[..], &[("model.safetensors.index.json", index)]].concat();
    assert_eq!(names(&folder_with(&indexed)), ["a"]);
}

/// An index that leads out of the folder, to other tensors, or to no file is refused.
#[test]
fn a_wrong_index_is_refused() {
    let shard = one_tensor("a");
    let with_index = |index: &str| {
        folder_with(&[
            ("x.safetensors", &shard),
            ("y.safetensors", &one_tensor("b")),
            ("model.safetensors.index.json", index.as_bytes()),
        ])
    };
    for (index, problem) in [
        (
            r#"{"weight_map": {"a": "../x.safetensors"}}"#,
            "expected the name of a safetensors file beside it",
        ),
        (
            r#"{"weight_map": {"a": "/etc/x.safetensors"}}"#,
            "expected the name of a safetensors file beside it",
        ),
        (
            r#"{"weight_map": {"a": "x.bin"}}"#,
            "expected the name of a safetensors file beside it",
        ),
        (
            r#"{"weight_map": {"a": 7}}"#,
            "expected the name of a safetensors file beside it",
        ),
        (r#"{"weight_map": {}}"#, "names no tensors"),
        (r#"{"weight_map": []}"#, "expected an object \"weight_map\""),
        (
            r#"{"weight_map": {"a": "z.safetensors"}}"#,
            "z.safetensors: cannot find the file",
        ),
        (
            r#"{"weight_map": {"a": "y.safetensors"}}"#,
            "tensor \"a\" is in y.safetensors, but it is in no file",
        ),
        (
            r#"{"weight_map": {"a": "x.safetensors", "b": "x.safetensors"}}"#,
            "tensor \"b\" is in x.safetensors, but",
        ),
        ("{", "not valid: EOF"),
        ("[]", "not valid: expected a JSON object"),
    ] {
        let text = refusal(with_index(index).path());
        assert!(text.contains(problem), "{index}: {text}");
    }
}

/// The same tensor in two files, a missing config and an empty folder are refused.
#[test]
fn incomplete_folders_are_refused() {
    let folder = folder_with(&[("x.safetensors", &one_tensor("a")), ("y.safetensors", &one_tensor("a"))]);
    let text = refusal(folder.path());
    assert!(
        text.contains("y.safetensors: the tensor name \"a\" occurs twice"),
        "{text}"
    );
    assert!(refusal(folder_with(&[]).path()).contains("config.json and none of these"));
    let folder = folder_with(&[("x.safetensors", &one_tensor("a"))]);
    fs::remove_file(folder.path().join("config.json")).unwrap();
    assert!(refusal(folder.path()).contains("config.json: cannot find the file"));
    fs::write(folder.path().join("config.json"), vec![b' '; (16 << 20) + 1]).unwrap();
    assert!(refusal(folder.path()).contains("longer than the 16777216 bytes allowed"));
}

/// A file cut anywhere is refused; in the data, with the tensor, its end and the file's length.
#[test]
fn a_file_cut_anywhere_is_refused() {
    let bytes = full_safetensors();
    for length in 0..bytes.len() {
        SafetensorsHeader::parse(&bytes[..length]).expect_err("a part of a file");
    }
    let error = SafetensorsHeader::parse(&bytes[..bytes.len() - 1]).unwrap_err();
    let (expected_end, expected_length) = (bytes.len() as u64, bytes.len() as u64 - 1);
    assert!(
        matches!(&error, ModelFileError::TensorTruncated { name, end, file_bytes }
            if name == "position_ids" && *end == expected_end && *file_bytes == expected_length),
        "{error}"
    );
    let text = SafetensorsHeader::parse(&[&bytes[..], b"xy"].concat())
        .unwrap_err()
        .to_string();
    assert!(text.contains("2 bytes follow the last tensor"), "{text}");
}

/// Headers that are too long, not JSON, or disagree with themselves are refused.
#[test]
fn damaged_headers_are_refused() {
    let error = SafetensorsHeader::parse(&[&u64::MAX.to_le_bytes()[..], b"{}"].concat()).unwrap_err();
    assert!(
        matches!(error, ModelFileError::Length { limit: 16_777_216, .. }),
        "{error}"
    );
    let entry = |text: &str| safetensors_bytes(&format!(r#"{{"t":{text}}}"#), &[0; 8]);
    for header in [
        r#"{"dtype":"F32","shape":[2],"data_offsets":[4,12]}"#,
        r#"{"dtype":"F32","shape":[3],"data_offsets":[0,8]}"#,
        r#"{"dtype":"F32","shape":[2],"data_offsets":[8,0]}"#,
        r#"{"dtype":"F32","shape":[4294967296,4294967296,4294967296],"data_offsets":[0,8]}"#,
        r#"{"dtype":"F32","shape":[-1],"data_offsets":[0,8]}"#,
        r#"{"dtype":"F33","shape":[2],"data_offsets":[0,8]}"#,
        r#"{"dtype":"F32","shape":[2]}"#,
        r#"{"dtype":"F32","shape":[0],"data_offsets":[0,0]},"u":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}"#,
        r#"{"dtype":"F32","shape":[2,1,1,1,1,1,1,1,1],"data_offsets":[0,8]}"#,
        "[[[[",
    ] {
        let error = SafetensorsHeader::parse(&entry(header)).expect_err(header);
        assert!(error.to_string().len() < 400, "{error}");
    }
    assert!(SafetensorsHeader::parse(&safetensors_bytes(&"[".repeat(100_000), &[])).is_err());
}
