//! What drop-out keeps, by row and column: a counter-based generator, so that nothing is stored.
//!
//! Source: Philox4x32-10 of Salmon, Moraes, Dror and Shaw, Parallel Random Numbers: As Easy as 1, 2, 3 (2011).

use crate::simd::Lanes;

/// Columns that sixteen counters have the words of: word `w` of counter `l` is that of column `16 w + l` of them.
pub(super) const GROUP: usize = 64;
const ROUNDS: usize = 10;
const FACTORS: [u32; 2] = [0xd251_1f53, 0xcd9e_8d57];
const STEPS: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];

/// The mask of a drop-out. Column `c` of row `r` has word `c % 64 / 16` of Philox4x32-10 with the key `seed` and the
/// counter `c / 64 * 16 + c % 16` below `r << 32`; it is kept where that word is the threshold or more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mask {
    /// The key, its low word first.
    pub seed: u64,
    /// The chance of a 0 times 2^32.
    pub threshold: u32,
}

impl Mask {
    /// The mask of a chance; none where it is 0. A chance is rounded to a multiple of 2^-32.
    pub fn new(seed: u64, chance: f64) -> Option<Self> {
        (chance > 0.0).then(|| Self { seed, threshold: (chance * 4_294_967_296.0).round_ties_even() as u32 })
    }

    /// Whether the number of a row and a column stays.
    pub fn keeps(&self, row: usize, column: usize) -> bool {
        let counter = column / GROUP * 16 + column % 16;
        let mut words = [counter as u32, row as u32, (row as u64 >> 32) as u32, 0];
        let mut keys = [self.seed as u32, (self.seed >> 32) as u32];
        for _ in 0..ROUNDS {
            let [even, odd] =
                [u64::from(words[0]) * u64::from(FACTORS[0]), u64::from(words[2]) * u64::from(FACTORS[1])];
            let upper = [(even >> 32) as u32, (odd >> 32) as u32];
            words = [upper[1] ^ words[1] ^ keys[0], odd as u32, upper[0] ^ words[3] ^ keys[1], even as u32];
            keys = [keys[0].wrapping_add(STEPS[0]), keys[1].wrapping_add(STEPS[1])];
        }
        words[column % GROUP / 16] >= self.threshold
    }

    /// The numbers of 64 columns that stay; the others are 0.
    ///
    /// # Safety
    /// The processor must have the features of `V`.
    #[inline(always)]
    pub(super) unsafe fn apply<V: Lanes>(&self, row: usize, group: usize, values: &mut [V::F; 4]) {
        let lanes: [f32; 16] = LANE_NUMBERS;
        // SAFETY: as the caller promises; the array holds 16 lanes.
        unsafe {
            let splat = |word: u32| V::splat_i(word.cast_signed());
            let factors = [splat(FACTORS[0]), splat(FACTORS[1])];
            let counter = V::add_i(V::bits(V::load(lanes.as_ptr())), splat(group as u32 * 16));
            let mut words = [counter, splat(row as u32), splat((row as u64 >> 32) as u32), splat(0)];
            let mut keys = [self.seed as u32, (self.seed >> 32) as u32];
            for _ in 0..ROUNDS {
                let (even_high, even_low) = V::mul_wide(words[0], factors[0]);
                let (odd_high, odd_low) = V::mul_wide(words[2], factors[1]);
                words = [
                    V::xor(V::xor(odd_high, words[1]), splat(keys[0])),
                    odd_low,
                    V::xor(V::xor(even_high, words[3]), splat(keys[1])),
                    even_low,
                ];
                keys = [keys[0].wrapping_add(STEPS[0]), keys[1].wrapping_add(STEPS[1])];
            }
            // Comparisons are signed: both sides move by half of the range.
            let (half, zero) = (splat(1 << 31), V::splat(0.0));
            let threshold = splat(self.threshold ^ 1 << 31);
            for (value, word) in values.iter_mut().zip(words) {
                *value = V::select(V::gt_i(threshold, V::xor(word, half)), zero, *value);
            }
        }
    }
}

/// The bits of 0 to 15, as lanes are loaded.
const LANE_NUMBERS: [f32; 16] = {
    let mut lanes = [0.0; 16];
    let mut lane = 0;
    while lane < 16 {
        lanes[lane] = f32::from_bits(lane as u32);
        lane += 1;
    }
    lanes
};
