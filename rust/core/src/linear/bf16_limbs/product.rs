//! [`Product`]: weights decoded for each call, a unit of rows at a time.

use std::arch::x86_64::*;

use super::inputs::Tiled;
use super::weights::{self, Pieces, Weights, shared};
use super::{FOLD, MOST, PAIR, STEP, UNIT};
use crate::codec::zeroed;
use crate::error::Result;
use crate::linear::output::Inputs;
use crate::simd::Line;
use crate::simd::tiles::{Factors, FloatSums, LINE, ROWS, ScaledProducts, Session, Step, TILE, add_scaled};
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
    products: ScaledProducts,
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

    /// Arranges the codes of inputs that were encoded as `x`, but for rows of extreme scales and those that `skip` tells.
    ///
    /// # Safety
    /// The processor must have AVX-512 F, BW, VL and VBMI.
    pub(in crate::linear) unsafe fn encoded(
        weights: Weights<'a>,
        x: &Weights<'_>,
        skip: impl Fn(usize) -> bool,
    ) -> Result<Self> {
        // SAFETY: as the caller promises.
        Ok(Self { weights, x: unsafe { Tiled::encoded(x, skip)? }, m: x.n })
    }

    /// Columns whose products are scaled together before they are added up, if they are.
    fn scaled(&self) -> Option<usize> {
        let weights = match self.weights.pieces() {
            Pieces::Plain(_) => None,
            Pieces::Scaled { columns, .. } => Some(columns),
        };
        match (weights, self.x.group) {
            (None, None) => None,
            (columns, group) => Some(shared(columns.unwrap_or(self.weights.each), group.unwrap_or(0))),
        }
    }

    /// The rows of inputs of extreme magnitudes, which are left to others.
    pub(in crate::linear) fn left(&self) -> impl Iterator<Item = usize> + Clone {
        (0..self.m).filter(|&row| !self.x.has(row))
    }

    /// Rows of inputs, rows of weights, columns.
    pub(in crate::linear) const fn sizes(&self) -> (usize, usize, usize) {
        (self.m, self.weights.n, self.weights.k)
    }

    /// Room for one thread's work.
    pub(in crate::linear) fn scratch(&self) -> Result<Scratch> {
        let passes = self.m.div_ceil(ROWS * self.x.across);
        Ok(Scratch {
            weights: self.weights.scratch()?,
            sums: zeroed(passes)?,
            running: zeroed(passes)?,
            products: ScaledProducts::default(),
        })
    }

    /// Calls `write` with each row of inputs but those [`Self::left`], and its products with [`UNIT`] rows of weights from
    /// `first` on, or as many as there are; false, with nothing written, where the magnitude of weights is extreme.
    ///
    /// # Errors
    /// Where memory is short.
    ///
    /// # Safety
    /// The processor must have AVX-512 F, BW, VL and VBMI, and `session` be one for bfloat16; `scratch` must be made by [`Self::scratch`].
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
        let scaled = self.scaled();
        let group = if let Pieces::Scaled { group, .. } = self.weights.pieces() { Some(group) } else { None };
        // Of the pieces of some columns, the groups of weights and of inputs.
        let mut groups = Vec::new();
        let mut list = Vec::new();
        for start in (0..k).step_by(each) {
            let columns = start..k.min(start + each);
            let (steps, columns_end) = (columns.len().div_ceil(STEP), columns.end);
            let panel = steps * limbs * TILE;
            // SAFETY: as the caller promises.
            if !unsafe { self.weights.put(first, count, columns.clone(), weights) } {
                return Ok(false);
            }
            if list.len() != steps * limbs {
                list = self.steps(steps);
            }
            if let Some(each) = scaled {
                let of = |group: Option<usize>, column| group.map_or(0, |group| column / group);
                groups.clear();
                groups.extend(columns.step_by(each).map(|column| (of(group, column), of(self.x.group, column))));
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
                        match scaled {
                            None => {
                                session.add_products(&factors, start.is_multiple_of(FOLD), running);
                                if (start + each).is_multiple_of(FOLD) || columns_end == k {
                                    let one = [(&[1.0; PAIR], None)];
                                    add_scaled(std::array::from_ref(running), one, self.x.across, sums);
                                }
                            }
                            Some(columns) => {
                                let all = match group {
                                    Some(_) => weights.groups.scales.as_chunks::<PAIR>().0,
                                    None => &[],
                                };
                                let scales = |at: usize| {
                                    let (of_weights, of_inputs) = groups[at];
                                    let of_weights = all.get(of_weights * (UNIT / PAIR) + pair);
                                    (of_weights.unwrap_or(&[1.0; PAIR]), self.x.scales(pass, of_inputs))
                                };
                                session.add_scaled(&factors, columns / STEP * limbs, scales, products, sums);
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
                        for (i, &(mut values)) in values.iter().enumerate().take(self.m.saturating_sub(row)) {
                            if !self.x.has(row + i) {
                                continue;
                            }
                            if let Some(factor) = self.x.factors.get(row + i) {
                                values = _mm512_mul_ps(values, _mm512_set1_ps(*factor));
                            }
                            let mut line = Line([0.0f32; 16]);
                            _mm512_store_ps(line.0.as_mut_ptr(), values);
                            write(row + i, first + start, &mut line.0[..many]);
                        }
                    }
                }
            }
        }
        Ok(true)
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
