//! [`Product`]: weights decoded for each call, a unit of rows at a time.

use std::arch::x86_64::*;

use super::inputs::Tiled;
use super::weights::{self, Pieces, Weights};
use super::{FOLD, MOST, PAIR, STEP, TILE, UNIT};
use crate::codec::zeroed;
use crate::error::Result;
use crate::linear::output::Inputs;
use crate::simd::Line;
use crate::simd::amx::products::{Factors, FloatSums, Step};
use crate::simd::amx::{LINE, ROWS, Session};
use crate::simd::transpose::transpose;

/// A product of packed weights with many rows of inputs.
pub(in crate::linear) struct Product<'a> {
    weights: Weights<'a>,
    x: Tiled,
    m: usize,
}

/// Scratch memory of one thread.
pub(in crate::linear) struct Scratch {
    weights: weights::Scratch,
    sums: Vec<[FloatSums; UNIT / PAIR]>,
    /// Those of the last [`FOLD`] columns.
    running: Vec<[FloatSums; UNIT / PAIR]>,
    /// Accumulators before scaling.
    products: [FloatSums; 2],
}

impl<'a> Product<'a> {
    /// Arranges inputs, but for rows of extreme magnitudes.
    ///
    /// # Safety
    /// The processor must have AVX-512 F and BW.
    pub(in crate::linear) unsafe fn new(weights: Weights<'a>, x: &Inputs<'_>, m: usize) -> Result<Self> {
        // SAFETY: as the caller promises.
        let x = unsafe { Tiled::new(x, m, weights.k, x.dtype)? };
        Ok(Self { weights, x, m })
    }

    /// The rows of inputs of extreme magnitudes, which are left to others.
    pub(in crate::linear) fn left(&self) -> impl Iterator<Item = usize> {
        (0..self.m).filter(|&row| !self.x.has(row))
    }

    /// Room for one thread's work.
    pub(in crate::linear) fn scratch(&self) -> Result<Scratch> {
        let passes = self.m.div_ceil(ROWS * self.x.across);
        Ok(Scratch {
            weights: self.weights.scratch()?,
            sums: zeroed(passes)?,
            running: zeroed(passes)?,
            products: [FloatSums::default(); 2],
        })
    }

    /// Calls `write` with each row of inputs but those [`Self::left`], and its products with [`UNIT`] rows of weights from
    /// `first` on, or as many as there are; false, with nothing written, where the magnitude of weights is extreme.
    ///
    /// # Errors
    /// Where memory is short.
    ///
    /// # Safety
    /// The processor must have AVX-512 F, BW, VL and VBMI and AMX; `scratch` must be made by [`Self::scratch`].
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi")]
    pub(in crate::linear) unsafe fn run(
        &self,
        session: &Session,
        first: usize,
        scratch: &mut Scratch,
        mut write: impl FnMut(usize, usize, &mut [f32]),
    ) -> Result<bool> {
        let Weights { n, k, limbs, each, .. } = self.weights;
        let count = UNIT.min(n - first);
        let Scratch { weights, sums, running, products } = scratch;
        // SAFETY: as the caller promises.
        let Some(factors) = (unsafe { self.weights.begin(first, count, weights)? }) else { return Ok(false) };
        sums.fill([FloatSums::default(); UNIT / PAIR]);
        let pieces = self.weights.pieces();
        let mut list = Vec::new();
        for start in (0..k).step_by(each) {
            let columns = start..k.min(start + each);
            let (steps, columns_end) = (columns.len().div_ceil(STEP), columns.end);
            let panel = steps * limbs * TILE;
            // SAFETY: as the caller promises.
            if !unsafe { self.weights.put(first, count, columns, weights) } {
                return Ok(false);
            }
            if list.len() != steps * limbs {
                list = self.steps(steps);
            }
            for (pass, (sums, running)) in sums.iter_mut().zip(&mut *running).enumerate() {
                let inputs = &self.x.lines[pass * self.x.pass + start / STEP * self.x.step..];
                let pairs = sums.iter_mut().zip(running).enumerate();
                for (pair, (sums, running)) in pairs.take(count.div_ceil(PAIR)) {
                    let factors = Factors {
                        steps: &list,
                        weights: weights.tiles.as_ptr().cast::<u8>().wrapping_add(2 * pair * panel),
                        panel,
                        inputs: inputs.as_ptr().cast(),
                        across: self.x.across,
                    };
                    // SAFETY: the steps name tiles of the weights just written and of the inputs of their columns.
                    unsafe {
                        match pieces {
                            Pieces::Plain(_) => {
                                session.add_products(&factors, start.is_multiple_of(FOLD), running);
                                if (start + each).is_multiple_of(FOLD) || columns_end == k {
                                    scale(running, &[1.0; PAIR], self.x.across, sums);
                                }
                            }
                            Pieces::Scaled { columns, group } => {
                                let all = &weights.groups.scales;
                                let scales = |at: usize| &all[(start / group + at) * UNIT + pair * PAIR..];
                                self.add_scaled(session, &factors, columns / STEP, scales, products, sums);
                            }
                        }
                    }
                }
            }
        }
        for (pass, sums) in sums.iter().enumerate() {
            for (panel, sums) in sums.as_flattened().iter().enumerate().take(count.div_ceil(ROWS)) {
                for (tile, sums) in sums.iter().enumerate().take(self.x.across) {
                    let row = (pass * self.x.across + tile) * ROWS;
                    let (start, many) = (panel * ROWS, ROWS.min(count - panel * ROWS));
                    // SAFETY: lines are aligned and hold sixteen values.
                    unsafe {
                        let mut values = [_mm512_setzero_ps(); ROWS];
                        for ((value, line), factor) in values.iter_mut().zip(sums).zip(&factors[start..]) {
                            *value = _mm512_mul_ps(_mm512_load_ps(line.0.as_ptr()), _mm512_set1_ps(*factor));
                        }
                        let values = transpose(values);
                        for (i, values) in values.iter().enumerate().take(self.m.saturating_sub(row)) {
                            if !self.x.has(row + i) {
                                continue;
                            }
                            let mut line = Line([0.0f32; 16]);
                            _mm512_store_ps(line.0.as_mut_ptr(), *values);
                            write(row + i, first + start, &mut line.0[..many]);
                        }
                    }
                }
            }
        }
        Ok(true)
    }

