//! The table of kernels: which one multiplies.
//!
//! The first row that takes a problem runs. Products, prepared weights and the names of [`kernel`] read the same rows, so what
//! is named is what runs. A new kernel is a file with `takes` and `run`, a row here, and its test.

use std::ops::RangeInclusive;

#[cfg(target_arch = "aarch64")]
use super::aarch64::int8_dot;
use super::float::FloatProduct;
use super::integer::IntegerProduct;
use super::prepared::Preparation;
use super::problem::{Input, Problem, Storage};
use super::rounded::CodesProduct;
use super::sparse::SparseProduct;
#[cfg(target_arch = "x86_64")]
use super::x86::{
    bf16_limbs, f32_codes_avx2, f32_codes_vbmi, f32_float8, f32_lookup_avx512, f32_tiles, int8_avx2, int8_group_tiles,
    int8_groups_avx2, int8_limbs_vnni, int8_pairs_avx2, int8_rows, int8_tiles,
};
use super::{f32_fma, f32_prepared, int8_lanes, integer};
use crate::error::{FormatError, Result};
use crate::simd::Processor::{self, Amx, Avx2, Avx512, Neon, NeonDot, Scalar};
#[cfg(target_arch = "x86_64")]
use crate::simd::Processor::{Avx512Bf16, Avx512Vbmi, Avx512Vnni};

/// A kernel, and the problems that it takes.
pub struct Kernel {
    /// Its name.
    pub name: &'static str,
    /// The processors that it is for.
    pub processors: RangeInclusive<Processor>,
    /// Fewest rows of inputs, where results may depend on their number: else of the number that they are chosen by.
    pub min_rows: usize,
    /// Most rows of inputs, in the same sense.
    pub max_rows: usize,
    /// Rows of inputs of the call, for kernels whose sums have the order of the reference: no result depends on the choice.
    pub call_rows: RangeInclusive<usize>,
    /// Fewest weights.
    pub min_weights: usize,
    /// What the bounds are for: the measurements that set them.
    pub bounds: &'static str,
    /// Other conditions.
    takes: fn(&Problem) -> bool,
    run: Run,
}

