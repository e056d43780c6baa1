//! Files of a small model for tests of this crate and of those above it, which take this file by its path: what it needs is
//! octavo-core alone.

#![allow(dead_code, reason = "each test that takes this file uses a part")]

use std::collections::BTreeMap;
use std::path::Path;

use octavo_core::container::{Dtype, Entry, Packing, Writer};
use octavo_core::{DType, Format, Layout, Options, Packed, PackedMut, ScaleRule, Sizes, Values, codec};

/// A tensor to be written.
#[derive(Clone)]
pub(crate) enum Tensor {
    Plain(Dtype, Vec<usize>, Vec<u8>),
    Int8 {
        format: &'static str,
        shape: Vec<usize>,
        codes: Vec<i8>,
        scales: Vec<f32>,
    },
    /// Values, encoded along the last axis.
    Encoded {
        format: &'static str,
        shape: Vec<usize>,
        values: Vec<f32>,
    },
}

pub(crate) type Tensors = BTreeMap<String, Tensor>;

pub(crate) fn floats(shape: &[usize], values: impl Fn(usize) -> f32) -> Tensor {
    let count = shape.iter().product();
    Tensor::Plain(Dtype::F32, shape.to_vec(), (0..count).flat_map(|i| values(i).to_le_bytes()).collect())
}

pub(crate) fn integers(shape: &[usize], values: impl Fn(usize) -> i32) -> Tensor {
    let count = shape.iter().product();
    Tensor::Plain(Dtype::I32, shape.to_vec(), (0..count).flat_map(|i| values(i).to_le_bytes()).collect())
}

pub(crate) fn int8(shape: &[usize], value: i8) -> Tensor {
    let count: usize = shape.iter().product();
    let rows = count / shape[shape.len() - 1];
    Tensor::Int8 { format: "int8:channel", shape: shape.to_vec(), codes: vec![value; count], scales: vec![0.5; rows] }
}

pub(crate) fn write(path: &Path, tensors: &Tensors) {
    write_described(path, tensors, &BTreeMap::new());
}

/// The same with metadata.
pub(crate) fn write_described(path: &Path, tensors: &Tensors, metadata: &BTreeMap<String, String>) {
    let entries: Vec<_> = tensors
        .iter()
        .map(|(name, tensor)| {
            let entry = match tensor {
                Tensor::Plain(dtype, shape, _) => Entry::Plain { dtype: *dtype, shape: shape.clone() },
                Tensor::Int8 { format, shape, .. } | Tensor::Encoded { format, shape, .. } => {
                    let (format, axis) = (Format::parse(format).unwrap(), shape.len() - 1);
                    let (scale, dtype) = (ScaleRule::Floor, DType::F32);
                    Entry::Packed(Packing { format, scale, shape: shape.clone(), dtype, axis, nonzero: None })
                }
            };
            (name.clone(), entry)
        })
        .collect();
    let mut writer = Writer::create(path, &entries, metadata, true).unwrap();
    for (name, tensor) in tensors {
        match tensor {
            Tensor::Plain(_, _, bytes) => writer.put_plain(name, bytes).unwrap(),
            Tensor::Int8 { codes, scales, .. } => {
                let codes: Vec<u8> = codes.iter().map(|&code| code as u8).collect();
                let scales: Vec<u8> = scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
                let packed = Packed { codes: &codes, scales: &scales, ..Packed::default() };
                writer.put_packed(name, packed).unwrap();
            }
            Tensor::Encoded { format, shape, values } => {
                let format = Format::parse(format).unwrap();
                let layout = Layout::new(shape, -1, format).unwrap();
                let sizes = Sizes::new(format, &layout).unwrap();
                let [mut codes, mut scales, mut zeros, mut levels] =
                    [sizes.codes, sizes.scales, sizes.zeros, sizes.levels].map(|bytes| vec![0; bytes]);
                let out = PackedMut { codes: &mut codes, scales: &mut scales, zeros: &mut zeros, levels: &mut levels };
                codec::encode(Values::F32(values), layout, format, &Options::default(), out).unwrap();
                let packed = Packed { codes: &codes, scales: &scales, zeros: &zeros, levels: &levels };
                writer.put_packed(name, packed).unwrap();
            }
        }
    }
    writer.finish().unwrap();
}

pub(crate) fn value(i: usize) -> f32 {
    ((i * 7919 % 1013) as f32 - 506.0) / 311.0
}
