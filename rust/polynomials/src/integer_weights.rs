//! [`IntegerWeights`]: the static int8 tensors of the variant `integer` of a model, for the architecture `hybrid`.

use std::collections::BTreeMap;
use std::path::Path;

use octavo_engine::{Error, Result, Tensors, refuse};

use crate::IntegerFault;
use crate::config::{Architecture, Config};
use crate::schema;

/// Name of the variant in `config.json`.
const VARIANT: &str = "integer";
/// Format of the matrices.
const FORMAT: &str = "int8:channel";
/// Largest magnitude of a code of a weight, and of an input of 8 bits.
const LARGEST: i64 = i8::MAX as i64;
/// Largest magnitude of a code of an input of 16 bits.
const LARGEST_WIDE: i64 = i16::MAX as i64;

/// A linear layer of int8 codes: `output = (sum(codes * input) + bias) * input_scale * scale of the row`.
#[derive(Clone, Debug, PartialEq)]
pub struct IntegerLinear {
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub columns: usize,
    /// Codes `[rows, columns]`, row-major, -127 to 127.
    pub codes: Vec<i8>,
    /// One scale a row, finite and not negative; 0 for a row of zeros.
    pub scales: Vec<f32>,
    /// One number a row at the scale `input_scale * scale of the row`; no sum leaves int32.
    pub bias: Vec<i32>,
    /// What a step of the input's codes is worth; positive with a finite inverse.
    pub input_scale: f32,
    /// True where the codes of the input are int16, -32767 to 32767; else they are int8, -127 to 127.
    pub wide: bool,
}

/// An LSTM of int8 codes: the gates are `(sum(codes * state) + table[token]) * state_scale * scale of the row`.
#[derive(Clone, Debug, PartialEq)]
pub struct IntegerLstm {
    /// Units: columns of the recurrent matrix, a fourth of its rows.
    pub units: usize,
    /// Codes `[4 units, units]` of the recurrent matrix, row-major, -127 to 127; gates in PyTorch's order i, f, g, o.
    pub codes: Vec<i8>,
    /// One scale a row, finite and not negative; 0 for a row of zeros.
    pub scales: Vec<f32>,
    /// What a token brings in, both biases included: `[vocabulary, 4 units]`, at the scale `state_scale * scale of the
    /// row`.
    pub table: Vec<i32>,
    /// What a step of the state's int8 codes is worth; positive with a finite inverse.
    pub state_scale: f32,
}

/// A layer norm, which stays in f32.
#[derive(Clone, Debug, PartialEq)]
pub struct Norm {
    /// Gain of each element, finite.
    pub weight: Vec<f32>,
    /// Offset of each element, finite.
    pub bias: Vec<f32>,
}

/// All layers of an integer model by their PyTorch names: none missing, none left over, shapes as the configuration
/// demands.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct IntegerWeights {
    linears: BTreeMap<String, IntegerLinear>,
    lstms: BTreeMap<String, IntegerLstm>,
    norms: BTreeMap<String, Norm>,
}

