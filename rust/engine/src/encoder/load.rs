//! Loads the layers of an encoder from the file of its weights.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use octavo_core::format::{Element, Granularity};
use octavo_core::{Format, ScaleRule};
use serde::Deserialize;

use super::dense::{Added, Dense, Rounding};
use crate::config::FILE;
use crate::error::{ModelFault, Result, refuse};
use crate::file::shown;
use crate::general::Norm;
use crate::packed::{Matrix, Table, Weight};
use crate::tensors::Tensors;

/// Key of the description of the layers in the metadata.
const STRUCTURE: &str = "structure";
const VERSION: u64 = 1;

/// What `octavo.save_model` says of a model.
#[derive(Default, Deserialize)]
struct Structure {
    version: u64,
    layers: BTreeMap<String, Record>,
    ties: BTreeMap<String, String>,
}

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

/// The weights of a folder, and how its layers round.
pub(super) struct Source {
    file: Tensors,
    structure: Structure,
    /// What stands before the names of an encoder that is part of a model: `bert.`.
    prefix: &'static str,
}

impl Source {
    /// Opens the file of a folder.
    pub(super) fn open(folder: &Path) -> Result<Self> {
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
        let is_part = file.names().any(|name| name.starts_with("bert."));
        Ok(Self { file, structure, prefix: if is_part { "bert." } else { "" } })
    }

    /// Refuses layers that the configuration does not count, and layers that round and that the encoder does not have:
    /// they would be passed over in silence.
    pub(super) fn check_layers(&self, layers: usize) -> Result<()> {
        for name in self.file.names() {
            let number = name.strip_prefix(self.prefix).and_then(|name| name.strip_prefix("encoder.layer."));
            let number = number.and_then(|rest| rest.split('.').next()).and_then(|number| number.parse().ok());
            if number.is_some_and(|number: usize| number >= layers) {
                let field = "num_hidden_layers";
                return Err(self.file.refuse(name, ModelFault::LayerLeftOver { field, layers }));
            }
        }
        for (path, record) in &self.structure.layers {
            let Some(name) = path.strip_prefix(self.prefix) else { continue };
            let known = match name.strip_prefix("encoder.layer.").and_then(|rest| rest.split_once('.')) {
                Some((number, part)) => {
                    let parts = [
                        "attention.self.query",
                        "attention.self.key",
                        "attention.self.value",
                        "attention.output.dense",
                        "intermediate.dense",
                        "output.dense",
                    ];
                    number.parse().is_ok_and(|number: usize| number < layers) && parts.contains(&part)
                }
                // The pooler is not run.
                None => name.starts_with("embeddings.") || name == "pooler.dense",
            };
            if !known {
                let what = format!("a {}, which the native encoder does not run", shown(&record.class));
                return Err(self.file.refuse(path, what));
            }
        }
        Ok(())
    }

