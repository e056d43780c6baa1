//! Folders: what is read, and what is refused, with the file, the tensor and the reason.

use std::sync::Arc;

use octavo_core::container::Dtype;
use octavo_core::error::ContainerError;
use octavo_core::linear::Prepared;
use octavo_core::{Error as CoreError, Format, Layout, Level, Options as Encoding, PackedMut, Sizes, Values, codec};
use octavo_engine::{Error, ModelFault};

use super::files::{Tensor, Tensors, floats, int8, value, write};
use super::{CONFIG, config, model};
use crate::seq2seq::linear::Linear;
use crate::seq2seq::workspace::Workspace;
use crate::weights::{Weight, Weights};
use crate::{Config, Engine, Form, Options, Precision, Route};

/// A folder with the given weights.
fn folder(model: &Tensors) -> tempfile::TempDir {
    super::folder(&[("model.safetensors", model)])
}

#[test]
fn the_weights_lie_under_one_of_two_names() {
    let tensors = model();
    let (former, folder) = (folder(&tensors), tempfile::tempdir().unwrap());
    let told = Weights::load(folder.path(), &config()).unwrap_err().to_string();
    assert!(told.contains("no model.octavo.safetensors, no model.safetensors"), "{told}");
    write(&folder.path().join("model.octavo.safetensors"), &tensors);
    let found = Weights::load(folder.path(), &config()).unwrap();
    assert_eq!(found, Weights::load(former.path(), &config()).unwrap());
    write(&folder.path().join("model.safetensors"), &tensors);
    let told = Weights::load(folder.path(), &config()).unwrap_err().to_string();
    assert!(told.contains("keep the one that is meant"), "{told}");
}

#[test]
fn every_way_to_store_a_tensor_is_read() {
    let mut tensors = model();
    let half = |bits: fn(f32) -> u16, i: usize| bits(value(i)).to_le_bytes();
    let f16 = |value| half::f16::from_f32(value).to_bits();
    let bf16 = |value| half::bf16::from_f32(value).to_bits();
    let bytes = |bits: fn(f32) -> u16, count| (0..count).flat_map(|i| half(bits, i)).collect();
    tensors.insert("output.bias".to_owned(), Tensor::Plain(Dtype::F16, vec![9], bytes(f16, 9)));
    tensors.insert("output_norm.bias".to_owned(), Tensor::Plain(Dtype::BF16, vec![4], bytes(bf16, 4)));
    tensors.insert("output.weight".to_owned(), int8(&[9, 4], -7));
    let weights = Weights::load(folder(&tensors).path(), &config()).unwrap();
    assert_eq!(weights.get("bridge.weight").unwrap().0, [8, 4]);
    assert!(matches!(weights.get("output.weight").unwrap().1, Weight::Packed(held) if held.nbytes() == 36 + 9 * 4));
    assert_eq!(weights.values("bridge.weight").unwrap()[31], value(31));
    assert_eq!(weights.values("output.bias").unwrap()[3], half::f16::from_f32(value(3)).to_f32());
    assert_eq!(weights.values("output_norm.bias").unwrap()[3], half::bf16::from_f32(value(3)).to_f32());
    assert_eq!(*weights.values("output.weight").unwrap(), [-3.5; 36]);
    assert!(weights.get("nonsense").is_err());
}

