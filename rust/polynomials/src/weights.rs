//! [`Weights`]: the tensors of a model folder, packed where the file has them packed.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use octavo_engine::{Error, Result, StoredTensor, Tensors};

use crate::config::Config;
use crate::schema;

/// One tensor of the shape that the configuration demands. All values are finite.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Weight {
    /// A matrix that is packed along its rows, as it lies in the file.
    Packed(Arc<StoredTensor>),
    /// Values, row-major; as many as the shape says.
    Plain(Arc<[f32]>),
}

/// All tensors of a model by their PyTorch names: none missing, none left over, shapes as the configuration demands.
/// Matrices that are packed along their rows stay packed.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Weights {
    tensors: BTreeMap<String, (Vec<usize>, Weight)>,
}

impl Weights {
    /// Reads `model.octavo.safetensors` of a folder, `model.safetensors` or the shards of its index. A tensor may be plain f32, f16 or bf16, or
    /// packed in any format.
    ///
    /// # Errors
    /// [`octavo_core::Error::Io`] where the file cannot be read; [`octavo_core::Error::Container`] naming file and
    /// tensor for a name that is missing or left over, another shape or dtype, a value that is not finite, and a file
    /// that is no container.
    pub(crate) fn load(folder: &Path, config: &Config) -> Result<Self> {
        let demanded = schema::tensors(config);
        let file = Tensors::of_folder(folder)?;
        file.check_names(&demanded)?;
        let read = demanded.into_iter().map(|(name, shape)| {
            // Packed tensors are decoded once to see that their values are finite, one at a time.
            let values = file.floats(&name)?;
            let held = if file.is_packed_matrix(&name) { file.held(&name)? } else { None };
            let weight = held.map_or_else(|| Weight::Plain(values.into()), |held| Weight::Packed(Arc::new(held)));
            Ok((name, (shape, weight)))
        });
        Ok(Self { tensors: read.collect::<Result<_>>()? })
    }

    /// The shape and the tensor of a name.
    ///
    /// # Errors
    /// [`Error::Internal`] for a name that the architecture does not have.
    pub(crate) fn get(&self, name: &str) -> Result<(&[usize], &Weight)> {
        let found = self.tensors.get(name).map(|(shape, weight)| (shape.as_slice(), weight));
        found.ok_or_else(|| Error::Internal(format!("{name}: the architecture has no such tensor")))
    }

    /// The values of a name, decoded where they are packed.
    ///
    /// # Errors
    /// As [`Weights::get`]; [`octavo_core::Error::OutOfMemory`] where memory is short.
    pub(crate) fn values(&self, name: &str) -> Result<Cow<'_, [f32]>> {
        match self.get(name)?.1 {
            Weight::Packed(held) => held.decode().map(Cow::Owned),
            Weight::Plain(values) => Ok(Cow::Borrowed(values)),
        }
    }
}
