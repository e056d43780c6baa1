//! `octavo._core.Format`: the Rust [`octavo_core::Format`] as an immutable Python value.

use octavo_core::format::{Element, Granularity, ScaleType, catalogue};
use octavo_core::{Format as Core, Layout, Sizes};
use pyo3::prelude::*;

use crate::err::enter;

/// A number format: what an element may be, and how many elements share a scale.
#[pyclass(frozen, eq, hash, from_py_object, module = "octavo._core")]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Format(pub(crate) Core);

#[pymethods]
impl Format {
    #[new]
    fn new(py: Python<'_>, text: &str) -> PyResult<Self> {
        enter(py, || Core::parse(text).map(Self))
    }
    /// Reads the text form, for example 'mxint8' or 'int4:g32'.
    #[staticmethod]
    fn parse(py: Python<'_>, text: &str) -> PyResult<Self> {
        Self::new(py, text)
    }
    fn __str__(&self) -> String {
        self.0.to_string()
    }
    fn __repr__(&self) -> String {
        format!("Format('{}')", self.0)
    }
    fn __reduce__(&self, py: Python<'_>) -> PyResult<(Py<PyAny>, (String,))> {
        Ok((py.get_type::<Self>().into_any().unbind(), (self.0.to_string(),)))
    }
    /// Family: 'native', 'fixed', 'int', 'uint', 'fullrange', 'affine', 'kquant', 'minifloat', 'denorm', 'log', 'binary', 'ternary', 'bfp', 'bm', 'blog', 'mxint', 'mxfp', 'nvfp4' or 'nf'.
    #[getter]
    fn family(&self) -> &'static str {
        match self.0.element() {
            Element::Native(_) => "native",
            Element::Fixed { .. } => "fixed",
            Element::Int { signed: true, .. } => "int",
            Element::Int { .. } => "uint",
            Element::FullRange { .. } => "fullrange",
            Element::Affine { .. } => "affine",
            Element::KQuant(_) => "kquant",
            Element::Minifloat(_) => "minifloat",
            Element::Denorm { .. } => "denorm",
            Element::Log { .. } => "log",
            Element::Binary { .. } => "binary",
            Element::Ternary => "ternary",
            Element::Bfp { .. } => "bfp",
            Element::BlockMinifloat { .. } => "bm",
            Element::BlockLog { .. } => "blog",
            Element::MxInt { .. } => "mxint",
            Element::MxFloat(_) => "mxfp",
            Element::NvFp4 => "nvfp4",
            Element::NormalFloat { .. } => "nf",
        }
    }
    /// Bits of one code, without scales.
    #[getter]
    fn width(&self) -> u32 {
        self.0.width()
    }
    /// 'none', 'tensor', 'channel' or 'block': what shares a scale.
    #[getter]
    fn granularity(&self) -> &'static str {
        match self.0.granularity() {
            Granularity::None => "none",
            Granularity::Tensor => "tensor",
            Granularity::Channel => "channel",
            Granularity::Block(_) => "block",
        }
    }
    /// Elements that share a scale, or None where it is not a fixed number.
    #[getter]
    fn block(&self) -> Option<u32> {
        match self.0.granularity() {
            Granularity::Block(block) => Some(block),
            _ => None,
        }
    }
    /// Storage type of the scales: 'float32', 'float16', 'e8m0', 'e4m3', 'int8' or None.
    #[getter]
    fn scale_type(&self) -> Option<&'static str> {
        self.0.scale_type().map(|kind| match kind {
            ScaleType::F32 => "float32",
            ScaleType::F16 => "float16",
            ScaleType::E8M0 => "e8m0",
            ScaleType::E4M3 => "e4m3",
            ScaleType::I8 => "int8",
            ScaleType::Nested => "nested",
        })
    }
    /// Scales that one group stores: N for binaryN, 2 (scale and offset) for uintW:gN,offset, else 1.
    #[getter]
    fn scales_per_group(&self) -> usize {
        self.0.scales_per_group()
    }
    /// True where each group stores a zero point (uintW).
    #[getter]
    fn has_zeros(&self) -> bool {
        self.0.has_zeros()
    }
    /// True where each group stores an offset behind its scale (uintW:gN,offset).
    #[getter]
    fn has_offsets(&self) -> bool {
        self.0.has_offsets()
    }
    /// The format to quantize to where nothing is encoded in this one (K-quants), else None.
    #[getter]
    fn instead(&self) -> Option<&'static str> {
        self.0.instead()
    }
    /// True where the tensor stores a second-level scale (nvfp4).
    #[getter]
    fn has_levels(&self) -> bool {
        self.0.has_levels()
    }
    /// True where the rules scale='ceil' and 'mse' apply.
    #[getter]
    fn is_block(&self) -> bool {
        self.0.is_block()
    }
    /// True where a value may lie outside the range of its group, under a rule of scales or under given ones.
    fn saturates(&self, py: Python<'_>, rule: &str, given: bool) -> PyResult<bool> {
        enter(py, || Ok(octavo_core::codec::saturates(self.0, rule.parse()?, given)))
    }
    /// Bytes of the marks that quantize writes for a tensor; 0 where it writes none.
    fn _marks(&self, py: Python<'_>, shape: Vec<usize>, axis: isize) -> PyResult<usize> {
        enter(py, || Ok(octavo_core::codec::marks_len(&octavo_core::Layout::new(&shape, axis, self.0)?, self.0)))
    }
    /// True where encode can store NaN.
    #[getter]
    fn has_nan(&self) -> bool {
        self.0.has_nan()
    }
    /// Bits per element in the limit of long rows, scales included.
    #[getter]
    fn bits(&self) -> f64 {
        let _state = octavo_core::FloatState::standard();
        self.0.nominal_bits()
    }
    /// Bits per element, scales included, of one row (or tensor) of k elements.
    fn bits_per_element(&self, k: usize) -> f64 {
        let _state = octavo_core::FloatState::standard();
        self.0.bits_per_element(k)
    }
    /// Lowest and highest finite value at scale 1.
    #[getter]
    fn range(&self) -> (f64, f64) {
        let _state = octavo_core::FloatState::standard();
        self.0.range()
    }
    /// Smallest positive value at scale 1.
    #[getter]
    fn smallest(&self) -> f64 {
        let _state = octavo_core::FloatState::standard();
        self.0.smallest()
    }
    /// Every (code, value) that an encoder writes, at scale 1, ascending by value; formats of up to 16 bits.
    fn values(&self, py: Python<'_>) -> PyResult<Vec<(u32, f64)>> {
        let listed = enter(py, || self.0.values())?;
        Ok(listed.into_iter().map(|entry| (entry.code, entry.value)).collect())
    }
    /// Sizes of an encoded tensor: (rows, k, row_bytes, codes, groups, scales, zeros_row, zeros, levels), in bytes but for rows, k and groups.
    #[expect(clippy::type_complexity, reason = "a flat tuple is the cheapest thing to hand to Python")]
    fn _sizes(
        &self,
        py: Python<'_>,
        shape: Vec<usize>,
        axis: isize,
    ) -> PyResult<(usize, usize, usize, usize, usize, usize, usize, usize, usize)> {
        enter(py, || {
            let layout = Layout::new(&shape, axis, self.0)?;
            let s = Sizes::new(self.0, &layout)?;
            Ok((layout.rows(), layout.k, s.row_bytes, s.codes, s.groups, s.scales, s.zeros_row, s.zeros, s.levels))
        })
    }
    /// Bytes of a tensor of this shape in this format, padding included.
    #[pyo3(signature = (shape, axis = -1))]
    fn nbytes(&self, py: Python<'_>, shape: Vec<usize>, axis: isize) -> PyResult<usize> {
        enter(py, || self.0.bytes_for(&shape, axis))
    }
}

/// Texts of one or more formats of every family.
#[pyfunction]
pub(crate) fn formats() -> Vec<&'static str> {
    catalogue().to_vec()
}
