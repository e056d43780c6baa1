//! A packed weight that a layer multiplies with again and again: its tensors are checked once, then recognized.

use octavo_core::DType;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::codec::Parts;
use crate::err::enter;
use crate::format::Format;
use crate::linear::{BiasAt, Rows, Weight};

/// A tensor as it was when Python checked it.
struct Operand {
    tensor: Py<PyAny>,
    shape: Py<PyAny>,
    dtype: Py<PyAny>,
    storage: Py<PyAny>,
    nbytes: usize,
    address: usize,
}

impl Operand {
    fn new(tensor: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = tensor.py();
        let storage = tensor.call_method0(intern!(py, "untyped_storage"))?;
        Ok(Self {
            shape: tensor.getattr(intern!(py, "shape"))?.unbind(),
            dtype: tensor.getattr(intern!(py, "dtype"))?.unbind(),
            nbytes: storage.call_method0(intern!(py, "nbytes"))?.extract()?,
            address: tensor.call_method0(intern!(py, "data_ptr"))?.extract()?,
            storage: storage.unbind(),
            tensor: tensor.clone().unbind(),
        })
    }

    /// Whether `tensor` is this one, and all but its bytes is as it was. All of it can change in place: by `resize_`, by
    /// `set_`, by assigning to `.data`, with the storage.
    fn is_still(&self, tensor: &Bound<'_, PyAny>) -> PyResult<bool> {
        let py = tensor.py();
        let number = |of: &Bound<'_, PyAny>, name| of.call_method0(name)?.extract::<usize>();
        Ok(tensor.is(&self.tensor)
            && number(tensor, intern!(py, "data_ptr"))? == self.address
            && number(self.storage.bind(py), intern!(py, "nbytes"))? == self.nbytes
            && tensor.getattr(intern!(py, "dtype"))?.is(&self.dtype)
            && tensor.getattr(intern!(py, "shape"))?.eq(&self.shape)?
            && tensor.call_method0(intern!(py, "is_contiguous"))?.is_truthy()?
            && !tensor.call_method0(intern!(py, "is_neg"))?.is_truthy()?)
    }
}

/// What a product does with inputs first.
enum Inputs {
    Plain,
    /// Rounds to a format, with scales chosen by a rule, or given.
    Rounded(Format, String, Option<Parts>),
    /// Quantizes to integers, with scales chosen from the inputs, or one that is given.
    Integer(Format, Option<(usize, usize)>),
}

/// The weight and bias of a layer, checked by Python, and their product with inputs.
#[pyclass(frozen, module = "octavo._core", name = "_KnownWeight")]
pub(crate) struct KnownWeight {
    weight: Weight,
    inputs: Inputs,
    /// Text and rule of the format that inputs are rounded to, or None.
    #[pyo3(get)]
    rounding: Py<PyAny>,
    operands: Vec<Option<Operand>>,
    /// The dtypes of inputs: PyTorch's float32, float16 and bfloat16.
    dtypes: Vec<Py<PyAny>>,
}

#[pymethods]
impl KnownWeight {
    /// Remembers `operands`: the tensors behind `parts` that the format has, the bias, and the given scales, zeros and
    /// levels of inputs that are rounded; None for those that are not there.
    ///
    /// `inputs`: their format, the rule that chooses their scales, or None where integers are multiplied, and the addresses
    /// of given scales; None where inputs are multiplied as they are. `rounding`: what callers recognize `inputs` by.
    #[new]
    #[expect(clippy::too_many_arguments, reason = "one flat call is what the boundary is for")]
    fn new(
        format: Format,
        rows: usize,
        columns: usize,
        parts: Parts,
        bias: Option<BiasAt>,
        inputs: Option<(Format, Option<String>, Option<Parts>)>,
        rounding: Py<PyAny>,
        operands: Vec<Option<Bound<'_, PyAny>>>,
        dtypes: Vec<Py<PyAny>>,
    ) -> PyResult<Self> {
        let weight = Weight { format, rows, columns, parts, bias };
        let inputs = match inputs {
            None => Inputs::Plain,
            Some((format, Some(rule), scales)) => Inputs::Rounded(format, rule, scales),
            Some((format, None, scales)) => Inputs::Integer(format, scales.map(|(_, at, _, _)| (at, 1))),
        };
        let operands =
            operands.iter().map(|one| one.as_ref().map(Operand::new).transpose()).collect::<PyResult<_>>()?;
        Ok(Self { weight, inputs, rounding, operands, dtypes })
    }

