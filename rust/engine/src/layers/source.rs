//! Loads layers of a model folder by name, packed as `octavo.save_model` and `octavo pack` write them, or plain.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use octavo_core::{Format, ScaleRule};
use serde::Deserialize;

use super::dense::{Added, Dense, Rounding, multiplies_integers};
use octavo_core::error::Refusal;

use crate::error::{Error, ModelFault, Result, refuse};
use crate::file::{CONFIG, shown};
use crate::norm::Norm;
use crate::packed::{Matrix, Table, Weight};
use crate::tensors::{StoredTensor, Tensors};

/// Key of the description of the layers in the metadata.
const STRUCTURE: &str = "structure";
const VERSION: u64 = 1;

/// What `octavo.save_model` says of a model.
#[derive(Default, Deserialize)]
struct Structure {
    version: u64,
    layers: BTreeMap<String, Record>,
    ties: BTreeMap<String, String>,
    /// Norms whose factors were moved into other layers.
    #[serde(default)]
    folded: Vec<String>,
    /// Names of pruned parameters, whose masks the file holds.
    #[serde(default)]
    masked: Vec<String>,
}

/// What it says of one layer.
#[derive(Deserialize)]
struct Record {
    class: String,
    input: Option<Spec>,
    output: Option<Spec>,
    #[serde(default)]
    disabled: Vec<String>,
}

#[derive(Clone, Deserialize)]
struct Spec {
    format: String,
    calibration: Option<String>,
    scale: Option<String>,
}

/// A linear layer that a network demands.
#[derive(Clone, Copy)]
pub(crate) struct Demand {
    pub(crate) inputs: usize,
    pub(crate) outputs: usize,
    pub(crate) biased: bool,
    /// Plain weights are stored as `[inputs, outputs]`, as transformers' Conv1D has them.
    pub(crate) transposed: bool,
}

impl Demand {
    /// A layer as PyTorch's own.
    pub(crate) const fn of(inputs: usize, outputs: usize, biased: bool) -> Self {
        Self { inputs, outputs, biased, transposed: false }
    }
}

/// The weights of a folder, and how its layers round.
pub(crate) struct Source {
    file: Tensors,
    structure: Structure,
    /// What stands before the names of a network that is part of a model: `bert.`.
    prefix: &'static str,
    /// Names of the tensors that were loaded.
    taken: RefCell<BTreeSet<String>>,
    /// Packed matrices that were loaded: layers that are tied share one.
    held: RefCell<BTreeMap<String, Arc<StoredTensor>>>,
}

