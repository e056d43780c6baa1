//! Products for many rows of inputs in tiles, by AMX or by the dot products of AVX-512: weights and inputs as sums of bfloat16 limbs.
//!
//! A float32 is the sum of three bfloat16 limbs: its upper eight significant bits, the next eight, the last eight. Decoded
//! weights have one limb where code and scale have up to eight significant bits together, two up to sixteen, otherwise
//! three. Inputs of dtype bfloat16 have one limb, float16 two, float32 three. Products of limbs below the 24th bit are left
//! out. Accumulators are float32, columns are added in order, and subnormal numbers count as zero.
//!
//! [`Product`] makes the limbs of inputs once, and those of weights as they are needed; [`PreparedTiles`], on AMX, holds the limbs of
//! weights, from one call to the next or for a piece of one, and makes those of inputs. Both give the same bits.

mod inputs;
mod prepared;
mod product;
mod run;
mod weights;

use std::arch::x86_64::*;
use std::ops::Range;

use crate::simd::tiles::ROWS;

pub(in crate::linear) use prepared::{InputView, PREPARATION, PreparedTiles};
pub(super) use product::Product;
pub(super) use run::is_cheap;
pub(in crate::linear) use run::{run, run_codes, takes_amx, takes_avx512, takes_codes};
use weights::multiplications;

/// Rows of weights that are multiplied at a time: two panels.
const PAIR: usize = 2 * ROWS;
/// Rows of weights in one unit of work: they share tiles of inputs in the L1 cache.
pub(super) const UNIT: usize = PAIR;
/// Columns of a tile.
pub(super) const STEP: usize = 32;
/// Columns after which accumulators are added to a total and restart, to bound the rounding error of long rows.
const FOLD: usize = 512;
/// Columns of a row whose absmax is checked together.
const CHUNK: usize = 256;

/// True where the largest magnitude of each [`CHUNK`] is zero or inside the bounds.
///
/// # Safety
/// The processor must have AVX-512 F.
#[target_feature(enable = "avx512f")]
unsafe fn inside(row: &[f32], bounds: &Range<u32>) -> bool {
    let magnitude = _mm512_set1_epi32(0x7fff_ffff);
    for chunk in row.chunks(CHUNK) {
        let (vectors, rest) = chunk.as_chunks::<16>();
        let mut most = _mm512_setzero_si512();
        for v in vectors {
            // SAFETY: every vector is read whole.
            let bits = unsafe { _mm512_loadu_si512(v.as_ptr().cast()) };
            most = _mm512_max_epu32(most, _mm512_and_si512(bits, magnitude));
        }
        let most = rest.iter().fold(_mm512_reduce_max_epu32(most), |most, v| most.max(v.to_bits() & 0x7fff_ffff));
        if most != 0 && !bounds.contains(&most) {
            return false;
        }
    }
    true
}

/// The upper halves of 32 values.
///
/// # Safety
/// The processor must have AVX-512 F and BW.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn upper_halves(low: __m512, high: __m512) -> __m512i {
    let low = _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(_mm512_castps_si512(low)));
    let high = _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(_mm512_castps_si512(high)));
    _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
}

/// Values cut to what a bfloat16 holds.
///
/// # Safety
/// The processor must have AVX-512 F.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn upper(v: __m512) -> __m512 {
    _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(0xffff_0000_u32.cast_signed())))
}