/// How a kernel multiplies: by what it multiplies.
#[derive(Clone, Copy)]
pub(super) enum Run {
    /// Inputs are numbers, rounded ones among them.
    Float(fn(&FloatProduct<'_>) -> Result<()>),
    /// Inputs are rounded; their codes are multiplied.
    Codes(fn(&CodesProduct<'_>) -> Result<()>),
    /// Integers.
    Integer(fn(&IntegerProduct<'_>) -> Result<()>),
    /// Weights are sparse.
    Sparse(fn(&SparseProduct<'_>) -> Result<()>),
    /// Weights are prepared.
    Prepared(Preparation),
}

/// A row without bounds, for others to start from.
const ROW: Kernel = Kernel {
    name: "",
    processors: Scalar..=Amx,
    min_rows: 0,
    max_rows: usize::MAX,
    call_rows: 0..=usize::MAX,
    min_weights: 0,
    bounds: "",
    takes: |_| true,
    run: Run::Float(f32_fma::run),
};

/// Weights from which on arranging inputs costs less than it saves, for up to four rows of inputs.
const FEW_ROWS_WEIGHTS: usize = 1 << 12;
/// The same for more rows.
const MANY_ROWS_WEIGHTS: usize = 1 << 15;

/// The kernels of one architecture, before those of all.
#[cfg(target_arch = "x86_64")]
const OWN: &[Kernel] = &[
    // Sparse weights.
    Kernel {
        name: "sparse int8 limbs vnni",
        processors: Avx512Vnni..=Amx,
        min_rows: 1,
        max_rows: 4,
        min_weights: FEW_ROWS_WEIGHTS,
        takes: int8_limbs_vnni::takes_sparse,
        run: Run::Sparse(int8_limbs_vnni::run_sparse),
        bounds: "fewer weights: arranging inputs costs more than it saves",
        ..ROW
    },
    // Prepared weights: the same sums as those of kernels for many rows.
    Kernel {
        name: "bfloat16 limbs prepared amx",
        processors: Amx..=Amx,
        min_weights: MANY_ROWS_WEIGHTS,
        takes: bf16_limbs::takes_amx,
        run: Run::Prepared(bf16_limbs::PREPARATION),
        bounds: "those of the kernel that decodes weights",
        ..ROW
    },
    // Codes of inputs and weights.
    Kernel {
        name: "int8 groups vnni",
        processors: Amx..=Amx,
        min_rows: 1,
        max_rows: 8,
        min_weights: FEW_ROWS_WEIGHTS,
        takes: int8_limbs_vnni::takes_codes,
        run: Run::Codes(int8_limbs_vnni::run_codes),
        bounds: "up to so many rows unpacking codes again for VNNI is cheaper than decoding them for tiles: products of codes cost a third",
        ..ROW
    },
    Kernel {
        name: "int8 groups vnni",
        processors: Avx512Vnni..=Avx512Bf16,
        min_rows: 1,
        max_rows: 16,
        min_weights: FEW_ROWS_WEIGHTS,
        takes: int8_limbs_vnni::takes_codes,
        run: Run::Codes(int8_limbs_vnni::run_codes),
        bounds: "rows that are multiplied in one go; fewer weights: arranging inputs costs more than it saves",
        ..ROW
    },
    Kernel {
        name: "int8 groups avx2",
        processors: Avx2..=Avx512Vbmi,
        min_rows: 1,
        max_rows: 8,
        min_weights: FEW_ROWS_WEIGHTS,
        takes: int8_groups_avx2::takes,
        run: Run::Codes(int8_groups_avx2::run),
        bounds: "up to so many rows about as fast as products with float32 numbers, or faster",
        ..ROW
    },
    Kernel {
        name: "int8 groups amx",
        processors: Amx..=Amx,
        min_rows: 9,
        min_weights: MANY_ROWS_WEIGHTS,
        takes: int8_group_tiles::takes_codes_amx,
        run: Run::Codes(int8_group_tiles::run_codes),
        bounds: "fewer rows: codes unpacked again for VNNI are cheaper than those arranged for tiles",
        ..ROW
    },
    Kernel {
        name: "int8 group tiles vnni",
        processors: Avx512Vnni..=Avx512Bf16,
        min_rows: 17,
        min_weights: MANY_ROWS_WEIGHTS,
        takes: int8_group_tiles::takes_codes,
        run: Run::Codes(int8_group_tiles::run_codes),
        bounds: "more rows than are multiplied in one go",
        ..ROW
    },
    Kernel {
        name: "bfloat16 codes avx512",
        processors: Avx512Bf16..=Avx512Bf16,
        min_rows: 5,
        min_weights: MANY_ROWS_WEIGHTS,
        takes: bf16_limbs::takes_codes,
        run: Run::Codes(bf16_limbs::run_codes),
        bounds: "up to two products of limbs for each weight and input: float32 takes as long as two",
        ..ROW
    },
    // Integers.
    Kernel {
        name: "int8 rows amx",
        processors: Amx..=Amx,
        min_weights: 1 << 14,
        takes: int8_rows::takes,
        run: Run::Integer(int8_rows::run),
        bounds: "128 rows of inputs for each piece of the weights that stays in the L2 cache",
        ..ROW
    },
    Kernel {
        name: "int8 amx",
        processors: Amx..=Amx,
        min_weights: 1 << 14,
        takes: int8_tiles::takes,
        run: Run::Integer(int8_tiles::run),
        bounds: "fewer weights: arranging inputs costs more than tiles save",
        ..ROW
    },
    Kernel {
        name: "int8 vnni",
        processors: Avx512Vnni..=Avx512Bf16,
        min_weights: 1 << 14,
        takes: int8_tiles::takes,
        run: Run::Integer(int8_tiles::run),
        bounds: "fewer weights: arranging inputs costs more than tiles save",
        ..ROW
    },
    Kernel {
        name: "int8 pairs avx2",
        processors: Avx2..=Amx,
        min_rows: 8,
        takes: int8_pairs_avx2::takes,
        run: Run::Integer(int8_pairs_avx2::run),
        bounds: "from so many rows on faster than four rows of weights at a time",
        ..ROW
    },
    Kernel {
        name: "int8 avx2",
        processors: Avx2..=Amx,
        takes: int8_avx2::takes,
        run: Run::Integer(int8_avx2::run),
        ..ROW
    },
    // Numbers.
    Kernel {
        name: "int8 limbs amx",
        processors: Amx..=Amx,
        min_rows: 5,
        min_weights: int8_group_tiles::MIN_LIMB_WEIGHTS,
        takes: int8_group_tiles::takes,
        run: Run::Float(int8_group_tiles::run),
        bounds: "from so many weights on faster than limbs of bfloat16",
        ..ROW
    },
    Kernel {
        name: "fma float8 avx512",
        processors: Avx512..=Amx,
        max_rows: 8,
        min_weights: FEW_ROWS_WEIGHTS,
        takes: f32_float8::takes,
        run: Run::Float(f32_float8::run),
        bounds: "rows of inputs that share the conversion of a code: their sums fill the registers; fewer weights: arranging inputs costs more than it saves",
        ..ROW
    },
    Kernel {
        name: "fma float8 avx2",
        processors: Avx2..=Avx2,
        max_rows: 8,
        min_weights: FEW_ROWS_WEIGHTS,
        takes: f32_float8::takes,
        run: Run::Float(f32_float8::run),
        bounds: "rows of inputs that share the conversion of a code: their sums fill the registers; fewer weights: arranging inputs costs more than it saves",
        ..ROW
    },
    Kernel {
        name: "fma lookup avx512",
        processors: Avx512..=Amx,
        max_rows: 2,
        min_weights: FEW_ROWS_WEIGHTS,
        takes: f32_lookup_avx512::takes,
        run: Run::Float(f32_lookup_avx512::run),
        bounds: "from three rows on weights that are scaled before they are multiplied are as fast; fewer weights: arranging inputs costs more than it saves",
        ..ROW
    },
    Kernel {
        name: "fma codes avx512",
        processors: Avx512Vbmi..=Amx,
        min_rows: 2,
        max_rows: 4,
        min_weights: FEW_ROWS_WEIGHTS,
        takes: f32_codes_vbmi::takes,
        run: Run::Float(f32_codes_vbmi::run),
        bounds: "from so many rows on faster than sums in fixed point; codes of at most four bits from three rows on",
        ..ROW
    },
    Kernel {
        name: "int8 limbs vnni",
        processors: Avx512Vnni..=Amx,
        max_rows: 4,
        min_weights: FEW_ROWS_WEIGHTS,
        takes: int8_limbs_vnni::takes,
        run: Run::Float(int8_limbs_vnni::run),
        bounds: "up to so many rows unpacking codes again for VNNI is cheaper than decoding them for tiles",
        ..ROW
    },
    Kernel {
        name: "bfloat16 limbs amx",
        processors: Amx..=Amx,
        min_weights: MANY_ROWS_WEIGHTS,
        takes: bf16_limbs::takes_amx,
        run: Run::Float(bf16_limbs::run),
        bounds: "fewer weights: arranging inputs costs more than it saves; up to four rows formats of a table alone",
        ..ROW
    },
    Kernel {
        name: "bfloat16 limbs avx512",
        processors: Avx512Bf16..=Avx512Bf16,
        min_weights: MANY_ROWS_WEIGHTS,
        takes: bf16_limbs::takes_avx512,
        run: Run::Float(bf16_limbs::run),
        bounds: "up to two products of limbs for each weight and input: float32 takes as long as two",
        ..ROW
    },
    Kernel {
        name: "fma codes avx512",
        processors: Avx512Vbmi..=Amx,
        min_rows: 5,
        max_rows: 32,
        min_weights: MANY_ROWS_WEIGHTS,
        takes: f32_codes_vbmi::takes,
        run: Run::Float(f32_codes_vbmi::run),
        bounds: "up to so many rows faster than decoding rows of weights to memory first",
        ..ROW
    },
    Kernel {
        name: "fma codes avx2",
        processors: Avx2..=Avx512Vbmi,
        max_rows: 4,
        call_rows: 0..=8,
        min_weights: FEW_ROWS_WEIGHTS,
        takes: f32_codes_avx2::takes,
        run: Run::Float(f32_codes_avx2::run),
        bounds: "up to eight rows faster than decoding rows of weights to memory first",
        ..ROW
    },
    Kernel {
        name: "fma codes avx2",
        processors: Avx2..=Avx512Vbmi,
        min_rows: 5,
        max_rows: 8,
        call_rows: 0..=8,
        min_weights: MANY_ROWS_WEIGHTS,
        takes: f32_codes_avx2::takes,
        run: Run::Float(f32_codes_avx2::run),
        bounds: "up to eight rows faster than decoding rows of weights to memory first",
    },
    Kernel {
        name: "fma tiles avx512",
        processors: Avx512..=Amx,
        call_rows: 64..=usize::MAX,
        takes: f32_tiles::takes,
        run: Run::Float(f32_tiles::run),
        bounds: "from so many rows on faster than rows of weights as they are decoded",
        ..ROW
    },
    Kernel {
        name: "fma tiles avx2",
        processors: Avx2..=Avx2,
        call_rows: 64..=usize::MAX,
        takes: f32_tiles::takes,
        run: Run::Float(f32_tiles::run),
        bounds: "from so many rows on faster than rows of weights as they are decoded",
        ..ROW
    },
];

/// The kernels of one architecture, before those of all.
#[cfg(target_arch = "aarch64")]
const OWN: &[Kernel] = &[Kernel {
    name: "int8 dot neon",
    processors: NeonDot..=NeonDot,
    takes: int8_dot::takes,
    run: Run::Integer(int8_dot::run),
    ..ROW
}];

/// No kernels of another architecture.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const OWN: &[Kernel] = &[];

/// The kernels of all architectures: they take what is left.
const PORTABLE: &[Kernel] = &[
    Kernel {
        name: "fma prepared avx512",
        processors: Avx512..=Amx,
        run: Run::Prepared(f32_prepared::PREPARATION),
        ..ROW
    },
    Kernel { name: "fma prepared avx2", processors: Avx2..=Avx2, run: Run::Prepared(f32_prepared::PREPARATION), ..ROW },
    Kernel {
        name: "fma prepared neon",
        processors: Neon..=NeonDot,
        run: Run::Prepared(f32_prepared::PREPARATION),
        ..ROW
    },
    Kernel { name: "int8 lanes avx512", processors: Avx512..=Amx, run: Run::Integer(int8_lanes::run), ..ROW },
    Kernel { name: "int8 lanes avx2", processors: Avx2..=Avx2, run: Run::Integer(int8_lanes::run), ..ROW },
    Kernel { name: "int8 lanes neon", processors: Neon..=NeonDot, run: Run::Integer(int8_lanes::run), ..ROW },
    Kernel { name: "int8 scalar", processors: Scalar..=Scalar, run: Run::Integer(int8_lanes::run), ..ROW },
    Kernel { name: "fma avx512", processors: Avx512..=Amx, ..ROW },
    Kernel { name: "fma avx2", processors: Avx2..=Avx2, ..ROW },
    Kernel { name: "fma neon", processors: Neon..=NeonDot, ..ROW },
    Kernel { name: "fma scalar", processors: Scalar..=Scalar, ..ROW },
];

/// All kernels, in the order in which they are asked.
pub fn kernels() -> impl Iterator<Item = &'static Kernel> {
    OWN.iter().chain(PORTABLE)
}

/// The first kernel that takes a problem, of those that `way` finds.
pub(super) fn choose<T>(problem: &Problem, way: fn(&Run) -> Option<T>) -> Option<(&'static str, T)> {
    kernels().find_map(|kernel| Some((kernel.name, way(&kernel.run)?)).filter(|_| kernel.takes(problem)))
}

/// Name of the kernel that runs for a problem.
///
/// # Errors
/// [`crate::Error::Format`] where [`super::multiply_integer`], or [`super::multiply_sparse`], does not take the problem.
pub fn kernel(problem: &Problem) -> Result<&'static str> {
    let dense = Problem { storage: Storage::Dense, ..*problem };
    let float = || choose(&dense, Run::float).map(|(name, _)| name);
    let name = match (problem.storage, problem.input) {
        (Storage::Sparse, _) => match choose(problem, Run::sparse) {
            Some((name, _)) => Some(name),
            None => return Err(FormatError::SparseProduct { format: problem.weight, rows: problem.rows }.into()),
        },
        (Storage::Prepared, _) => choose(problem, Run::preparation).map(|(name, _)| name).or_else(float),
        (Storage::Dense, Input::Plain(_)) => float(),
        (Storage::Dense, Input::Rounded(_)) => choose(problem, Run::codes).map(|(name, _)| name).or_else(float),
        (Storage::Dense, Input::Integer(input)) if integer::check_formats(problem.weight, input)? => {
            return kernel(&Problem { input: Input::Rounded(input), ..*problem });
        }
        (Storage::Dense, Input::Integer(_)) => choose(problem, Run::integer).map(|(name, _)| name),
    };
    Ok(name.unwrap_or("none"))
}

impl Kernel {
    /// True where all bounds hold.
    fn takes(&self, problem: &Problem) -> bool {
        self.processors.contains(&problem.processor)
            && (self.min_rows..=self.max_rows).contains(&problem.batch_rows())
            && self.call_rows.contains(&problem.rows)
            && problem.weights() >= self.min_weights
            && (self.takes)(problem)
    }
}

impl Run {
    pub(super) const fn float(&self) -> Option<fn(&FloatProduct<'_>) -> Result<()>> {
        if let Self::Float(run) = self { Some(*run) } else { None }
    }

    pub(super) const fn codes(&self) -> Option<fn(&CodesProduct<'_>) -> Result<()>> {
        if let Self::Codes(run) = self { Some(*run) } else { None }
    }

    pub(super) const fn integer(&self) -> Option<fn(&IntegerProduct<'_>) -> Result<()>> {
        if let Self::Integer(run) = self { Some(*run) } else { None }
    }

    pub(super) const fn sparse(&self) -> Option<fn(&SparseProduct<'_>) -> Result<()>> {
        if let Self::Sparse(run) = self { Some(*run) } else { None }
    }

    pub(super) const fn preparation(&self) -> Option<Preparation> {
        if let Self::Prepared(preparation) = self { Some(*preparation) } else { None }
    }
}
