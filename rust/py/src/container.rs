//! The container on addresses. `octavo/tensors/container.py` is the only caller; the names are private to the package.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::path::PathBuf;

use octavo_core::container::{Entry, Packing, Reader, Writer, parse_dtype};
use octavo_core::{Error, Packed, Result};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

use crate::err::enter;
use crate::format::Format;
use crate::raw::{Memory, apart, slice, slice_mut};

/// A plain tensor: name, safetensors dtype, shape.
type Plain = (String, String, Vec<usize>);
/// A packed tensor: name, format, scale rule, logical shape, logical dtype, axis, and how many of its codes are not 0 where
/// they are sparse.
type PackedEntry = (String, Format, String, Vec<usize>, String, usize, Option<u64>);
/// The address of a part and its number of bytes.
type Span = (usize, usize);

fn entries(plain: Vec<Plain>, packed: Vec<PackedEntry>) -> Result<Vec<(String, Entry)>> {
    let mut all = Vec::with_capacity(plain.len() + packed.len());
    for (name, kind, shape) in plain {
        let dtype = parse_dtype(&kind)?;
        all.push((name, Entry::Plain { dtype, shape }));
    }
    for (name, format, rule, shape, kind, axis, nonzero) in packed {
        let packing = Packing { format: format.0, scale: rule.parse()?, shape, dtype: kind.parse()?, axis, nonzero };
        all.push((name, Entry::Packed(packing)));
    }
    Ok(all)
}

/// Writes a container: announced entries first, then `put_plain` and `put_packed` in any order, then `finish`.
#[pyclass(module = "octavo._core", name = "_ContainerWriter")]
pub(crate) struct ContainerWriter(Option<Writer>);

#[pymethods]
impl ContainerWriter {
    /// Starts a file at path, or a container in memory where path is None.
    #[new]
    fn new(
        py: Python<'_>,
        path: Option<PathBuf>,
        plain: Vec<Plain>,
        packed: Vec<PackedEntry>,
        metadata: BTreeMap<String, String>,
        overwrite: bool,
    ) -> PyResult<Self> {
        let writer = enter(py, || {
            let entries = entries(plain, packed)?;
            match path {
                Some(path) => Writer::create(&path, &entries, &metadata, overwrite),
                None => Writer::in_memory(&entries, &metadata),
            }
        })?;
        Ok(Self(Some(writer)))
    }
    /// Writes the bytes of an announced plain tensor.
    fn put_plain(&mut self, py: Python<'_>, name: &str, data: Span) -> PyResult<()> {
        // SAFETY: `container.py` passes a contiguous tensor on the CPU with its bytes and keeps it alive during the call.
        enter(py, || unsafe { self.writer()?.put_plain(name, slice(data.0, data.1, name)?) })
    }
    /// Writes codes, scales, zeros, levels and the bitmap of sparse codes of an announced packed tensor.
    fn put_packed(&mut self, py: Python<'_>, name: &str, parts: (Span, Span, Span, Span, Span)) -> PyResult<()> {
        // SAFETY: as in `put_plain`.
        enter(py, || unsafe {
            let part = |span: Span, what: &str| slice(span.0, span.1, what);
            let packed = Packed {
                codes: part(parts.0, "codes")?,
                scales: part(parts.1, "scales")?,
                zeros: part(parts.2, "zeros")?,
                levels: part(parts.3, "levels")?,
            };
            self.writer()?.put_sparse(name, packed, part(parts.4, "bitmap")?)
        })
    }
    /// Completes the file, or returns the bytes of a container in memory.
    fn finish<'py>(&mut self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let writer = self.0.take();
        let bytes = enter(py, || writer.ok_or_else(finished)?.finish())?;
        Ok(bytes.map(|bytes| PyBytes::new(py, &bytes)))
    }
    /// Gives up: nothing is left behind.
    fn abandon(&mut self) {
        self.0 = None;
    }
}

impl ContainerWriter {
    fn writer(&mut self) -> Result<&mut Writer> {
        self.0.as_mut().ok_or_else(finished)
    }
}

/// The digest of a tensor whose parts lie at these addresses, in the order of a file.
#[pyfunction]
#[pyo3(name = "_digest")]
pub(crate) fn digest(py: Python<'_>, parts: Vec<Span>) -> PyResult<String> {
    enter(py, || {
        // SAFETY: `container.py` passes contiguous tensors on the CPU with their bytes and keeps them alive during the call.
        let parts = parts.iter().map(|part| unsafe { slice(part.0, part.1, "a part") });
        Ok(octavo_core::container::digest(parts.collect::<Result<Vec<_>>>()?))
    })
}