impl Source {
    /// Opens the file of a folder; names may begin with one of `prefixes`.
    pub(crate) fn open(folder: &Path, prefixes: &[&'static str]) -> Result<Self> {
        let file = Tensors::of_folder(folder)?;
        let structure: Structure = match file.metadata(STRUCTURE) {
            Some(text) => serde_json::from_str(text)
                .map_err(|error| refuse(format!("{}: metadata {STRUCTURE}: {error}", folder.display())))?,
            None => Structure { version: VERSION, ..Structure::default() },
        };
        if structure.version != VERSION {
            let (place, version) = (folder.display(), structure.version);
            return Err(refuse(format!("{place}: structure version {version}; accepted is {VERSION}")));
        }
        let prefix = prefixes.iter().copied().find(|prefix| file.names().any(|name| name.starts_with(prefix)));
        Ok(Self { file, structure, prefix: prefix.unwrap_or(""), taken: RefCell::default(), held: RefCell::default() })
    }

    /// A refusal that names the file and the tensor or layer.
    pub(crate) fn refuse(&self, name: &str, refusal: impl Into<Refusal>) -> Error {
        self.file.refuse(name, refusal)
    }

    /// All tensors of the network: their names in the file, and without the prefix.
    pub(crate) fn names(&self) -> impl Iterator<Item = (&str, &str)> {
        self.file.names().filter_map(|name| Some((name, name.strip_prefix(self.prefix)?)))
    }

    /// Refuses layers with formats whose names are not `known`.
    pub(crate) fn check_classes(&self, known: impl Fn(&str) -> bool) -> Result<()> {
        for (path, record) in &self.structure.layers {
            let Some(name) = path.strip_prefix(self.prefix) else { continue };
            if !known(name) {
                let what = format!("a {}, which this network does not run", shown(&record.class));
                return Err(self.file.refuse(path, what));
            }
        }
        Ok(())
    }

    /// Refuses tensors that were not loaded, unless their names, without the prefix, are `known`, and layers that would
    /// be run otherwise than they were saved: nothing is passed over in silence.
    pub(crate) fn check_all_taken(&self, known: impl Fn(&str) -> bool) -> Result<()> {
        if let Some(name) = self.structure.folded.first() {
            return Err(self.file.refuse(name, "a norm that was folded into other layers, which is not run natively"));
        }
        let taken = self.taken.borrow();
        let masks: Vec<&str> =
            self.structure.masked.iter().filter_map(|name| name.rsplit_once('.')).map(|(layer, _)| layer).collect();
        let is_mask = |name: &str| name.split_once(".masks.").is_some_and(|(layer, _)| masks.contains(&layer));
        let bare = |name: &'_ str| name.strip_prefix(self.prefix).is_some_and(&known) || known(name);
        match self.file.names().find(|name| !taken.contains(*name) && !bare(name) && !is_mask(name)) {
            Some(name) => Err(self.file.refuse(name, ModelFault::LeftOver)),
            None => Ok(()),
        }
    }

    /// A packed matrix as it lies in the file; none for a plain one.
    fn held(&self, stored: &str) -> Result<Option<Arc<StoredTensor>>> {
        if let Some(held) = self.held.borrow().get(stored) {
            return Ok(Some(Arc::clone(held)));
        }
        let held = self.file.held(stored)?.map(Arc::new);
        if let Some(held) = &held {
            self.held.borrow_mut().insert(stored.to_owned(), Arc::clone(held));
        }
        Ok(held)
    }

    /// Whether the file has a tensor, or one that it is tied to.
    pub(crate) fn has(&self, name: &str) -> bool {
        let path = self.path(name);
        self.file.shape(self.stored(&path)).is_some()
    }

    fn path(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// The name under which the file has a tensor: that of the tensor that it is tied to.
    fn stored<'a>(&'a self, name: &'a str) -> &'a str {
        self.structure.ties.get(name).map_or(name, String::as_str)
    }

    fn check_shape(&self, name: &str, shape: &[usize]) -> Result<()> {
        self.taken.borrow_mut().insert(self.stored(name).to_owned());
        match self.file.shape(self.stored(name)) {
            None => Err(self.file.refuse(name, ModelFault::Missing { by: CONFIG, demanded: shape.to_vec() })),
            Some(found) if found != shape => {
                let (found, demanded) = (found.to_vec(), shape.to_vec());
                Err(self.file.refuse(name, ModelFault::Shape { found, by: CONFIG, demanded }))
            }
            Some(_) => Ok(()),
        }
    }

    /// The numbers of a path.
    pub(crate) fn numbers(&self, name: &str, width: usize) -> Result<Vec<f32>> {
        self.vector(&self.path(name), width)
    }

    fn vector(&self, name: &str, width: usize) -> Result<Vec<f32>> {
        self.check_shape(name, &[width])?;
        self.file.floats(self.stored(name))
    }

    /// The values of a tensor of a layer that rounds nothing.
    #[cfg(feature = "candle")]
    pub(crate) fn values(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        let path = self.path(name);
        let layer = path.rsplit_once('.').map_or("", |(layer, _)| layer);
        if let Some(record) = self.structure.layers.get(layer)
            && (record.input.is_some() || record.output.is_some())
        {
            return Err(self
                .file
                .refuse(layer, format!("a {}, which rounds; load it as a layer", shown(&record.class))));
        }
        self.check_shape(&path, shape)?;
        self.file.floats(self.stored(&path))
    }

    /// The layer norm of a path.
    pub(crate) fn norm(&self, name: &str, width: usize, epsilon: f32) -> Result<Norm> {
        let path = self.path(name);
        let weight = self.vector(&format!("{path}.weight"), width)?;
        Ok(Norm { weight, bias: self.vector(&format!("{path}.bias"), width)?, epsilon })
    }

    /// The table of an embedding.
    pub(crate) fn table(&self, name: &str, rows: usize, width: usize) -> Result<Table> {
        let path = self.path(name);
        let weight = format!("{path}.weight");
        self.check_shape(&weight, &[rows, width])?;
        if let Some(record) = self.structure.layers.get(&path) {
            self.check_class(&path, record, "PackedEmbedding")?;
            if record.output.is_some() {
                return Err(self.file.refuse(&path, "rounds its output, which the native encoder does not"));
            }
        }
        let stored = self.stored(&weight);
        Ok(match self.held(stored)? {
            Some(held) => Table::Packed(held, rows, width),
            None => Table::Plain(self.file.floats(stored)?, width),
        })
    }

    /// A linear layer without a bias whose rows are those of a table.
    pub(crate) fn dense_of(table: &Table, rows: usize, width: usize) -> Dense {
        let weight = match table {
            Table::Packed(held, ..) => Weight::Packed(Arc::clone(held)),
            Table::Plain(values, _) => Weight::Plain(Matrix::new(width, rows, values, &[])),
        };
        let bias = Added::Floats(Vec::new());
        Dense { inputs: width, outputs: rows, weight, bias, input: None, output: None, integer: false }
    }

    fn check_class(&self, path: &str, record: &Record, class: &str) -> Result<()> {
        if record.class == class {
            return Ok(());
        }
        let fix = "octavo.pack_model makes packed layers of simulated ones";
        Err(self.file.refuse(path, format!("a {}; the native encoder takes {class}: {fix}", shown(&record.class))))
    }

    /// The linear layer of a path.
    pub(crate) fn dense(&self, name: &str, demand: Demand) -> Result<Dense> {
        let Demand { inputs, outputs, biased, transposed } = demand;
        let path = self.path(name);
        let (weight, bias) = (format!("{path}.weight"), format!("{path}.bias"));
        // Codes are always [outputs, inputs].
        let transposed = transposed && !self.file.is_packed_matrix(self.stored(&weight));
        self.check_shape(&weight, &if transposed { [inputs, outputs] } else { [outputs, inputs] })?;
        let held = self.held(self.stored(&weight))?;
        let (input, output) = self.roundings(&path)?;
        let integer = match (&held, &input) {
            (Some(held), Some(input)) => multiplies_integers(held.format(), input),
            _ => false,
        };
        let bias = self.bias(&bias, outputs, biased, integer)?;
        let weight = match held {
            Some(held) => Weight::Packed(held),
            None => {
                let mut values = self.file.floats(self.stored(&weight))?;
                if transposed {
                    values = turn(&values, inputs, outputs);
                }
                let bias = if let Added::Floats(bias) = &bias { bias.as_slice() } else { &[] };
                Weight::Plain(Matrix::new(inputs, outputs, &values, bias))
            }
        };
        Ok(Dense { inputs, outputs, weight, bias, input, output, integer })
    }

    /// Layers whose plain weights are one tensor `[count, outputs, inputs]`, or `[count, inputs, outputs]`, and whose biases
    /// are another one; none where the file has no such tensor.
    pub(crate) fn stacked(&self, name: &str, count: usize, demand: Demand) -> Result<Option<Vec<Dense>>> {
        let path = self.path(name);
        if self.file.shape(self.stored(&path)).is_none() {
            return Ok(None);
        }
        let Demand { inputs, outputs, biased, transposed } = demand;
        let sizes = if transposed { [inputs, outputs] } else { [outputs, inputs] };
        self.check_shape(&path, &[count, sizes[0], sizes[1]])?;
        let values = self.file.floats(self.stored(&path))?;
        let biases = if biased {
            let path = format!("{path}_bias");
            self.check_shape(&path, &[count, outputs])?;
            self.file.floats(self.stored(&path))?
        } else {
            Vec::new()
        };
        let layer = |(number, values): (usize, &[f32])| {
            let turned: Vec<f32>;
            let mut rows = values;
            if transposed {
                turned = turn(values, inputs, outputs);
                rows = &turned;
            }
            let bias = biases.get(number * outputs..(number + 1) * outputs).unwrap_or_default();
            let weight = Weight::Plain(Matrix::new(inputs, outputs, rows, bias));
            let bias = Added::Floats(bias.to_vec());
            Dense { inputs, outputs, weight, bias, input: None, output: None, integer: false }
        };
        Ok(Some(values.chunks_exact(outputs * inputs).enumerate().map(layer).collect()))
    }

    /// Several layers of the same inputs as one whose outputs follow each other: one product takes less than several do.
    /// None where they are not packed and rounded alike.
    pub(crate) fn dense_together(&self, layers: &[(&str, Demand)]) -> Result<Option<Dense>> {
        let weights: Vec<String> = layers.iter().map(|(name, _)| self.path(&format!("{name}.weight"))).collect();
        let stored: Vec<&str> = weights.iter().map(|weight| self.stored(weight)).collect();
        if !stored.iter().all(|stored| self.file.is_packed_matrix(stored) && !self.held.borrow().contains_key(*stored))
        {
            return Ok(None);
        }
        let (mut bias, mut rounding, mut outputs) = (Vec::new(), None, 0);
        for ((name, demand), weight) in layers.iter().zip(&weights) {
            self.check_shape(weight, &[demand.outputs, demand.inputs])?;
            let (input, output) = self.roundings(&self.path(name))?;
            let whole = output.is_some() || self.file.is_integer(self.stored(&self.path(&format!("{name}.bias"))));
            if whole || rounding.as_ref().is_some_and(|known| *known != input) {
                return Ok(None);
            }
            rounding = Some(input);
            if let Added::Floats(more) =
                self.bias(&self.path(&format!("{name}.bias")), demand.outputs, demand.biased, false)?
            {
                bias.extend(more);
            }
            outputs += demand.outputs;
        }
        let (Some((_, Demand { inputs, .. })), Some(input)) = (layers.first().copied(), rounding) else {
            return Ok(None);
        };
        if !bias.is_empty() && bias.len() != outputs {
            return Ok(None);
        }
        Ok(self.file.held_together(&stored)?.map(|held| {
            let integer = input.as_ref().is_some_and(|input| multiplies_integers(held.format(), input));
            let (weight, bias) = (Weight::Packed(Arc::new(held)), Added::Floats(bias));
            Dense { inputs, outputs, weight, bias, input, output: None, integer }
        }))
    }

    /// How a layer rounds its inputs and outputs.
    fn roundings(&self, path: &str) -> Result<(Option<Rounding>, Option<Rounding>)> {
        let Some(record) = self.structure.layers.get(path) else { return Ok((None, None)) };
        self.check_class(path, record, "PackedLinear")?;
        let role = |name: &str, spec: &Option<Spec>| match spec {
            Some(spec) if !record.disabled.iter().any(|off| off == name) => self.rounding(path, name, spec).map(Some),
            _ => Ok(None),
        };
        Ok((role("input_quantizer", &record.input)?, role("output_quantizer", &record.output)?))
    }

    fn bias(&self, name: &str, outputs: usize, biased: bool, integer: bool) -> Result<Added> {
        if !biased {
            return Ok(Added::Floats(Vec::new()));
        }
        self.check_shape(name, &[outputs])?;
        let stored = self.stored(name);
        if !self.file.is_integer(stored) {
            Ok(Added::Floats(self.file.floats(stored)?))
        } else if integer {
            Ok(Added::Integers(self.file.integers(stored)?))
        } else {
            Err(self.file.refuse(name, "int32 beside a layer whose products are not integers"))
        }
    }

    fn rounding(&self, path: &str, name: &str, spec: &Spec) -> Result<Rounding> {
        let at_path = |error: octavo_core::Error| self.file.refuse(path, error);
        let format = Format::parse(&spec.format).map_err(at_path)?;
        let rule: ScaleRule = spec.scale.as_deref().unwrap_or("floor").parse().map_err(at_path)?;
        let part = |part: &str| {
            let stored = format!("{path}.{name}.{part}");
            let bytes = self.file.raw(&stored);
            self.taken.borrow_mut().insert(stored);
            bytes
        };
        let (scales, zeros, levels) = (part("scales")?, part("zeros")?, part("levels")?);
        if spec.calibration.is_some() && scales.is_empty() && format.scale_type().is_some() {
            return Err(self.file.refuse(path, format!("{name} is calibrated, but the file has no scales of it")));
        }
        Ok(Rounding { format, rule, scales, zeros, levels })
    }
}

/// `[outputs, inputs]` of `[inputs, outputs]`.
fn turn(values: &[f32], inputs: usize, outputs: usize) -> Vec<f32> {
    (0..inputs * outputs).map(|at| values[at % inputs * outputs + at / inputs]).collect()
}
