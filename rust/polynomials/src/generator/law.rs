//! From a seed and a number to a line: the law of the module's head, in integers.

use super::{Factors, Function, LETTERS, Linear};

/// The odd constant of SplitMix64, 2^64 divided by the golden ratio.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The output function of SplitMix64 (Steele, Lea and Flood 2014): a bijection under which near inputs give unrelated words.
const fn mix(word: u64) -> u64 {
    let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

/// The word of line `index` of the stream `seed`: element `index` of a SplitMix64 sequence that starts at the mixed seed.
pub(super) const fn word(seed: u64, index: u64) -> u64 {
    mix(mix(seed.wrapping_add(GOLDEN)).wrapping_add(index.wrapping_mul(GOLDEN)))
}

/// The word of the next attempt at the same line.
pub(super) const fn next_word(word: u64) -> u64 {
    mix(word.wrapping_add(GOLDEN))
}

/// A word read as a fraction in [0, 1) and taken apart digit by digit, each to a base of its own.
struct Digits(u64);

impl Digits {
    /// A digit below `base`. All bases of a line multiply to 2^40.1, so that no combination is more likely than another by
    /// more than one part in 2^23.
    const fn below(&mut self, base: u64) -> u64 {
        let product = self.0 as u128 * base as u128;
        self.0 = product as u64;
        (product >> 64) as u64
    }
    /// 1 in a fifth of all cases, else one of the 17 coefficients.
    const fn a(&mut self) -> i8 {
        match self.below(5 * 17) {
            0..17 => 1,
            // -9..=-1, then 1..=8
            digit => (digit % 17) as i8 - if digit % 17 < 9 { 9 } else { 8 },
        }
    }
    /// 0 in a fifth of all cases, else one of the 63 constants.
    const fn b(&mut self) -> i8 {
        match self.below(5 * 63) {
            0..63 => 0,
            // -32..=-1, then 1..=31
            digit => (digit % 63) as i8 - if digit % 63 < 32 { 32 } else { 31 },
        }
    }
}

/// The line that a word stands for.
pub(super) fn draw(word: u64) -> Factors {
    let mut digits = Digits(word);
    let letter = LETTERS[digits.below(16) as usize];
    let function = Function::ALL.get(digits.below(100) as usize).copied();
    let one = Linear { a: digits.a(), b: digits.b() };
    let other = Linear { a: digits.a(), b: digits.b() };
    Factors::canonical(function, letter, one, other)
}
