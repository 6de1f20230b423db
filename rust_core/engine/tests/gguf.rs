//! GGUF files: what is read from valid ones, and how each kind of damage is refused.

mod model_writer;

use std::fs;
use std::path::{Path, PathBuf};

use model_writer::{GgufWriter, array, full_gguf};
use pyagent_engine::gguf::{GgufFile, GgufHeader, MetadataArray, MetadataValue};
use pyagent_engine::weights::{ModelFile, ModelFileError};
use pyagent_kernels::ggml::GgmlType;

fn refusal(writer: &GgufWriter) -> ModelFileError {
    GgufHeader::parse(&writer.bytes()).expect_err("the file is damaged")
}

fn opened(writer: &GgufWriter) -> (tempfile::TempDir, GgufFile) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = GgufFile::open(&writer.write(folder.path())).expect("a valid file");
    (folder, file)
}

/// Versions 2 and 3 give the same header: all value types, all tensors.
#[test]
fn versions_2_and_3_are_read_alike() {
    let (_two_folder, two) = opened(&full_gguf(2));
    let (_three_folder, three) = opened(&full_gguf(3));
    assert_eq!((two.version(), three.version()), (2, 3));
    assert_eq!(two.metadata(), three.metadata());
    assert!(two.tensors().eq(three.tensors()));
    assert_eq!(three.metadata().len(), 19);
    assert_eq!(three.find("i8"), Some(&MetadataValue::I8(-1)));
    assert_eq!(three.find("u64"), Some(&MetadataValue::U64(u64::MAX)));
    let nested = vec![MetadataArray::U32(vec![1, 2]), MetadataArray::Bool(vec![true])];
    assert_eq!(
        three.find("nested"),
        Some(&MetadataValue::Array(MetadataArray::Array(nested)))
    );
    assert_eq!(
        three.find("empty"),
        Some(&MetadataValue::Array(MetadataArray::String(Vec::new())))
    );
}

/// Values are read by the type that is expected, whatever width the file has for it.
#[test]
fn metadata_is_read_by_expected_type() {
    let (_folder, file) = opened(&full_gguf(3));
    assert_eq!(file.metadata_str("general.architecture").unwrap(), "llama");
    for (key, value) in [
        ("u8", 200),
        ("u16", 60_000),
        ("u32", 4_000_000_000),
        ("u64", u64::MAX),
        ("i64", 7),
    ] {
        assert_eq!(file.metadata_u64(key).unwrap(), value, "{key}");
    }
    assert_eq!(file.metadata_f32("f32").unwrap(), 1.5);
    assert_eq!(file.metadata_f64("f64").unwrap(), 0.1);
    assert_eq!(file.metadata_f32("f64").unwrap(), 0.1f32);
    assert!(file.metadata_bool("bool").unwrap());
    assert_eq!(file.metadata_strings("strings").unwrap(), ["a", "\u{2581}b"]);
    assert_eq!(file.metadata_f32s("f32s").unwrap(), [0.5, -1.0]);
    assert_eq!(file.metadata_i32s("i32s").unwrap(), [-1, 6]);
    assert_eq!(file.metadata_i32s("u16s").unwrap(), [60_000]);
}

/// A missing key, and a value of another type or sign, are refused with file, key and what was found.
#[test]
fn metadata_of_another_type_is_refused() {
    let (_folder, file) = opened(&full_gguf(3));
    let text = file.metadata_u64("i8").unwrap_err().to_string();
    assert!(
        text.ends_with("metadata key \"i8\" is the i8 -1: expected an integer that is not negative"),
        "{text}"
    );
    assert!(text.starts_with(&file.path().display().to_string()), "{text}");
    let text = file.metadata_str("strings").unwrap_err().to_string();
    assert!(text.ends_with("is an array of 2 string: expected a string"), "{text}");
    assert!(file.metadata_i32s("u64s").is_err());
    assert!(file.metadata_f32("u8").is_err());
    assert!(file.metadata_bool("u8").is_err());
    assert!(file.metadata_strings("f32s").is_err());
    assert!(file.metadata_f32s("i32s").is_err());
    let error = file.metadata_str("absent").unwrap_err();
    assert!(matches!(error.fault(), ModelFileError::MetadataMissing { key } if key == "absent"));
}