impl IntegerWeights {
    /// Reads the file of a folder that its configuration names for the variant `integer`.
    ///
    /// # Errors
    /// [`octavo_core::Error::Io`] where the file cannot be read; [`octavo_core::Error::Container`] naming file and tensor for one that is
    /// missing or left over, another shape or dtype, for another architecture than `hybrid`, for
    /// codes of -128, for scales that are out of range, for a sum that may leave int32, and for layers that read the same
    /// tensor with different scales.
    pub fn load(folder: &Path, config: &Config) -> Result<Self> {
        if config.architecture != Architecture::Hybrid {
            let (place, architecture) = (folder.display().to_string(), config.architecture);
            return Err(refuse(IntegerFault::Architecture { place, architecture }));
        }
        let path = config.variant(folder, VARIANT)?;
        let layers = integer_layers(config);
        let file = Tensors::open(&path)?;
        file.check_names(&demanded(&layers, config.vocabulary))?;
        let mut weights = Self::default();
        let mut shared = BTreeMap::new();
        for (name, (rows, columns)) in layers.linears {
            let (codes, scales) = matrix(&file, &format!("{name}.weight"))?;
            let bias = file.integers(&format!("{name}.bias"))?;
            let wide = wide(&file, &format!("{name}.input_bits"))?;
            let largest = if wide { LARGEST_WIDE } else { LARGEST };
            check_sums(&file, &format!("{name}.bias"), (&codes, columns), &bias, largest)?;
            let input_scale = step(&file, &format!("{name}.input_scale"))?;
            let first = shared.entry(site(&name)).or_insert((name.clone(), input_scale, wide));
            if first.1 != input_scale {
                let (other, theirs) = (first.0.clone(), first.1);
                let fault = IntegerFault::InputScale { scale: input_scale, other, theirs };
                return Err(file.refuse(&format!("{name}.input_scale"), fault));
            }
            if first.2 != wide {
                let fault = IntegerFault::InputBits { other: first.0.clone() };
                return Err(file.refuse(&format!("{name}.input_bits"), fault));
            }
            weights.linears.insert(name, IntegerLinear { rows, columns, codes, scales, bias, input_scale, wide });
        }
        for (name, units) in layers.lstms {
            let (codes, scales) = matrix(&file, &format!("{name}.weight_hh"))?;
            let table = file.integers(&format!("{name}.table"))?;
            check_sums(&file, &format!("{name}.table"), (&codes, units), &table, LARGEST)?;
            let state_scale = step(&file, &format!("{name}.state_scale"))?;
            weights.lstms.insert(name, IntegerLstm { units, codes, scales, table, state_scale });
        }
        for name in layers.norms.into_keys() {
            let (weight, bias) = (file.floats(&format!("{name}.weight"))?, file.floats(&format!("{name}.bias"))?);
            weights.norms.insert(name, Norm { weight, bias });
        }
        Ok(weights)
    }

    /// A linear layer: `bridge`, `output`, or `query`, `key`, `value`, `output`, `expand`, `contract` with their path.
    ///
    /// # Errors
    /// [`Error::Internal`] for a name that the architecture does not have.
    pub fn linear(&self, name: &str) -> Result<&IntegerLinear> {
        self.linears.get(name).ok_or_else(|| absent(name))
    }

    /// `encoder.forwards`, `encoder.backwards` or `decoder`.
    ///
    /// # Errors
    /// As [`IntegerWeights::linear`].
    pub fn lstm(&self, name: &str) -> Result<&IntegerLstm> {
        self.lstms.get(name).ok_or_else(|| absent(name))
    }

    /// `memory_norm`, `self_norm`, `output_norm`, `blocks.N.cross_norm` or `blocks.N.feedforward_norm`.
    ///
    /// # Errors
    /// As [`IntegerWeights::linear`].
    pub fn norm(&self, name: &str) -> Result<&Norm> {
        self.norms.get(name).ok_or_else(|| absent(name))
    }
}

/// Layers of the integer model: linear layers with outputs and inputs, LSTMs with units, norms with width.
#[derive(Debug, Default)]
pub(crate) struct IntegerSchema {
    pub(crate) linears: BTreeMap<String, (usize, usize)>,
    pub(crate) lstms: BTreeMap<String, usize>,
    pub(crate) norms: BTreeMap<String, usize>,
}

/// The layers of an integer model of the architecture `hybrid`.
pub(crate) fn integer_layers(config: &Config) -> IntegerSchema {
    let mut schema = IntegerSchema::default();
    for (name, shape) in schema::tensors(config) {
        // Weights alone tell the kinds apart: a matrix is a linear layer, a vector a norm. Embeddings and the input side
        // of the LSTMs are folded into the tables.
        let Some(layer) = name.strip_suffix(".weight").filter(|layer| !layer.ends_with("_embedding")) else { continue };
        match shape[..] {
            [rows, columns] => _ = schema.linears.insert(layer.to_owned(), (rows, columns)),
            [width] => _ = schema.norms.insert(layer.to_owned(), width),
            _ => {}
        }
    }
    for (name, units) in
        [("encoder.forwards", config.encoder), ("encoder.backwards", config.encoder), ("decoder", config.hidden)]
    {
        schema.lstms.insert(name.to_owned(), units);
    }
    schema
}