    /// Adds products of groups of `steps` steps, each times its scales.
    ///
    /// # Safety
    /// As for [`Session::add_products`]; the processor must have AVX-512 F.
    #[target_feature(enable = "avx512f")]
    unsafe fn add_scaled<'s>(
        &self,
        session: &Session,
        factors: &Factors<'_>,
        steps: usize,
        scales: impl Fn(usize) -> &'s [f32],
        products: &mut [FloatSums; 2],
        sums: &mut FloatSums,
    ) {
        // The previous accumulators are scaled while AMX multiplies the next.
        let groups = factors.steps.chunks(steps * self.weights.limbs);
        let last = groups.len() - 1;
        for (i, steps) in groups.enumerate() {
            // SAFETY: as the caller promises.
            unsafe { session.add_products(&Factors { steps, ..*factors }, true, &mut products[i % 2]) };
            if i > 0 {
                scale(&products[(i - 1) % 2], scales(i - 1), self.x.across, sums);
            }
        }
        scale(&products[last % 2], scales(last), self.x.across, sums);
    }

    /// Pairs of limbs that are multiplied: those whose indices add up to less than three.
    fn steps(&self, steps: usize) -> Vec<Step> {
        let limbs = self.weights.limbs;
        let all = (0..steps).flat_map(|step| (0..limbs).map(move |limb| (step, limb)));
        let list = all.map(|(step, limb)| Step {
            weights: (step * limbs + limb) * TILE,
            inputs: step * self.x.step * LINE,
            limbs: self.x.limbs.min(MOST - limb),
        });
        list.collect()
    }
}

/// Adds products to sums, each row of weights times its scale.
///
/// # Safety
/// The processor must have AVX-512 F.
#[target_feature(enable = "avx512f")]
fn scale(products: &FloatSums, scales: &[f32], across: usize, sums: &mut FloatSums) {
    for ((products, sums), scales) in products.iter().zip(sums).zip(scales[..PAIR].chunks(ROWS)) {
        for (products, sums) in products.iter().zip(sums).take(across) {
            for ((product, sum), scale) in products.iter().zip(sums).zip(scales) {
                // SAFETY: lines are aligned and hold sixteen values.
                unsafe {
                    let (product, old) = (_mm512_load_ps(product.0.as_ptr()), _mm512_load_ps(sum.0.as_ptr()));
                    _mm512_store_ps(sum.0.as_mut_ptr(), _mm512_fmadd_ps(product, _mm512_set1_ps(*scale), old));
                }
            }
        }
    }
}