/// Tensors are found by name, with dimensions, type and exactly their bytes.
#[test]
fn tensors_are_found_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = full_gguf(3).write(folder.path());
    let model = ModelFile::open(&path).unwrap();
    let names: Vec<_> = model.tensors().map(|tensor| tensor.name.to_owned()).collect();
    assert_eq!(names, ["norm", "embedding", "half", "scalar"]);
    let embedding = model.tensor("embedding").unwrap();
    assert_eq!(
        (embedding.dims, embedding.kind, embedding.bytes.len()),
        (&[32, 2][..], GgmlType::Q8_0, 68)
    );
    assert_eq!((embedding.cols(), embedding.rows()), (32, 2));
    assert_eq!(embedding.to_f32().unwrap(), [[1.0; 32], [4.0; 32]].concat());
    assert_eq!(model.tensor("norm").unwrap().to_f32().unwrap(), [1.0, 2.0, 3.0]);
    assert_eq!(model.tensor("half").unwrap().rows(), 2);
    let scalar = model.tensor("scalar").unwrap();
    assert_eq!(
        (scalar.cols(), scalar.rows(), scalar.to_f32().unwrap()),
        (1, 1, vec![1.0])
    );
    assert_eq!(model.find_tensor("absent").unwrap(), None);
    let error = model.tensor("absent").unwrap_err();
    assert!(matches!(error.fault(), ModelFileError::TensorMissing { name } if name == "absent"));
    assert_eq!(model.file_bytes(), fs::metadata(&path).unwrap().len());
}

/// Bytes whose pages were given back read the same again.
#[test]
fn dropped_pages_read_the_same_again() {
    let folder = tempfile::tempdir().unwrap();
    let data: Vec<u8> = (0..40_000u32).flat_map(|i| (i as f32).to_le_bytes()).collect();
    let writer = GgufWriter::default().tensor("long", &[40_000], 0, &data);
    let model = ModelFile::open(&writer.write(folder.path())).unwrap();
    let tensor = model.tensor("long").unwrap();
    assert_eq!(tensor.bytes, data);
    model.drop_pages(tensor.bytes);
    assert_eq!(tensor.bytes, data);
    model.drop_pages(&data);
    model.drop_pages(&[]);
}

/// `general.alignment` moves the data section and the tensors in it.
#[test]
fn alignment_is_followed() {
    let writer = GgufWriter {
        alignment: 256,
        ..GgufWriter::default()
    }
    .number("general.alignment", 256);
    let writer = writer
        .tensor("a", &[1], 0, &[0, 0, 0x80, 0x3f])
        .tensor("b", &[1], 0, &[0, 0, 0, 0x40]);
    let (_folder, file) = opened(&writer);
    assert_eq!(file.find_tensor("a").unwrap().to_f32().unwrap(), [1.0]);
    assert_eq!(file.find_tensor("b").unwrap().to_f32().unwrap(), [2.0]);
    for bad in [0, 3, 48] {
        let error = refusal(&GgufWriter::default().number("general.alignment", bad));
        assert!(matches!(error, ModelFileError::MetadataType { ref key, .. } if key == "general.alignment"));
    }
    assert!(GgufHeader::parse(&GgufWriter::default().text("general.alignment", "32").bytes()).is_err());
}

