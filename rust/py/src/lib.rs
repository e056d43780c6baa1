//! `octavo._core`: arguments in, errors out. No logic lives here.

mod byte_pairs;
mod characters;
mod codec;
mod container;
mod cuda;
mod decoder;
mod dropout_norm;
mod engine;
mod err;
mod format;
mod known;
mod linear;
mod polynomials;
mod raw;
mod solve;
mod sparse;

use pyo3::prelude::*;

/// Everything `octavo._core` exports.
#[pymodule(gil_used = false)]
mod _core {
    #[pymodule_export]
    use super::byte_pairs::{BytePairs, EncodedIds, MergeLearner, PieceCounts};
    #[pymodule_export]
    use super::characters::CharTokenizer;
    #[pymodule_export]
    use super::codec::{adamw, decode, encode, pack, pass_marked, quantize, quantize_backward, unpack};
    #[pymodule_export]
    use super::container::{ContainerReader, ContainerWriter, digest};
    #[pymodule_export]
    use super::cuda::attention::{cuda_attention, cuda_attention_scratch};
    #[pymodule_export]
    use super::cuda::codec::{cuda_decode, cuda_encode, cuda_quantize, cuda_quantize_backward, cuda_scratch};
    #[pymodule_export]
    use super::cuda::dropout_norm::{cuda_dropout_norm, cuda_dropout_norm_backward, cuda_dropout_norm_parts};
    #[pymodule_export]
    use super::cuda::linear::{
        cuda_int8_gemm, cuda_int8_gemm_scratch, cuda_integer_linear, cuda_integer_linear_scratch, cuda_linear_kernel,
        cuda_packed_linear, cuda_packed_linear_scratch,
    };
    #[pymodule_export]
    use super::cuda::runtime::{
        cuda_archs, cuda_configure, cuda_devices, cuda_info, cuda_prebuild, cuda_programs, cuda_warmup,
    };
    #[pymodule_export]
    use super::cuda::seq2seq::{cuda_seq2seq_decode, cuda_seq2seq_encode, cuda_seq2seq_scratch};
    #[pymodule_export]
    use super::decoder::{Decoder, Generation};
    #[pymodule_export]
    use super::dropout_norm::{dropout_norm, dropout_norm_backward};
    #[pymodule_export]
    use super::engine::{Encoder, Engine, EngineStream};
    #[pymodule_export]
    use super::format::{Format, formats};
    #[pymodule_export]
    use super::known::KnownWeight;
    #[pymodule_export]
    use super::linear::{
        integer_linear, linear_kernel, packed_embedding, packed_linear, rounded_linear, rounded_linear_kernel,
    };
    #[pymodule_export]
    use super::polynomials::{PolynomialStream, polynomial_expand, polynomial_kind};
    #[pymodule_export]
    use super::settings::{force_simd, huge_pages, num_threads, set_num_threads, simd_level, use_openmp};
    #[pymodule_export]
    use super::solve::{factored, fed_back, fit, gptq, lost, outer_products, squares_taken};
    #[pymodule_export]
    use super::sparse::{
        sparse_compress, sparse_count, sparse_expand, sparse_kernel, sparse_linear, sparse_starts, sparse_takes,
    };

    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        module.add("debug_build", cfg!(debug_assertions))
    }
}

mod settings {
    use octavo_core::{Level, pool};
    use pyo3::prelude::*;

    use crate::err::enter;

    /// The SIMD level in use: 'scalar', 'avx2' or 'avx512'.
    #[pyfunction]
    pub(crate) fn simd_level() -> &'static str {
        Level::current().name()
    }

    /// Forces a SIMD level for the whole process; None returns to the highest this machine has.
    #[pyfunction]
    #[pyo3(signature = (level))]
    pub(crate) fn force_simd(py: Python<'_>, level: Option<&str>) -> PyResult<()> {
        enter(py, || Level::force(level.map(str::parse).transpose()?))
    }

    /// Asks the system for huge pages behind fresh memory; True where it agreed. What the memory holds stays.
    #[pyfunction]
    #[pyo3(name = "_huge_pages")]
    pub(crate) fn huge_pages(address: usize, bytes: usize) -> bool {
        octavo_core::huge_pages::advise(address, bytes)
    }

    /// Shares work with the OpenMP threads of this process, whose `GOMP_parallel` is at an address; 0 ends that.
    #[pyfunction]
    #[pyo3(name = "_use_openmp")]
    pub(crate) fn use_openmp(parallel: usize) {
        // SAFETY: the package passes on what the loader says of the library that PyTorch has loaded for good.
        unsafe { pool::use_openmp(parallel) };
    }

    /// Threads that the next call may use.
    #[pyfunction]
    pub(crate) fn num_threads() -> usize {
        pool::num_threads()
    }

    /// Sets the number of threads of later calls; 0 means all available cores.
    #[pyfunction]
    pub(crate) fn set_num_threads(py: Python<'_>, threads: usize) -> PyResult<()> {
        enter(py, || pool::set_num_threads(threads))
    }
}
