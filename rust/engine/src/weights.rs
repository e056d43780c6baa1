//! [`Weights`]: the decoded tensors of `model.safetensors`.

use std::collections::BTreeMap;
use std::path::Path;

use crate::config::Config;
use crate::error::{Error, Result};
use crate::schema;
use crate::tensors::Tensors;

/// Name of the file in a model folder.
pub(crate) const FILE: &str = "model.safetensors";

/// One tensor, row-major.
#[derive(Clone, Debug, PartialEq)]
pub struct Weight {
    /// Its shape, that which the configuration demands.
    pub shape: Vec<usize>,
    /// Its values, all finite; as many as the shape says.
    pub values: Vec<f32>,
}

/// All tensors of a model by their PyTorch names, decoded to f32: none missing, none left over, shapes as the
/// configuration demands.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Weights {
    tensors: BTreeMap<String, Weight>,
}

impl Weights {
    /// Reads `model.safetensors` of a folder. A tensor may be plain f32, f16 or bf16, or packed in any format.
    ///
    /// # Errors
    /// [`octavo_core::Error::Io`] where the file cannot be read; [`octavo_core::Error::Container`] naming file and
    /// tensor for a name that is missing or left over, another shape or dtype, a value that is not finite, and a file
    /// that is no container.
    pub fn load(folder: &Path, config: &Config) -> Result<Self> {
        let demanded = schema::tensors(config);
        let file = Tensors::open(&folder.join(FILE))?;
        file.check_names(&demanded)?;
        let read = demanded.into_iter().map(|(name, shape)| {
            let values = file.floats(&name)?;
            Ok((name, Weight { shape, values }))
        });
        Ok(Self { tensors: read.collect::<Result<_>>()? })
    }

    /// The tensor of a name.
    ///
    /// # Errors
    /// [`Error::Internal`] for a name that the architecture does not have.
    pub fn get(&self, name: &str) -> Result<&Weight> {
        self.tensors.get(name).ok_or_else(|| Error::Internal(format!("{name}: the architecture has no such tensor")))
    }

    /// The values of a name.
    ///
    /// # Errors
    /// As [`Weights::get`].
    pub fn values(&self, name: &str) -> Result<&[f32]> {
        self.get(name).map(|weight| weight.values.as_slice())
    }
}
