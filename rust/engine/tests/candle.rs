//! Packed weights as modules of candle: a Llama of them is our decoder, and they stand where candle's own modules do.

#![expect(clippy::unwrap_used, reason = "a test stops where its set-up fails")]

#[allow(dead_code, reason = "its main function is for the command line")]
#[path = "../examples/candle_llama.rs"]
mod candle_llama;
#[path = "../src/tests/files.rs"]
mod files;

use std::collections::BTreeMap;

use candle_core::{DType, Device, Module, Tensor, Var};
use candle_llama::Llama;
use candle_nn::{Activation, Embedding, Linear};
use octavo_core::{Format, Layout, Options, ValuesMut, codec};
use octavo_engine::Decoder;
use octavo_engine::candle::{PackedLinear, PackedVarBuilder};

const CONFIG: &str = r#"{"model_type": "llama", "vocab_size": 48, "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32,
    "rms_norm_eps": 1e-5, "rope_theta": 500.0, "tie_word_embeddings": TIED}"#;
/// The linear layers of a block of `CONFIG`, with their outputs and inputs.
const LAYERS: [(&str, [usize; 2]); 7] = [
    ("self_attn.q_proj", [64, 64]),
    ("self_attn.k_proj", [32, 64]),
    ("self_attn.v_proj", [32, 64]),
    ("self_attn.o_proj", [64, 64]),
    ("mlp.gate_proj", [96, 64]),
    ("mlp.up_proj", [96, 64]),
    ("mlp.down_proj", [64, 96]),
];

/// Numbers of -1 to 1, others for each seed.
fn noise(count: usize, seed: usize) -> Vec<f32> {
    let number = |i: usize| (i + 1_000_003 * seed) as u32;
    (0..count).map(|i| (number(i).wrapping_mul(0x9e37_79b9) >> 8) as f32 / 8_388_608.0 - 1.0).collect()
}

