//! Folders of the shipped architecture: what is read, what is refused, and that answers do not depend on threads.

use std::path::Path;

use super::files::{Tensor, Tensors, floats, int8, integers, value};
use super::{CONFIG, config, model};
use crate::integer_weights::integer_layers;
use crate::{Architecture, Config, Engine, IntegerFault, IntegerWeights, Options, Precision, Route};

fn integer_model() -> Tensors {
    let (layers, vocabulary) = (integer_layers(&config()), config().vocabulary);
    let mut tensors = Tensors::new();
    for (name, (rows, columns)) in layers.linears {
        tensors.insert(format!("{name}.weight"), int8(&[rows, columns], 3));
        tensors.insert(format!("{name}.bias"), integers(&[rows], |i| i as i32 - 2));
        tensors.insert(format!("{name}.input_scale"), floats(&[], |_| 0.25));
        let bits = if name == "bridge" { 16 } else { 8 };
        tensors.insert(format!("{name}.input_bits"), integers(&[], |_| bits));
    }
    for (name, units) in layers.lstms {
        tensors.insert(format!("{name}.weight_hh"), int8(&[4 * units, units], -127));
        tensors.insert(format!("{name}.table"), integers(&[vocabulary, 4 * units], |i| i as i32));
        tensors.insert(format!("{name}.state_scale"), floats(&[], |_| 1.0 / 127.0));
    }
    for (name, width) in layers.norms {
        tensors.insert(format!("{name}.weight"), floats(&[width], |_| 1.0));
        tensors.insert(format!("{name}.bias"), floats(&[width], |_| 0.0));
    }
    tensors
}

/// A folder with the given weights.
fn folder(model: &Tensors, integer: &Tensors) -> tempfile::TempDir {
    super::folder(&[("model.safetensors", model), ("integer.safetensors", integer)])
}

#[test]
fn the_integer_model_lies_where_the_configuration_says() {
    let folder = folder(&model(), &integer_model());
    let former = IntegerWeights::load(folder.path(), &config()).unwrap();
    let text = CONFIG.replacen("\"octavo\":1", "\"octavo\":2, \"variants\": {\"integer\": \"other.safetensors\"}", 1);
    let config = Config::parse(text.as_bytes()).unwrap();
    std::fs::rename(folder.path().join("integer.safetensors"), folder.path().join("other.safetensors")).unwrap();
    assert_eq!(IntegerWeights::load(folder.path(), &config).unwrap(), former);
    let bare = Config { variants: Default::default(), ..config };
    let told = IntegerWeights::load(folder.path(), &bare).unwrap_err().to_string();
    assert!(told.contains("names no variant 'integer'"), "{told}");
}

#[test]
fn integer_models_are_read() {
    let weights = IntegerWeights::load(folder(&model(), &integer_model()).path(), &config()).unwrap();
    let layer = weights.linear("blocks.0.feedforward.expand").unwrap();
    assert_eq!((layer.rows, layer.columns, layer.codes[19], layer.bias[4]), (5, 4, 3, 2));
    assert_eq!((layer.scales[4], layer.input_scale, layer.wide), (0.5, 0.25, false));
    assert!(weights.linear("bridge").unwrap().wide);
    let lstm = weights.lstm("encoder.backwards").unwrap();
    assert_eq!((lstm.units, lstm.codes[15], lstm.table[71], lstm.scales[7]), (2, -127, 71, 0.5));
    assert_eq!(weights.norm("memory_norm").unwrap().weight, [1.0; 4]);
    assert!(weights.linear("decoder").is_err() && weights.lstm("bridge").is_err() && weights.norm("norm").is_err());
}