fn absent(name: &str) -> Error {
    Error::Internal(format!("{name}: the architecture has no such layer"))
}

/// Names and shapes of the tensors in the file.
fn demanded(layers: &IntegerSchema, vocabulary: usize) -> BTreeMap<String, Vec<usize>> {
    let mut names = BTreeMap::new();
    for (name, &(rows, columns)) in &layers.linears {
        names.insert(format!("{name}.weight"), vec![rows, columns]);
        names.insert(format!("{name}.bias"), vec![rows]);
        names.insert(format!("{name}.input_scale"), Vec::new());
        names.insert(format!("{name}.input_bits"), Vec::new());
    }
    for (name, &units) in &layers.lstms {
        names.insert(format!("{name}.weight_hh"), vec![4 * units, units]);
        names.insert(format!("{name}.table"), vec![vocabulary, 4 * units]);
        names.insert(format!("{name}.state_scale"), Vec::new());
    }
    for (name, &width) in &layers.norms {
        names.insert(format!("{name}.weight"), vec![width]);
        names.insert(format!("{name}.bias"), vec![width]);
    }
    names
}

/// Codes and the scales of their rows.
fn matrix(file: &Tensors, name: &str) -> Result<(Vec<i8>, Vec<f32>)> {
    let read = file.codes(name, FORMAT)?;
    let codes: Vec<i8> = read.codes.iter().map(|&code| i8::from_ne_bytes([code])).collect();
    if let Some(position) = codes.iter().position(|&code| code == i8::MIN) {
        return Err(file.refuse(name, IntegerFault::Code { position }));
    }
    let scales: Vec<f32> = read.scales.as_chunks().0.iter().map(|&word| f32::from_le_bytes(word)).collect();
    match scales.iter().position(|&scale| !(scale >= 0.0 && scale.is_finite())) {
        Some(row) => Err(file.refuse(name, IntegerFault::Scale { scale: scales[row], row })),
        None => Ok((codes, scales)),
    }
}

/// Checks that no sum of products with what is added to it, `[.., rows]`, can leave int32. `largest`: magnitude of an
/// input.
fn check_sums(file: &Tensors, name: &str, (codes, columns): (&[i8], usize), added: &[i32], largest: i64) -> Result<()> {
    let products = codes.chunks_exact(columns).map(|row| row.iter().map(|&code| i64::from(code).abs()).sum::<i64>());
    let products: Vec<i64> = products.map(|sum| largest * sum).collect();
    for added in added.chunks_exact(products.len()) {
        for (products, &added) in products.iter().zip(added) {
            let largest = products + i64::from(added).abs();
            if largest > i64::from(i32::MAX) {
                return Err(file.refuse(name, IntegerFault::Sum { largest }));
            }
        }
    }
    Ok(())
}

/// True where the codes of an input have 16 bits.
fn wide(file: &Tensors, name: &str) -> Result<bool> {
    match file.integers(name)?[..] {
        [8] => Ok(false),
        [16] => Ok(true),
        ref found => Err(file.refuse(name, IntegerFault::Bits { found: found.to_vec() })),
    }
}

/// What a step of codes is worth.
fn step(file: &Tensors, name: &str) -> Result<f32> {
    match file.floats(name)?[..] {
        [step] if step > 0.0 && step.recip().is_finite() => Ok(step),
        ref found => Err(file.refuse(name, IntegerFault::Step { found: found.to_vec() })),
    }
}

/// What the input scale of a linear layer belongs to: the layer, or the norm whose output it shares with others.
fn site(name: &str) -> String {
    if name.ends_with(".cross_attention.key") || name.ends_with(".cross_attention.value") {
        "memory_norm".to_owned()
    } else if name.starts_with("self_attention.") && name != "self_attention.output" {
        "self_norm".to_owned()
    } else {
        name.to_owned()
    }
}