#[test]
fn packed_tensors_are_what_the_codec_decodes() {
    let format = Format::parse("int8:channel").unwrap();
    let x: Vec<f32> = (0..36).map(value).collect();
    let layout = Layout::new(&[9, 4], 1, format).unwrap();
    let sizes = Sizes::new(format, &layout).unwrap();
    let (mut codes, mut scales) = (vec![0; sizes.codes], vec![0; sizes.scales]);
    let out = PackedMut { codes: &mut codes, scales: &mut scales, zeros: &mut [], levels: &mut [] };
    codec::encode(Values::F32(&x), layout, format, &Encoding::default(), out).unwrap();
    let scales: Vec<f32> = scales.as_chunks().0.iter().map(|&word| f32::from_le_bytes(word)).collect();
    let mut tensors = model();
    let codes: Vec<i8> = codes.iter().map(|&code| code as i8).collect();
    let expected: Vec<f32> = codes.iter().enumerate().map(|(i, &code)| f32::from(code) * scales[i / 4]).collect();
    let packed = Tensor::Int8 { format: "int8:channel", shape: vec![9, 4], codes, scales };
    tensors.insert("output.weight".to_owned(), packed);
    let weights = Weights::load(folder(&tensors).path(), &config()).unwrap();
    assert_eq!(*weights.values("output.weight").unwrap(), expected);
}

#[test]
fn wrong_tensors_are_refused() {
    for (name, tensor, reason) in [
        ("output.bias", None, "output.bias: is missing; the configuration demands it with shape [9]"),
        ("extra\u{1b}", Some(floats(&[1], value)), "extra\\u{1b}: is left over"),
        ("output.bias", Some(floats(&[9, 1], value)), "shape [9, 1]; the configuration demands [9]"),
        (
            "output.bias",
            Some(Tensor::Plain(Dtype::I32, vec![9], vec![0; 36])),
            "dtype I32; accepted are F32, F16, BF16 and packed",
        ),
        ("output.bias", Some(floats(&[9], |i| 1.0 / (i as f32 - 5.0))), "value inf at flat position 5"),
        ("output.weight", Some(int8(&[4, 9], 1)), "shape [4, 9]; the configuration demands [9, 4]"),
    ] {
        let mut tensors = model();
        match tensor {
            Some(tensor) => tensors.insert(name.to_owned(), tensor),
            None => tensors.remove(name),
        };
        let folder = folder(&tensors);
        let error = Weights::load(folder.path(), &config()).unwrap_err().to_string();
        assert!(error.contains(reason) && error.contains("model.safetensors: "), "{error}");
    }
}

#[test]
fn refusals_carry_file_tensor_and_fault() {
    let refusal = |name: &str, tensor: Tensor| {
        let mut tensors = model();
        tensors.insert(name.to_owned(), tensor);
        Weights::load(folder(&tensors).path(), &config()).unwrap_err()
    };
    let (found, demanded) = (vec![9, 1], vec![9]);
    let i32s = Tensor::Plain(Dtype::I32, vec![9], vec![0; 36]);
    for (name, tensor, wanted) in [
        ("extra", floats(&[1], value), ModelFault::LeftOver),
        ("output.bias", floats(&[9, 1], value), ModelFault::Shape { found, by: "the configuration", demanded }),
        (
            "output.bias",
            floats(&[9], |i| i as f32 / 5.0 * f32::MAX),
            ModelFault::NotFinite { value: f32::INFINITY, position: 6 },
        ),
        (
            "output.bias",
            i32s,
            ModelFault::Dtype { found: Dtype::I32, accepted: "are F32, F16, BF16 and packed formats" },
        ),
    ] {
        let error = refusal(name, tensor);
        assert_eq!(error.fault(), Some(&wanted), "{error}");
        let Error::Core(CoreError::Container(ContainerError::At { place, fault })) = &error else {
            panic!("{error:?}")
        };
        assert!(place.ends_with("model.safetensors"), "{place}");
        assert!(matches!(&**fault, ContainerError::Tensor { name: found, .. } if found == name), "{fault:?}");
    }
    let text = CONFIG.replacen("\"heads\":2", "\"heads\":65", 1);
    let error = Config::parse(text.as_bytes()).unwrap_err();
    let wanted = ModelFault::Number { field: "heads", value: 65, least: 1, largest: 64 };
    assert_eq!(error.fault(), Some(&wanted), "{error}");
    assert_eq!(error.fault::<std::io::Error>().map(ToString::to_string), None);
}