#[test]
fn wrong_integer_models_are_refused() {
    let scales = |scale| {
        let (codes, scales) = (vec![1; 36], vec![scale; 9]);
        Some(Tensor::Int8 { format: "int8:channel", shape: vec![9, 4], codes, scales })
    };
    let other = Tensor::Int8 { format: "int8:tensor", shape: vec![9, 4], codes: vec![1; 36], scales: vec![1.0] };
    for (name, tensor, reason) in [
        ("output.input_scale", None, "is missing; the configuration demands it with shape []"),
        ("output.scale", Some(floats(&[], value)), "output.scale: is left over"),
        ("output.weight", Some(int8(&[9, 4], -128)), "code -128 at flat position 0; accepted are -127 to 127"),
        ("output.weight", Some(floats(&[9, 4], value)), "plain F32; accepted is packed as 'int8:channel'"),
        ("output.weight", Some(other), "packed as 'int8' along axis 1; accepted is 'int8:channel'"),
        ("output.weight", scales(f32::NAN), "scale NaN of row 0"),
        ("output.weight", scales(-0.5), "scale -0.5 of row 0"),
        ("output.bias", Some(floats(&[9], value)), "dtype F32; accepted is I32"),
        ("output.bias", Some(int8(&[9], 1)), "packed as 'int8:channel'; accepted is plain I32"),
        ("output.bias", Some(integers(&[9], |_| i32::MIN)), "with its matrix a sum may reach 2147485172"),
        ("decoder.table", Some(integers(&[9, 16], |_| i32::MAX)), "with its matrix a sum may reach"),
        ("output.input_scale", Some(floats(&[], |_| 0.0)), "accepted is one number above 0 with a finite inverse"),
        ("output.input_scale", Some(floats(&[], |_| 1e-40)), "accepted is one number above 0 with a finite inverse"),
        ("decoder.state_scale", Some(floats(&[], |_| -1.0)), "accepted is one number above 0"),
        ("self_attention.key.input_scale", Some(floats(&[], |_| 0.5)), "which reads the same tensor, has"),
        ("output.input_bits", Some(integers(&[], |_| 12)), "[12]; accepted is one number, 8 or 16"),
        ("self_attention.key.input_bits", Some(integers(&[], |_| 16)), "other than those of self_attention.key, which"),
        ("bridge.bias", Some(integers(&[8], |_| i32::MAX - 300_000)), "with its matrix a sum may reach"),
        ("self_norm.bias", Some(floats(&[4], |_| f32::NAN)), "value NaN at flat position 0"),
    ] {
        let mut tensors = integer_model();
        match tensor {
            Some(tensor) => tensors.insert(name.to_owned(), tensor),
            None => tensors.remove(name),
        };
        let folder = folder(&model(), &tensors);
        let error = IntegerWeights::load(folder.path(), &config()).unwrap_err().to_string();
        assert!(error.contains(reason) && error.contains("integer.safetensors: "), "{name}: {error}");
    }
    let transformer = Config { architecture: Architecture::Transformer, ..config() };
    assert!(IntegerWeights::load(Path::new("absent"), &transformer).unwrap_err().to_string().contains("are hybrid"));
    let mut tensors = integer_model();
    tensors.insert("output.input_bits".to_owned(), integers(&[], |_| 12));
    let error = IntegerWeights::load(folder(&model(), &tensors).path(), &config()).unwrap_err();
    assert_eq!(error.fault(), Some(&IntegerFault::Bits { found: vec![12] }), "{error}");
}

#[test]
fn answers_do_not_depend_on_threads_or_tiles() {
    let folder = folder(&model(), &Tensors::new());
    let lines: Vec<String> = (0..700).map(|i| "abcxyz".repeat(2)[i % 5..i % 5 + 1 + i % 7].to_owned()).collect();
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    for precision in [Precision::Float, Precision::Bfloat16] {
        let with = |threads| Engine::load(folder.path(), Options { precision, threads, ..Options::default() }).unwrap();
        let engine = with(1);
        assert_eq!(engine.route(), Route::Fused);
        let alone: Vec<_> = lines.iter().map(|line| engine.expand(&[line], 1).unwrap().remove(0)).collect();
        for threads in [1, 2, 5] {
            assert_eq!(with(threads).expand(&lines, 1).unwrap(), alone, "{threads} threads");
        }
    }
}