    fn path(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// The name under which the file has a tensor: that of the tensor that it is tied to.
    fn stored<'a>(&'a self, name: &'a str) -> &'a str {
        self.structure.ties.get(name).map_or(name, String::as_str)
    }

    fn check_shape(&self, name: &str, shape: &[usize]) -> Result<()> {
        match self.file.shape(self.stored(name)) {
            None => Err(self.file.refuse(name, ModelFault::Missing { by: FILE, demanded: shape.to_vec() })),
            Some(found) if found != shape => {
                let (found, demanded) = (found.to_vec(), shape.to_vec());
                Err(self.file.refuse(name, ModelFault::Shape { found, by: FILE, demanded }))
            }
            Some(_) => Ok(()),
        }
    }

    fn vector(&self, name: &str, width: usize) -> Result<Vec<f32>> {
        self.check_shape(name, &[width])?;
        self.file.floats(self.stored(name))
    }

    /// The layer norm of a path.
    pub(super) fn norm(&self, name: &str, width: usize, epsilon: f32) -> Result<Norm> {
        let path = self.path(name);
        let weight = self.vector(&format!("{path}.weight"), width)?;
        Ok(Norm { weight, bias: self.vector(&format!("{path}.bias"), width)?, epsilon })
    }

    /// The table of an embedding.
    pub(super) fn table(&self, name: &str, rows: usize, width: usize) -> Result<Table> {
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
        Ok(match self.file.held(stored)? {
            Some(held) => Table::Packed(Arc::new(held), rows, width),
            None => Table::Plain(self.file.floats(stored)?, width),
        })
    }

    fn check_class(&self, path: &str, record: &Record, class: &str) -> Result<()> {
        if record.class == class {
            return Ok(());
        }
        let fix = "octavo.pack_model makes packed layers of simulated ones";
        Err(self.file.refuse(path, format!("a {}; the native encoder takes {class}: {fix}", shown(&record.class))))
    }

    /// The linear layer of a path.
    pub(super) fn dense(&self, name: &str, inputs: usize, outputs: usize) -> Result<Dense> {
        let path = self.path(name);
        let (weight, bias) = (format!("{path}.weight"), format!("{path}.bias"));
        self.check_shape(&weight, &[outputs, inputs])?;
        let record = self.structure.layers.get(&path);
        if let Some(record) = record {
            self.check_class(&path, record, "PackedLinear")?;
        }
        let role = |name: &str, spec: fn(&Record) -> &Option<Spec>| match record.map(|record| (record, spec(record))) {
            Some((record, Some(spec))) if !record.disabled.iter().any(|off| off == name) => {
                self.rounding(&path, name, spec).map(Some)
            }
            _ => Ok(None),
        };
        let input = role("input_quantizer", |record| &record.input)?;
        let output = role("output_quantizer", |record| &record.output)?;
        let held = self.file.held(self.stored(&weight))?;
        let integer = match (&held, &input) {
            (Some(held), Some(input)) => multiplies_integers(held.format(), input),
            _ => false,
        };
        self.check_shape(&bias, &[outputs])?;
        let bias = if !self.file.is_integer(self.stored(&bias)) {
            Added::Floats(self.file.floats(self.stored(&bias))?)
        } else if integer {
            Added::Integers(self.file.integers(self.stored(&bias))?)
        } else {
            return Err(self.file.refuse(&bias, "int32 beside a layer whose products are not integers"));
        };
        let weight = match held {
            Some(held) => Weight::Packed(Arc::new(held)),
            None => {
                let values = self.file.floats(self.stored(&weight))?;
                let bias = if let Added::Floats(bias) = &bias { bias.as_slice() } else { &[] };
                Weight::Plain(Matrix::new(inputs, outputs, &values, bias))
            }
        };
        Ok(Dense { inputs, outputs, weight, bias, input, output, integer })
    }

    fn rounding(&self, path: &str, name: &str, spec: &Spec) -> Result<Rounding> {
        let at_path = |error: octavo_core::Error| self.file.refuse(path, error);
        let format = Format::parse(&spec.format).map_err(at_path)?;
        let rule: ScaleRule = spec.scale.as_deref().unwrap_or("floor").parse().map_err(at_path)?;
        let part = |part: &str| self.file.raw(&format!("{path}.{name}.{part}"));
        let (scales, zeros, levels) = (part("scales")?, part("zeros")?, part("levels")?);
        if spec.calibration.is_some() && scales.is_empty() && format.scale_type().is_some() {
            return Err(self.file.refuse(path, format!("{name} is calibrated, but the file has no scales of it")));
        }
        Ok(Rounding { format, rule, scales, zeros, levels })
    }
}

/// Whether a layer multiplies the codes of its inputs and weights: the rule of `octavo.nn.PackedLinear`.
fn multiplies_integers(weight: Format, input: &Rounding) -> bool {
    let small = |format: Format| matches!(format.element(), Element::Int { width: 2..=8, signed: true });
    let whole = |format: Format| !matches!(format.granularity(), Granularity::Block(_));
    let fixed = !input.scales.is_empty();
    let rows = matches!(input.format.granularity(), Granularity::Channel);
    small(weight) && whole(weight) && small(input.format) && whole(input.format) && !(rows && fixed)
}