    /// Whether these are the operands that were checked, and all but their bytes is as it was.
    fn is_still(&self, operands: &Bound<'_, PyTuple>) -> PyResult<bool> {
        if operands.len() != self.operands.len() {
            return Ok(false);
        }
        for (known, tensor) in self.operands.iter().zip(operands.iter_borrowed()) {
            let same = match known {
                Some(known) => known.is_still(&tensor)?,
                None => tensor.is_none(),
            };
            if !same {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The product with `x`, a plain CPU tensor, as the operators compute it; None where `operands` are not those that
    /// were checked, or `x` needs a closer look.
    fn multiply<'py>(
        &self,
        x: &Bound<'py, PyAny>,
        operands: &Bound<'py, PyTuple>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let py = x.py();
        if !self.is_still(operands)? {
            return Ok(None);
        }
        let Some((dtype, m, sizes)) = self.fits(x)? else { return Ok(None) };
        let number = |of: &Bound<'py, PyAny>| of.call_method0(intern!(py, "data_ptr"))?.extract::<usize>();
        let at = number(x)?;
        if !at.is_multiple_of(dtype.bytes()) {
            return Ok(None);
        }
        let out = x.call_method1(intern!(py, "new_empty"), PyTuple::new(py, sizes)?)?;
        let rows = Rows { dtype, m, x: at, out: number(&out)? };
        // SAFETY: the weight is as it was when `linear.py` checked it, and the inputs are contiguous, inside their storage.
        enter(py, || unsafe {
            match &self.inputs {
                Inputs::Plain => self.weight.multiply(rows),
                Inputs::Rounded(format, rule, scales) => self.weight.multiply_rounded(rows, format, rule, *scales),
                Inputs::Integer(format, scales) => self.weight.multiply_integer(rows, format, *scales),
            }
        })?;
        Ok(Some(out))
    }

    /// Copies and pickles as None: a copy of the layer has other tensors.
    fn __reduce__(&self, py: Python<'_>) -> (Py<PyAny>, ()) {
        (py.None().bind(py).get_type().into_any().unbind(), ())
    }
}

impl KnownWeight {
    /// Dtype and rows of inputs, and the sizes of their product; None unless there are some, contiguous, inside their storage.
    fn fits(&self, x: &Bound<'_, PyAny>) -> PyResult<Option<(DType, usize, Vec<usize>)>> {
        let py = x.py();
        let found = x.getattr(intern!(py, "dtype"))?;
        let kinds = [DType::F32, DType::F16, DType::BF16];
        let Some((_, kind)) = self.dtypes.iter().zip(kinds).find(|(dtype, _)| found.is(dtype)) else {
            return Ok(None);
        };
        let mut sizes: Vec<usize> = x.getattr(intern!(py, "shape"))?.extract()?;
        if sizes.last() != Some(&self.weight.columns) || !x.call_method0(intern!(py, "is_contiguous"))?.is_truthy()? {
            return Ok(None);
        }
        let elements = sizes.iter().fold(1, |all: usize, &size| all.saturating_mul(size));
        let offset: usize = x.call_method0(intern!(py, "storage_offset"))?.extract()?;
        let storage = x.call_method0(intern!(py, "untyped_storage"))?;
        let held: usize = storage.call_method0(intern!(py, "nbytes"))?.extract()?;
        if elements == 0 || offset.saturating_add(elements).saturating_mul(kind.bytes()) > held {
            return Ok(None);
        }
        sizes.pop();
        let m = sizes.iter().product();
        sizes.push(self.weight.rows);
        Ok(Some((kind, m, sizes)))
    }
}
