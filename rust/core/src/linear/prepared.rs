//! Products whose rows do not depend on how many rows there are, with weights that are kept as the kernel reads them.

use super::output::Inputs;
#[cfg(target_arch = "x86_64")]
use super::output::Outputs;
use super::{Matrix, check_sizes, f32_kept, float};
#[cfg(target_arch = "x86_64")]
use super::{bf16_limbs, route};
use crate::codec::rows::Rows;
use crate::codec::{DType, Values, ValuesMut};
use crate::error::Result;
use crate::float_state::FloatState;
#[cfg(target_arch = "x86_64")]
use crate::simd::tiles::Tiles;
use crate::simd::{LANES, Level};

/// The weights of a matrix as a kernel for many rows makes them of the codes at every call, kept: limbs of bfloat16 where
/// it runs on AMX, otherwise float32. [`multiply_alike`] takes them.
#[derive(Debug)]
pub struct Prepared {
    form: Form,
    /// Where these weights are those of the kernel in use.
    level: Level,
    rows: usize,
    columns: usize,
}

#[derive(Debug)]
enum Form {
    Floats(f32_kept::Kept),
    #[cfg(target_arch = "x86_64")]
    Limbs(bf16_limbs::Kept),
}

impl Prepared {
    /// Bytes that the prepared weights of a matrix take at the SIMD level in use.
    ///
    /// # Errors
    /// [`crate::Error::Shape`] where a length does not fit.
    pub fn bytes(w: &Matrix<'_>) -> Result<usize> {
        let (n, k) = (w.rows, w.columns);
        #[cfg(target_arch = "x86_64")]
        if let Some(route::Way::Bf16Limbs(table, tiles @ Tiles::Amx)) =
            route::way_of_many(w.format, n, k, Level::current())
        {
            let rows = Rows::new(w.packed, n, k, w.format, Level::current())?;
            let weights = bf16_limbs::Weights::new(w.format, table.as_deref(), &rows, n, tiles, DType::F32);
            return Ok(bf16_limbs::Kept::bytes(&weights));
        }
        Ok(f32_kept::Kept::bytes(n, k))
    }

    /// Prepares the weights of a matrix for the SIMD level in use; `None` where no kernel takes them prepared: at the level
    /// `scalar`, for magnitudes that AMX refuses, and for a matrix without weights.
    ///
    /// # Errors
    /// [`crate::Error::Shape`] where a length does not fit, [`crate::Error::OutOfMemory`] where memory is short.
    pub fn new(w: &Matrix<'_>) -> Result<Option<Self>> {
        let _state = FloatState::standard();
        let (n, k, level) = (w.rows, w.columns, Level::current());
        let rows = Rows::new(w.packed, n, k, w.format, level)?;
        if level == Level::Scalar || n == 0 || k == 0 {
            return Ok(None);
        }
        let form = Self::form(w, &rows, level)?;
        Ok(form.map(|form| Self { form, level, rows: n, columns: k }))
    }

    fn form(w: &Matrix<'_>, rows: &Rows<'_>, level: Level) -> Result<Option<Form>> {
        #[cfg(target_arch = "x86_64")]
        if let Some(route::Way::Bf16Limbs(table, tiles @ Tiles::Amx)) =
            route::way_of_many(w.format, w.rows, w.columns, level)
        {
            let weights = bf16_limbs::Weights::new(w.format, table.as_deref(), rows, w.rows, tiles, DType::F32);
            // SAFETY: the route found the instructions.
            let kept = unsafe { bf16_limbs::Kept::new(&weights)? };
            return Ok(kept.map(Form::Limbs));
        }
        Ok(Some(Form::Floats(f32_kept::Kept::new(rows, w.rows)?)))
    }

    /// Bytes that the weights take here.
    pub fn nbytes(&self) -> usize {
        match &self.form {
            Form::Floats(kept) => kept.nbytes(),
            #[cfg(target_arch = "x86_64")]
            Form::Limbs(kept) => kept.nbytes(),
        }
    }

    /// Writes the products; false, with nothing of use written, where the kernel of the codes has to.
    fn multiply(&self, x: &Inputs<'_>, bias: Option<&[f32]>, out: &mut [f32], level: Level) -> Result<bool> {
        if level != self.level {
            return Ok(false);
        }
        match &self.form {
            Form::Floats(kept) => Ok(kept.multiply(level, x.values(), bias, out)),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the instructions were found for this level; the caller has checked all lengths.
            Form::Limbs(kept) => unsafe {
                let m = out.len().checked_div(self.rows).unwrap_or(0);
                let given = bf16_limbs::Given::new(Values::F32(x.values()), self.columns, x.stride, DType::F32);
                let mut out = ValuesMut::F32(out);
                let out = float::Biased::new(Outputs::new(&mut out, self.rows, level), bias.unwrap_or(&[]));
                let mut left = Vec::new();
                kept.multiply(&given, 0..m, 0, &out, &mut left)?;
                Ok(left.is_empty())
            },
        }
    }
}

/// As [`super::multiply`] for many rows, however many there are, but by kernels that can keep weights: a row's result
/// depends on that row, the weights and the SIMD level alone.
///
/// With `prepared` weights, which must be those of `w`, the call works on its own thread and decodes nothing. The results
/// are the same to the bit.
///
/// # Errors
/// As for [`super::multiply`].
pub fn multiply_alike(
    x: &[f32],
    m: usize,
    w: &Matrix<'_>,
    prepared: Option<&Prepared>,
    bias: Option<&[f32]>,
    out: &mut [f32],
) -> Result<()> {
    let prepared = prepared.filter(|kept| (kept.rows, kept.columns) == (w.rows, w.columns));
    if let Some(prepared) = prepared
        && bias.is_none_or(|bias| bias.len() == w.rows)
    {
        let _state = FloatState::standard();
        let level = Level::current();
        check_sizes(m, w, x.len(), out.len())?;
        let x = Inputs::new(Values::F32(x), m, w.columns, LANES, level)?;
        if prepared.multiply(&x, bias, out, level)? {
            return Ok(());
        }
    }
    let bias = bias.map(Values::F32);
    let by = float::By::Alike(m.max(float::MANY));
    float::multiply_as(Values::F32(x), DType::F32, m, w, bias, ValuesMut::F32(out), by)
}