fn finished() -> Error {
    Error::container("this writer is finished")
}

/// What an entry is: name, format, scale rule, shape, dtype, axis, bytes, and the number of sparse codes; format, rule and
/// axis are None for a plain tensor.
type EntryTuple = (String, Option<Format>, Option<&'static str>, Vec<usize>, String, Option<usize>, usize, Option<u64>);

/// A checked container: a file, a mapping of a file, or bytes. Its buffer is the whole container, where it is not a
/// file.
#[pyclass(frozen, module = "octavo._core", name = "_ContainerReader")]
pub(crate) struct ContainerReader(Reader);

#[pymethods]
impl ContainerReader {
    /// Opens a file; with mmap its bytes are mapped, private to this process.
    #[new]
    fn new(py: Python<'_>, path: PathBuf, mmap: bool) -> PyResult<Self> {
        enter(py, || Reader::open(&path, mmap).map(Self))
    }
    /// Checks a container in memory, which is not copied.
    #[staticmethod]
    fn from_bytes(py: Python<'_>, data: PyBackedBytes) -> PyResult<Self> {
        enter(py, || Reader::from_memory(data).map(Self))
    }
    /// All entries, in the order of names.
    fn entries(&self) -> Vec<EntryTuple> {
        let index = self.0.index();
        let bytes = |name| index.parts_of(name).map(|(_, part)| part.bytes).sum();
        let all = index.entries().iter().map(|(name, entry)| match entry {
            Entry::Plain { dtype, shape } => {
                (name.clone(), None, None, shape.clone(), dtype.to_string(), None, bytes(name), None)
            }
            Entry::Packed(packing) => {
                let (format, rule) = (Some(Format(packing.format)), Some(packing.scale_name()));
                let dtype = packing.dtype.name().to_owned();
                (
                    name.clone(),
                    format,
                    rule,
                    packing.shape.clone(),
                    dtype,
                    Some(packing.axis),
                    bytes(name),
                    packing.nonzero,
                )
            }
        });
        all.collect()
    }
    /// Offset in the container and number of bytes of what is stored under a name; None where nothing is.
    fn part(&self, stored: &str) -> Option<(u64, usize)> {
        self.0.index().part(stored).map(|part| (part.offset, part.bytes))
    }
    /// The user's metadata.
    #[getter]
    fn metadata(&self) -> BTreeMap<String, String> {
        self.0.index().metadata().clone()
    }
    /// True for files written by Octavo.
    #[getter]
    fn is_octavo(&self) -> bool {
        self.0.index().is_octavo()
    }
    /// Compares the bytes of all tensors with the digests of the metadata, where there are some.
    fn verify(&self, py: Python<'_>) -> PyResult<()> {
        enter(py, || self.0.verify())
    }
    /// Bytes of the whole container.
    #[getter]
    fn file_bytes(&self) -> u64 {
        self.0.index().file_bytes()
    }
    /// Reads all bytes of what is stored under a name, count in number, to an address.
    fn read_into(&self, py: Python<'_>, stored: &str, address: usize, count: usize) -> PyResult<()> {
        enter(py, || {
            if let Some(bytes) = self.0.bytes() {
                let own = Memory::new("the container", bytes.as_ptr().addr(), bytes.len());
                apart(&[Memory::new("the tensor", address, count)], &[own])?;
            }
            // SAFETY: `container.py` allocates the tensor, of this many bytes, and keeps it alive during the call; it is
            // apart from the container.
            self.0.read_into(stored, unsafe { slice_mut(address, count, stored)? })
        })
    }

    /// The bytes of a mapping, writable since the mapping is private; those of a bytes object, read-only. Bytes of a mapping
    /// that nobody here has written to change where another process writes to the file in place.
    ///
    /// # Safety
    /// Called by the interpreter with a valid view.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let reader = &slf.get().0;
        let Some(bytes) = reader.bytes() else {
            return Err(PyBufferError::new_err("a container that is read from a file has no buffer"));
        };
        let (start, length) = (bytes.as_ptr().cast::<c_void>().cast_mut(), bytes.len());
        let length = isize::try_from(length).map_err(|_| PyBufferError::new_err("too long for a buffer"))?;
        let read_only = c_int::from(!reader.is_mapped());
        // SAFETY: the view is valid, as the caller promises. The bytes live and stay where they are as long as the reader,
        // which the view keeps alive. Whoever writes to a mapping through the view must not do so while `read_into` copies
        // from it: `container.py` hands out tensors of a reader once it has read everything else.
        match unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, length, read_only, flags) } {
            0 => Ok(()),
            _ => Err(PyErr::fetch(slf.py())),
        }
    }
}
