//! Bits of the reference, at every level; the known words of the generator.

use super::*;
use crate::codec::DType;

fn numbers(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state >> 8
    };
    (0..count).map(|_| (next() as f32 / 8_388_608.0 - 1.0) * 2f32.powi((next() % 8) as i32 - 4)).collect()
}

/// Numbers of a dtype.
#[derive(Clone, Debug, PartialEq)]
enum Held {
    Single(Vec<f32>),
    Half(Vec<u16>),
    Brain(Vec<u16>),
}

impl Held {
    fn new(numbers: &[f32], dtype: DType) -> Self {
        match dtype {
            DType::F32 => Self::Single(numbers.to_vec()),
            DType::F16 => Self::Half(numbers.iter().map(|&v| half::f16::from_f32(v).to_bits()).collect()),
            DType::BF16 => Self::Brain(numbers.iter().map(|&v| half::bf16::from_f32(v).to_bits()).collect()),
        }
    }

    fn read(&self) -> Values<'_> {
        match self {
            Self::Single(x) => Values::F32(x),
            Self::Half(x) => Values::F16(x),
            Self::Brain(x) => Values::BF16(x),
        }
    }

    fn write(&mut self) -> ValuesMut<'_> {
        match self {
            Self::Single(x) => ValuesMut::F32(x),
            Self::Half(x) => ValuesMut::F16(x),
            Self::Brain(x) => ValuesMut::BF16(x),
        }
    }

    fn wide(&self) -> Vec<f32> {
        reference::wide(self.read())
    }
}

/// Compares a call with the reference, with gains or without them.
fn compare(rows: usize, width: usize, dtypes: [DType; 3], chance: f64, with_gain: bool) {
    let [of_x, of_branch, of_stream] = dtypes;
    let (x, branch) = (numbers(rows * width, 1), numbers(rows * width, 2));
    let (x, branch) = (Held::new(&x, of_x), Held::new(&branch, of_branch));
    let gain = numbers(width, 3);
    let gain = with_gain.then_some(&gain[..]);
    let mask = Mask::new(0x0123_4567_89ab_cdef, chance);
    let settings = Settings { weight: (0.3 / (1.0 - chance)) as f32, mask, epsilon: 1e-6 };
    let round = |v: f32| Held::new(&[v], of_stream).wide()[0];
    let wanted = reference::forward(&x.wide(), &branch.wide(), gain, width, &settings, round);
    let incoming = [4, 5].map(|seed| Held::new(&numbers(rows * width, seed), of_stream));
    let slopes = reference::backward(&incoming[0].wide(), &incoming[1].wide(), &wanted, gain, width, &settings);
    let mut gains = vec![0.0f32; gain.map_or(0, <[f32]>::len)];
    for piece in slopes.gains.chunks(PIECE * width) {
        let mut sums = vec![0.0f32; gains.len()];
        piece.chunks(width).for_each(|row| sums.iter_mut().zip(row).for_each(|(sum, v)| *sum += v));
        gains.iter_mut().zip(sums).for_each(|(all, sum)| *all += sum);
    }
    let empty = |dtype| Held::new(&vec![7.0; rows * width], dtype);
    for level in Level::available() {
        let (mut stream, mut normed, mut rates) = (empty(of_stream), empty(of_stream), vec![7.0; rows]);
        let results = Results { stream: stream.write(), normed: normed.write(), rates: &mut rates };
        forward_at(x.read(), branch.read(), gain, width, settings, results, level).expect("lengths");
        let label = format!("{rows} x {width}, {dtypes:?}, {chance}, {level:?}");
        assert_eq!(stream.wide(), wanted.stream, "stream: {label}");
        assert_eq!(rates, wanted.rates, "rates: {label}");
        assert_eq!(normed.wide(), wanted.normed, "normed: {label}");

        let (mut by_x, mut by_branch, mut by_gain) = (empty(of_x), empty(of_branch), vec![7.0; gains.len()]);
        let read = Given {
            of_stream: incoming[0].read(),
            of_normed: incoming[1].read(),
            stream: stream.read(),
            rates: &rates,
        };
        let written = Gradients { x: by_x.write(), branch: by_branch.write(), gain: &mut by_gain };
        backward_at(read, gain, width, settings, written, level).expect("lengths");
        assert_eq!(by_x, Held::new(&slopes.x, of_x), "gradient of x: {label}");
        // 0 of either sign is 0.
        assert_eq!(by_branch.wide(), Held::new(&slopes.branch, of_branch).wide(), "gradient of branch: {label}");
        assert_eq!(by_gain, gains, "gradient of gain: {label}");
    }
}

#[test]
fn rows_have_the_bits_of_the_reference() {
    use DType::{BF16, F16, F32};
    for dtypes in [[F32; 3], [BF16; 3], [F16; 3], [F32, BF16, F32], [BF16, F32, F32], [F16, BF16, F32]] {
        for (rows, width) in [(1, 1), (1, 64), (3, 63), (2, 65), (33, 100), (17, 768)] {
            for (chance, with_gain) in [(0.0, true), (0.1, false), (0.5, true), (0.999_999, true)] {
                compare(rows, width, dtypes, chance, with_gain);
            }
        }
    }
}

#[test]
fn large_calls_use_every_thread_and_keep_their_bits() {
    compare(300, 130, [DType::F32; 3], 0.25, true);
}

#[test]
fn no_rows_are_no_work() {
    compare(0, 5, [DType::F32; 3], 0.25, true);
}

#[test]
fn the_generator_is_that_of_its_authors() {
    // From the test vectors of the authors' library: counter and key 0, and all bits set.
    let words = [0x6627_e8d5u32, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8];
    for (i, word) in words.into_iter().enumerate() {
        for (threshold, stays) in [(word, true), (word + 1, false)] {
            assert_eq!(Mask { seed: 0, threshold }.keeps(0, 16 * i), stays);
        }
    }
}

#[test]
fn as_many_stay_as_are_asked_for() {
    for chance in [0.1, 0.5, 0.9] {
        let mask = Mask::new(42, chance).expect("a mask");
        let (rows, width) = (500, 200);
        let stays = (0..rows * width).filter(|i| mask.keeps(i / width, i % width)).count() as f64;
        let all = (rows * width) as f64;
        let spread = (all * chance * (1.0 - chance)).sqrt();
        assert!((stays - all * (1.0 - chance)).abs() < 4.0 * spread, "{stays} of {all} at {chance}");
    }
}

#[test]
fn lengths_that_do_not_fit_are_refused() {
    let (x, mut out) = ([0.0f32; 6], [[0.0f32; 6]; 2]);
    let [stream, normed] = &mut out;
    let settings = Settings { weight: 1.0, mask: None, epsilon: 0.0 };
    for (width, rows, gains) in [(3, 3, 3), (0, 0, 0), (3, 2, 2)] {
        let (mut rates, gain) = (vec![0.0; rows], vec![1.0; gains]);
        let results = Results { stream: ValuesMut::F32(stream), normed: ValuesMut::F32(normed), rates: &mut rates };
        let outcome = forward(Values::F32(&x), Values::F32(&x), Some(&gain), width, settings, results);
        assert!(matches!(outcome, Err(Error::Shape(_))), "{outcome:?}");
    }
}