/// What is no GGUF file is refused with what it starts with instead.
#[test]
fn other_magic_is_refused() {
    let error = refusal(&GgufWriter {
        magic: *b"ggjt",
        ..GgufWriter::default()
    });
    assert!(
        error
            .to_string()
            .contains("starts with \"ggjt\" where \"GGUF\" is expected"),
        "{error}"
    );
    let error = GgufHeader::parse(b"\0\n").unwrap_err();
    assert!(error.to_string().contains(r#"starts with "\x00\n""#), "{error}");
    assert!(matches!(
        GgufHeader::parse(b"").unwrap_err(),
        ModelFileError::Magic { .. }
    ));
}

/// Other versions and the other byte order are told apart.
#[test]
fn other_versions_and_byte_orders_are_refused() {
    for version in [0, 1, 4] {
        let error = refusal(&full_gguf(version));
        assert!(
            matches!(error, ModelFileError::Version { found } if found == version),
            "{error}"
        );
    }
    let error = refusal(&full_gguf(3u32.swap_bytes()));
    assert!(matches!(error, ModelFileError::BigEndian { version: 3 }), "{error}");
}

/// A file that is cut anywhere is refused: in the header by place, in the data by tensor.
#[test]
fn a_file_cut_anywhere_is_refused() {
    let bytes = full_gguf(3).bytes();
    for length in 0..bytes.len() {
        let error = GgufHeader::parse(&bytes[..length]).expect_err("a part of a file");
        assert!(!error.to_string().is_empty());
    }
    let error = GgufHeader::parse(&bytes[..bytes.len() - 1]).unwrap_err();
    let expected = format!(
        "the file is cut short: tensor \"scalar\" ends at byte {} but the file has {}; download it again",
        bytes.len(),
        bytes.len() - 1
    );
    assert_eq!(error.to_string(), expected);
    let error = GgufHeader::parse(&bytes[..30]).unwrap_err();
    assert!(
        error.to_string().contains("is cut short") || error.to_string().contains("impossible"),
        "{error}"
    );
}

/// Counts the file cannot hold are refused before anything is allocated for them.
#[test]
fn impossible_counts_are_refused() {
    let huge = [u64::MAX, u64::MAX / 13, 1 << 62, 1 << 32];
    for count in huge {
        let error = refusal(&GgufWriter {
            num_entries: Some(count),
            ..full_gguf(3)
        });
        assert!(
            matches!(
                error,
                ModelFileError::Count {
                    what: "metadata keys",
                    ..
                }
            ),
            "{error}"
        );
        let error = refusal(&GgufWriter {
            num_tensors: Some(count),
            ..full_gguf(3)
        });
        assert!(
            matches!(error, ModelFileError::Count { what: "tensors", .. }),
            "{error}"
        );
        for element_type in 0..=12 {
            let error = refusal(&GgufWriter::default().entry("a", 9, &array(element_type, count, &[0; 64])));
            assert!(
                matches!(
                    error,
                    ModelFileError::Count {
                        what: "array elements",
                        ..
                    }
                ),
                "{error}"
            );
        }
        let error = refusal(&GgufWriter::default().entry("s", 8, &count.to_le_bytes()));
        assert!(
            matches!(
                error,
                ModelFileError::HeaderTruncated {
                    what: "metadata value",
                    ..
                }
            ),
            "{error}"
        );
    }
}

/// Types, truth values and text that the format does not have are refused.
#[test]
fn values_outside_the_format_are_refused() {
    for writer in [
        GgufWriter::default().entry("k", 13, &[0; 8]),
        GgufWriter::default().entry("k", 9, &array(13, 1, &[0; 8])),
        GgufWriter::default().entry("k", 7, &[2]),
        GgufWriter::default().entry("k", 9, &array(7, 2, &[1, 255])),
    ] {
        let error = refusal(&writer);
        assert!(matches!(error, ModelFileError::Header { .. }), "{error}");
    }
    let error = refusal(&GgufWriter::default().entry("k", 8, &[&1u64.to_le_bytes()[..], &[0xff]].concat()));
    assert!(
        matches!(
            error,
            ModelFileError::Utf8 {
                what: "metadata value",
                ..
            }
        ),
        "{error}"
    );
}

/// Arrays nested deeper than three are refused instead of followed.
#[test]
fn deep_arrays_are_refused() {
    let nested = |depth: usize| (1..depth).fold(array(0, 1, &[1]), |inner, _| array(9, 1, &inner));
    assert!(GgufHeader::parse(&GgufWriter::default().entry("k", 9, &nested(3)).bytes()).is_ok());
    let error = refusal(&GgufWriter::default().entry("k", 9, &nested(4)));
    assert!(error.to_string().contains("array nesting"), "{error}");
    assert!(GgufHeader::parse(&GgufWriter::default().entry("k", 9, &nested(2_000)).bytes()).is_err());
}

/// Keys and tensor names must be unique and of bounded length, and an error repeats at most their beginning.
#[test]
fn repeated_and_endless_names_are_refused() {
    let error = refusal(&GgufWriter::default().number("k", 1).number("k", 1));
    assert!(
        matches!(error, ModelFileError::Duplicate { what: "metadata key", ref name } if name == "k"),
        "{error}"
    );
    let error = refusal(
        &GgufWriter::default()
            .tensor("t", &[1], 0, &[0; 4])
            .tensor("t", &[1], 0, &[0; 4]),
    );
    assert!(
        matches!(
            error,
            ModelFileError::Duplicate {
                what: "tensor name",
                ..
            }
        ),
        "{error}"
    );
    let error = refusal(&GgufWriter::default().tensor(&"n".repeat(257), &[1], 0, &[0; 4]));
    assert!(
        matches!(
            error,
            ModelFileError::Length {
                length: 257,
                limit: 256,
                ..
            }
        ),
        "{error}"
    );
    let error = refusal(&GgufWriter::default().number(&"k".repeat(65_536), 1));
    assert!(matches!(error, ModelFileError::Length { limit: 65_535, .. }), "{error}");
    let long = "k".repeat(60_000);
    let error = refusal(&GgufWriter::default().number(&long, 1).number(&long, 1));
    assert!(error.to_string().len() < 400);
}

/// A tensor type that is not read is refused with the tensor's name and the number.
#[test]
fn unknown_tensor_types_are_refused_by_name_and_number() {
    let error = refusal(&GgufWriter::default().tensor("blk.0.odd", &[32], 40, &[0; 17]));
    let text =
        "tensor \"blk.0.odd\" has element type number 40, which is not supported; expected one of F32, F16, BF16,";
    assert!(error.to_string().starts_with(text), "{error}");
    for kind in GgmlType::ALL.into_iter().filter(|kind| kind.id().is_some()) {
        assert!(
            error.to_string().contains(kind.name()),
            "{} is not offered",
            kind.name()
        );
    }
}

/// Dimensions that are zero, too many, too large, or not whole blocks are refused.
#[test]
fn impossible_dimensions_are_refused() {
    let cases: [(&[u64], u32, &str); 7] = [
        (&[0], 0, "a dimension is 0"),
        (&[4, 0], 0, "a dimension is 0"),
        (&[1, 1, 1, 1, 1], 0, "5 of them"),
        (&[33], 8, "must be a multiple of 32"),
        (&[u64::MAX], 0, "has more bytes than"),
        (&[1 << 32, 1 << 32], 0, "more elements than"),
        (&[1 << 62, 4], 10, "more elements than"),
    ];
    for (dims, type_id, problem) in cases {
        let error = refusal(&GgufWriter::default().tensor("t", dims, type_id, &[0; 64]));
        assert!(matches!(error, ModelFileError::Dimensions { .. }), "{error}");
        assert!(error.to_string().contains(problem), "{error}");
    }
}

/// Tensors that are misaligned, outside the file, or share bytes are refused.
#[test]
fn misplaced_tensors_are_refused() {
    let error = refusal(
        &GgufWriter::default()
            .tensor("a", &[8], 0, &[0; 32])
            .tensor_at("b", &[1], 0, 4),
    );
    assert!(
        matches!(
            error,
            ModelFileError::Misaligned {
                offset: 4,
                alignment: 32,
                ..
            }
        ),
        "{error}"
    );
    for offset in [64, 1 << 40, u64::MAX - 31] {
        let error = refusal(
            &GgufWriter::default()
                .tensor("a", &[16], 0, &[0; 64])
                .tensor_at("b", &[1], 0, offset),
        );
        assert!(
            matches!(error, ModelFileError::TensorTruncated { ref name, .. } if name == "b"),
            "{error}"
        );
    }
    let error = refusal(
        &GgufWriter::default()
            .tensor("a", &[16], 0, &[0; 64])
            .tensor_at("b", &[8], 0, 32),
    );
    assert!(
        matches!(&error, ModelFileError::Overlap { first, second, .. } if first == "a" && second == "b"),
        "{error}"
    );
    let error = refusal(
        &GgufWriter::default()
            .tensor("a", &[16], 0, &[0; 64])
            .tensor_at("b", &[16], 0, 0),
    );
    assert!(matches!(error, ModelFileError::Overlap { .. }), "{error}");
}

fn part(no: u8, count: u8, tensor: &str) -> GgufWriter {
    GgufWriter::default()
        .entry("split.no", 2, &[no, 0])
        .entry("split.count", 2, &[count, 0])
        .tensor(tensor, &[4], 0, &[no; 16])
}

fn write_parts(folder: &Path, parts: &[GgufWriter]) -> Vec<PathBuf> {
    let name = |index| format!("m-{:05}-of-{:05}.gguf", index + 1, parts.len());
    let paths: Vec<PathBuf> = (0..parts.len()).map(|index| folder.join(name(index))).collect();
    for (path, part) in paths.iter().zip(parts) {
        fs::write(path, part.bytes()).unwrap();
    }
    paths
}

/// The files of a split model are read as one, whichever is given; what is said of the model is the first's.
#[test]
fn a_split_model_is_read_whole() {
    let folder = tempfile::tempdir().unwrap();
    let first = part(0, 3, "a").text("general.architecture", "llama");
    let first = first.entry("split.tensors.count", 5, &3i32.to_le_bytes());
    let paths = write_parts(folder.path(), &[first, part(1, 3, "b"), part(2, 3, "c")]);
    for path in &paths {
        let model = ModelFile::open(path).unwrap();
        let names: Vec<_> = model.tensors().map(|tensor| tensor.name.to_owned()).collect();
        assert_eq!((names.concat().as_str(), model.path()), ("abc", &*paths[0]));
        assert_eq!(model.tensor("c").unwrap().bytes, [2; 16]);
        let mut read = [0; 16];
        model.read(model.tensor("b").unwrap().bytes, &mut read).unwrap();
        assert_eq!(read, [1; 16]);
        model.drop_pages(model.tensor("b").unwrap().bytes);
        let sizes = paths.iter().map(|path| fs::metadata(path).unwrap().len());
        assert_eq!(model.file_bytes(), sizes.sum::<u64>());
        let ModelFile::Gguf(file) = &model else {
            panic!("a GGUF file")
        };
        assert_eq!(file.metadata_str("general.architecture").unwrap(), "llama");
    }
}

/// A split model that is not whole is refused with the file at fault.
#[test]
fn a_split_model_that_is_not_whole_is_refused() {
    let refusal = |parts: &[GgufWriter], absent: Option<usize>, name: Option<&str>| {
        let folder = tempfile::tempdir().unwrap();
        let paths = write_parts(folder.path(), parts);
        if let Some(index) = absent {
            fs::remove_file(&paths[index]).unwrap();
        }
        let mut given = paths[0].clone();
        if let Some(name) = name {
            given = folder.path().join(name);
            fs::rename(&paths[0], &given).unwrap();
        }
        ModelFile::open(&given).unwrap_err().to_string()
    };
    let two = [part(0, 2, "a"), part(1, 2, "b")];
    let text = refusal(&two, Some(1), None);
    assert!(
        text.contains("m-00002-of-00002.gguf") && text.contains("find the file"),
        "{text}"
    );
    let text = refusal(&two, None, Some("model.gguf"));
    assert!(text.contains("NAME-00001-of-00002.gguf"), "{text}");
    let text = refusal(&[part(0, 2, "a"), part(0, 2, "b")], None, None);
    assert!(
        text.contains("the name says file 2 of 2, but the file says it is number 1"),
        "{text}"
    );
    let text = refusal(&[part(0, 2, "a"), GgufWriter::default()], None, None);
    assert!(text.contains("number 0"), "{text}");
    let text = refusal(&[part(0, 2, "a"), part(1, 2, "a")], None, None);
    assert!(
        text.contains("m-00002-of-00002.gguf") && text.contains("tensor name"),
        "{text}"
    );
    let more = part(0, 2, "a").entry("split.tensors.count", 5, &9i32.to_le_bytes());
    let text = refusal(&[more, part(1, 2, "b")], None, None);
    assert!(text.contains("2 tensors together, but the first says 9"), "{text}");
    let huge = GgufWriter::default().entry("split.count", 10, &u64::MAX.to_le_bytes());
    let text = refusal(&[huge], None, None);
    assert!(text.contains("join them with gguf-split"), "{text}");
    let last = GgufWriter::default()
        .entry("split.no", 2, &[9, 0])
        .entry("split.count", 2, &[2, 0]);
    assert!(refusal(&[last], None, None).contains("file 10 of a model split into 2"));
    assert!(GgufHeader::parse(&GgufWriter::default().entry("split.count", 2, &[1, 0]).bytes()).is_ok());
}

/// Paths that are no model are refused with what they are.
#[test]
fn paths_that_are_no_model_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let absent = folder.path().join("absent.gguf");
    let text = ModelFile::open(&absent).unwrap_err().to_string();
    assert!(
        text.starts_with(&format!("{}: cannot find the file", absent.display())),
        "{text}"
    );
    let lone = folder.path().join("model.safetensors");
    fs::write(&lone, b"").unwrap();
    let text = ModelFile::open(&lone).unwrap_err().to_string();
    assert!(text.ends_with("give the folder it is in"), "{text}");
    let empty = folder.path().join("empty.gguf");
    fs::write(&empty, b"").unwrap();
    assert!(
        matches!(ModelFile::open(&empty).unwrap_err().fault(), ModelFileError::Magic { found } if found.is_empty())
    );
    let error = GgufFile::open(folder.path()).unwrap_err();
    assert!(
        matches!(error.fault(), ModelFileError::NotAModel { got } if got == "a folder"),
        "{error}"
    );
}
