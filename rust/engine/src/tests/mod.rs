//! Tensors of a file: those that are packed alike become one.

mod files;

use files::{Tensor, floats, int8, value, write};

use crate::Tensors;

#[test]
fn matrices_that_are_packed_alike_are_held_as_one() {
    let of_all = Tensor::Int8 { format: "int8:tensor", shape: vec![2, 4], codes: vec![3; 8], scales: vec![0.5] };
    let plain = floats(&[2, 4], value);
    let all = [
        ("a", int8(&[3, 4], -7)),
        ("b", int8(&[2, 4], 5)),
        ("wide", int8(&[2, 6], 1)),
        ("one", of_all),
        ("plain", plain),
    ];
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.octavo.safetensors");
    write(&path, &all.into_iter().map(|(name, tensor)| (name.to_owned(), tensor)).collect());
    let file = Tensors::open(&path).unwrap();
    let held = |name: &str| file.held(name).unwrap().unwrap().decode().unwrap();
    let together = file.held_together(&["b", "a"]).unwrap().unwrap();
    assert_eq!(together.decode().unwrap(), [held("b"), held("a")].concat());
    for other in ["wide", "one", "plain"] {
        assert!(file.held_together(&["a", other]).unwrap().is_none(), "{other}");
    }
    assert!(file.held_together(&["a", "missing"]).is_err());
}