/// A Llama whose matrices are packed in a format, or plain, and whose layers round their inputs to another.
fn llama(format: Option<&'static str>, input: Option<&str>, tied: bool) -> tempfile::TempDir {
    let mut tensors = files::Tensors::new();
    let mut seed = 0;
    let mut matrix = |shape: [usize; 2]| {
        seed += 1;
        let values = noise(shape[0] * shape[1], seed).iter().map(|x| x * 0.2).collect();
        match format {
            Some(format) => files::Tensor::Encoded { format, shape: shape.to_vec(), values },
            None => files::floats(&shape, |i| values[i]),
        }
    };
    let mut described = Vec::new();
    tensors.insert("model.embed_tokens.weight".to_owned(), matrix([48, 64]));
    if !tied {
        tensors.insert("lm_head.weight".to_owned(), matrix([48, 64]));
    }
    for block in 0..2 {
        let block = format!("model.layers.{block}");
        for (name, shape) in LAYERS {
            tensors.insert(format!("{block}.{name}.weight"), matrix(shape));
            described.push(format!("{block}.{name}"));
        }
        for norm in ["input_layernorm", "post_attention_layernorm"] {
            tensors.insert(format!("{block}.{norm}.weight"), files::floats(&[64], |i| 1.0 + files::value(i) / 8.0));
        }
    }
    tensors.insert("model.norm.weight".to_owned(), files::floats(&[64], |i| 1.0 - files::value(i) / 8.0));
    let mut metadata = BTreeMap::new();
    if let Some(input) = input {
        let record = |name: &String| {
            format!(r#""{name}": {{"class": "PackedLinear", "input": {{"format": "{input}"}}, "output": null}}"#)
        };
        let layers: Vec<String> = described.iter().map(record).collect();
        let structure = format!(r#"{{"version": 1, "layers": {{{}}}, "ties": {{}}}}"#, layers.join(", "));
        metadata.insert("structure".to_owned(), structure);
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), CONFIG.replace("TIED", &tied.to_string())).unwrap();
    files::write_described(&folder.path().join("model.octavo.safetensors"), &tensors, &metadata);
    folder
}

/// The largest distance of two lists, in parts of the largest magnitude of the second.
fn distance(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let largest = b.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    a.iter().zip(b).fold(0.0f32, |most, (a, b)| most.max((a - b).abs())) / largest
}

fn numbers(x: &Tensor) -> Vec<f32> {
    x.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

#[test]
fn a_llama_of_candle_tensors_is_our_decoder() {
    let ids = [3, 47, 0, 11, 11, 30, 5, 8, 21];
    for (format, input, tied) in [
        (None, None, false),
        (Some("mxint8"), None, true),
        (Some("int4:g32"), None, false),
        (Some("mxfp4"), None, false),
        (Some("int8:channel"), Some("int8:channel"), false), // products of integers
        (Some("mxint8"), Some("mxint8"), true),
    ] {
        let folder = llama(format, input, tied);
        let wanted = Decoder::load(folder.path()).unwrap().all_scores(&ids, None).unwrap();
        let mut whole = Llama::load(folder.path()).unwrap();
        let scores = numbers(&whole.forward(&ids).unwrap());
        // Norms, softmax and sines are candle's, whose last bits differ; that may turn the rounding of an input.
        let bound = if input.is_some() { 2e-2 } else { 1e-5 };
        let off = distance(&scores, &wanted);
        assert!(off <= bound, "{format:?} {input:?}: {off}");
        let mut stepwise = Llama::load(folder.path()).unwrap();
        let parts = [&ids[..4], &ids[4..5], &ids[5..]].map(|part| numbers(&stepwise.forward(part).unwrap()));
        let off = distance(&parts.concat(), &wanted);
        assert!(off <= bound, "{format:?} {input:?} from the cache: {off}");
    }
}

#[test]
fn tensors_that_nothing_was_made_of_are_refused() {
    let folder = llama(Some("mxint8"), None, false);
    let builder = PackedVarBuilder::open(folder.path()).unwrap();
    builder.pp("lm_head").linear_no_bias(64, 48).unwrap();
    let told = builder.check_all_taken().unwrap_err().to_string();
    assert!(told.contains("model.embed_tokens.weight") && told.contains("is left over"), "{told}");
    let told = builder.pp("lm_head").linear(64, 48).unwrap_err().to_string();
    assert!(told.contains("lm_head.bias") && told.contains("is missing"), "{told}");
    let told = builder.pp("model.norm").get(63, "weight").unwrap_err().to_string();
    assert!(told.contains("shape [64]"), "{told}");
}

/// A weight as its codes say it.
fn quantized(weight: &Tensor, format: Format) -> Tensor {
    let (mut values, shape) = (numbers(weight), weight.dims());
    let layout = Layout::new(shape, -1, format).unwrap();
    codec::quantize_in_place(ValuesMut::F32(&mut values), layout, format, &Options::default()).unwrap();
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
}

fn random(shape: &[usize], seed: usize) -> Tensor {
    Tensor::from_vec(noise(shape.iter().product(), seed), shape, &Device::Cpu).unwrap()
}

#[test]
fn packed_layers_stand_where_those_of_candle_do() {
    let layers = [(random(&[96, 64], 1), random(&[96], 2)), (random(&[10, 96], 3), random(&[10], 4))];
    let inputs = [
        random(&[5, 64], 5),
        random(&[2, 3, 64], 6),
        random(&[64, 7], 7).t().unwrap(),
        random(&[1, 64], 8).broadcast_as((3, 64)).unwrap(),
        random(&[0, 64], 9),
    ];
    for name in ["mxint8", "int4:g32", "e4m3", "nf4", "int8:channel", "fixed8.6"] {
        let format = Format::parse(name).unwrap();
        let ours = layers.each_ref().map(|(weight, bias)| PackedLinear::pack(weight, Some(bias), format).unwrap());
        let bytes = (96 * 64 * format.width() as usize).div_ceil(8);
        assert!((bytes..=bytes + 96 * 64 / 8).contains(&ours[0].nbytes()), "{name}: {} bytes", ours[0].nbytes());
        let theirs = layers.each_ref().map(|(w, bias)| Linear::new(quantized(w, format), Some(bias.clone())));
        let network = |[first, second]: [Box<dyn Module>; 2]| {
            move |x: &Tensor| second.forward(&Activation::Gelu.forward(&first.forward(x)?)?)
        };
        let theirs = network(theirs.map(|layer| Box::new(layer) as Box<dyn Module>));
        let ours = network(ours.map(|layer| Box::new(layer) as Box<dyn Module>));
        for x in &inputs {
            let (y, wanted) = (ours.forward(x).unwrap(), theirs.forward(&x.contiguous().unwrap()).unwrap());
            assert_eq!(y.dims(), wanted.dims(), "{name}");
            if y.elem_count() > 0 {
                assert!(distance(&numbers(&y), &numbers(&wanted)) < 1e-5, "{name} {:?}", x.dims());
            }
            let half = ours.forward(&x.to_dtype(DType::F16).unwrap()).unwrap();
            assert!(half.dtype() == DType::F16 && half.dims() == y.dims(), "{name}");
        }
    }
}

#[test]
fn a_layer_rounds_its_inputs_as_the_file_says() {
    let x = random(&[5, 64], 3);
    let output = |input: Option<&str>, x: &Tensor| {
        let folder = llama(Some("mxint8"), input, false);
        let builder = PackedVarBuilder::open(folder.path()).unwrap();
        let layer = builder.pp("model.layers.0.mlp.up_proj").linear_no_bias(64, 96).unwrap();
        numbers(&layer.forward(x).unwrap())
    };
    let rounded = output(Some("mxint4"), &x);
    assert!(distance(&rounded, &output(None, &quantized(&x, Format::parse("mxint4").unwrap()))) < 1e-6);
    assert!(distance(&rounded, &output(None, &x)) > 1e-2);
}

#[test]
fn a_row_is_the_same_in_any_company() {
    let folder = llama(Some("int8:channel"), Some("int8:channel"), false);
    let builder = PackedVarBuilder::open(folder.path()).unwrap();
    let layer = builder.pp("model.layers.0.mlp.up_proj").linear_no_bias(64, 96).unwrap();
    let x = random(&[70, 64], 3);
    let together = numbers(&layer.forward(&x).unwrap());
    let alone: Vec<f32> = (0..70).flat_map(|row| numbers(&layer.forward(&x.get(row).unwrap()).unwrap())).collect();
    assert_eq!(together, alone);
}

#[test]
fn a_packed_embedding_looks_up_what_its_codes_say_and_is_a_head() {
    let folder = llama(Some("mxint8"), None, true);
    let builder = PackedVarBuilder::open(folder.path()).unwrap().pp("model").pp("embed_tokens");
    let ours = builder.embedding(48, 64).unwrap();
    let table = builder.get((48, 64), "weight").unwrap();
    let ids = Tensor::new(&[[0u32, 47, 3], [3, 9, 0]], &Device::Cpu).unwrap();
    let wanted = Embedding::new(table.clone(), 64).forward(&ids).unwrap();
    let found = ours.forward(&ids).unwrap();
    assert_eq!((found.dims(), numbers(&found)), (wanted.dims(), numbers(&wanted)));
    let x = random(&[4, 64], 1);
    let wanted = Linear::new(table, None).forward(&x).unwrap();
    assert!(distance(&numbers(&ours.as_linear().forward(&x).unwrap()), &numbers(&wanted)) < 1e-5);
    let outside = Tensor::new(&[48u32], &Device::Cpu).unwrap();
    assert!(ours.forward(&outside).unwrap_err().to_string().contains("48"));
}

#[test]
fn what_a_layer_cannot_do_is_an_error() {
    let (weight, format) = (random(&[8, 32], 1), Format::parse("mxint8").unwrap());
    let layer = PackedLinear::pack(&weight, None, format).unwrap();
    let told = layer.forward(&random(&[2, 31], 2)).unwrap_err().to_string();
    assert!(told.contains("32 inputs got shape [2, 31]"), "{told}");
    let x = Var::from_tensor(&random(&[2, 32], 3)).unwrap();
    let told = layer.forward(x.as_tensor()).unwrap().sum_all().unwrap().backward().unwrap_err().to_string();
    assert!(told.contains("packed-linear"), "{told}");
    let told = PackedLinear::pack(&weight, Some(&random(&[7], 4)), format).unwrap_err().to_string();
    assert!(told.contains("bias of shape [7]"), "{told}");
    let infinite = (weight / 0.0).unwrap();
    assert!(PackedLinear::pack(&infinite, None, format).is_err());
}