#[test]
fn prepared_weights_fill_a_workspace_and_change_no_bit() {
    let mut tensors = model();
    tensors.insert("output.weight".to_owned(), int8(&[9, 4], -7));
    let weights = Weights::load(folder(&tensors).path(), &config()).unwrap();
    let Weight::Packed(held) = weights.get("output.weight").unwrap().1 else { panic!("not packed") };
    let bytes = Prepared::bytes(&held.matrix(9, 4)).unwrap();
    let none = Workspace::new(bytes - 1);
    let two = Workspace::new(3 * bytes - 1);
    let bias: Vec<f32> = (0..9).map(value).collect();
    let layer = |workspace| Linear::packed(Arc::clone(held), 4, 9, &bias, workspace).unwrap();
    let (packed, prepared) = (layer(&none), [layer(&two), layer(&two), layer(&two)]);
    assert_eq!((none.nbytes(), two.nbytes()), (0, 0));
    let x: Vec<f32> = (0..24).map(|i| value(i + 3)).collect();
    let expected = packed.apply(&x).unwrap();
    std::thread::scope(|scope| {
        for layer in prepared.iter().cycle().take(12) {
            let (x, expected) = (&x, &expected);
            scope.spawn(move || {
                assert_eq!(&layer.apply(x).unwrap(), expected);
                assert_eq!(layer.apply(&x[8..12]).unwrap(), expected[18..27]);
            });
        }
    });
    let made = if Level::current() == Level::Scalar { 0 } else { 2 * bytes };
    assert_eq!((none.nbytes(), two.nbytes()), (0, made));
}

#[test]
fn a_folder_answers_lines_and_streams() {
    let folder = folder(&model());
    let options = |threads| Options { route: Route::General, threads, ..Options::default() };
    let engine = Engine::load(folder.path(), options(1)).unwrap();
    let lines = ["abc", "", "xyzxyzxyz", "q", "a", "zzzz"];
    for beam in [1, 3, 9] {
        let answers = engine.expand(&lines, beam).unwrap();
        let failed: Vec<bool> = answers.iter().map(Result::is_err).collect();
        assert_eq!(failed, [false, true, true, true, false, false]);
        let other = Engine::load(folder.path(), options(3)).unwrap();
        assert_eq!(other.expand(&lines, beam).unwrap(), answers);
        let (mut out, mut failures) = (Vec::new(), Vec::new());
        let text = lines.join("\n");
        let failed = |failure: &(u64, crate::LineError)| {
            failures.push(failure.clone());
            Ok(())
        };
        let summary = engine.expand_stream(text.as_bytes(), &mut out, failed, beam, Form::Text).unwrap();
        let expected: String = answers.iter().map(|answer| answer.clone().unwrap_or_default() + "\n").collect();
        assert_eq!((String::from_utf8(out).unwrap(), summary.lines, summary.failed), (expected, 6, 3));
        assert_eq!(failures.iter().map(|failure| failure.0).collect::<Vec<_>>(), [2, 3, 4]);
    }
    assert!(engine.expand(&lines, 0).is_err() && engine.expand(&lines, 10).is_err());
    let integer = Options { precision: Precision::Integer, route: Route::General, ..Options::default() };
    assert!(Engine::load(folder.path(), integer).unwrap_err().to_string().contains("fused route only"));
    let crowd = Engine::load(folder.path(), options(100_000)).unwrap_err().to_string();
    assert!(crowd.contains("100000 threads; accepted are 0 (default) to 256"), "{crowd}");
}

/// A writer whose other end is closed.
struct Closed;

impl std::io::Write for Closed {
    fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
        Err(std::io::ErrorKind::BrokenPipe.into())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_closed_writer_ends_a_stream_quietly() {
    let engine = Engine::load(folder(&model()).path(), Options::default()).unwrap();
    let summary = engine.expand_stream("a\nb\n".repeat(9).as_bytes(), Closed, |_| Ok(()), 1, Form::Text).unwrap();
    assert!(summary.closed && summary.lines == 18);
}
