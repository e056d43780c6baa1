//! Generation against a scalar reference in float64 that rounds where the kernels say they do.
//!
//! Sums have an order of their own on the device, and what is rounded to bfloat16 behind them may fall on the other side:
//! so states are compared within a tolerance, and tokens are those of the reference, fed with the same tokens, up to one.

use half::bf16;
use octavo_cuda::seq2seq::{Device, Encoded, Generation, Sizes, Weights};

use crate::emulator::{Memory, available, emulate};
use crate::linear::normal;

/// Of states and logits, which are of the order of 1.
const TOLERANCE: f64 = 0.03;
const START: usize = 1;
const END: usize = 2;
const EPSILON: f32 = 1e-5;

fn rounded(v: f64) -> f64 {
    bf16::from_f32(v as f32).to_f64()
}

fn halves(values: &[f64]) -> Vec<u8> {
    values.iter().flat_map(|&v| bf16::from_f64(v).to_le_bytes()).collect()
}

fn singles(values: &[f64]) -> Vec<u8> {
    values.iter().flat_map(|&v| (v as f32).to_le_bytes()).collect()
}

/// Random numbers that bfloat16 holds.
fn random(count: usize, size: f64, seed: u64) -> Vec<f64> {
    normal(count, seed).iter().map(|&v| rounded(f64::from(v) * size)).collect()
}

/// A matrix by rows.
struct Matrix {
    columns: usize,
    values: Vec<f64>,
}

impl Matrix {
    fn random(rows: usize, columns: usize, seed: u64) -> Self {
        Self { columns, values: random(rows * columns, 1.5 / (columns as f64).sqrt(), seed) }
    }

    fn times(&self, x: &[f64]) -> Vec<f64> {
        self.values.chunks(self.columns).map(|row| row.iter().zip(x).map(|(w, x)| w * x).sum()).collect()
    }

    /// As the kernels read it.
    fn fragments(&self) -> Vec<u8> {
        let (tiles, runs) = (self.values.len() / self.columns / 8, self.columns / 32);
        let mut found = Vec::new();
        for i in 0..tiles * runs * 256 {
            let (pair, word, lane, run, tile) = (i % 2, i / 2 % 4, i / 8 % 32, i / 256 % runs, i / 256 / runs);
            let k = 32 * run + 16 * (word / 2) + 8 * (word % 2) + 2 * (lane % 4) + pair;
            found.push(self.values[(8 * tile + lane / 4) * self.columns + k]);
        }
        halves(&found)
    }
}

/// One step of an LSTM; rows of `matrix` are ordered by 8 units, then gate, and numbers of a table's row by gate.
fn lstm(matrix: &Matrix, table: &[f64], token: usize, hidden: &mut [f64], cells: &mut [f64]) -> Vec<f64> {
    let units = cells.len();
    let products = matrix.times(hidden);
    let sigmoid = |v: f64| 1.0 / (1.0 + (-v).exp());
    let gate = |unit: usize, gate: usize| {
        products[unit / 8 * 32 + gate * 8 + unit % 8] + table[(4 * token + gate) * units + unit]
    };
    let mut exact = vec![0.0; units];
    for unit in 0..units {
        let (enter, forget, leave) = (sigmoid(gate(unit, 0)), sigmoid(gate(unit, 1)), sigmoid(gate(unit, 2)));
        cells[unit] = forget * cells[unit] + enter * gate(unit, 3).tanh();
        exact[unit] = leave * cells[unit].tanh();
    }
    for (to, from) in hidden.iter_mut().zip(&exact) {
        *to = rounded(*from);
    }
    exact
}

fn normalized(x: &[f64]) -> Vec<f64> {
    let count = x.len() as f64;
    let mean = x.iter().sum::<f64>() / count;
    let variance = x.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / count;
    x.iter().map(|v| rounded((v - mean) / (variance + f64::from(EPSILON)).sqrt())).collect()
}

/// Mixed values of all heads; scores are powers of two.
fn attend(query: &[f64], keys: &[&[f64]], values: &[&[f64]], heads: usize) -> Vec<f64> {
    let width = query.len() / heads;
    let mut mixed = Vec::new();
    for column in 0..query.len() {
        let head = column / width * width..(column / width + 1) * width;
        let score = |key: &&[f64]| query[head.clone()].iter().zip(&key[head.clone()]).map(|(q, k)| q * k).sum::<f64>();
        let weights: Vec<f64> = keys.iter().map(|key| score(key).exp2()).collect();
        let sum: f64 = weights.iter().zip(values).map(|(weight, value)| weight * value[column]).sum();
        mixed.push(rounded(sum / weights.iter().sum::<f64>()));
    }
    mixed
}

struct Decoder {
    sizes: Sizes,
    matrices: Vec<Matrix>,
    /// The table, then a bias for each matrix but the first.
    vectors: Vec<Vec<f64>>,
}

impl Decoder {
    fn random(sizes: Sizes) -> Self {
        let Sizes { vocabulary, hidden, layers, feedforward, .. } = sizes;
        let mut shapes = vec![(4 * hidden, hidden), (3 * hidden, hidden), (hidden, hidden)];
        for _ in 0..layers {
            shapes.extend([(hidden, hidden), (hidden, hidden), (feedforward, hidden), (hidden, feedforward)]);
        }
        shapes.push((vocabulary.next_multiple_of(8), hidden));
        let matrices = (0..).zip(&shapes).map(|(seed, &(rows, columns))| Matrix::random(rows, columns, 100 + seed));
        let matrices = matrices.collect();
        let mut vectors = vec![random(4 * vocabulary * hidden, 1.0, 50)];
        vectors.extend((0..).zip(&shapes[1..]).map(|(seed, &(rows, _))| random(rows, 0.3, 200 + seed)));
        vectors[1].truncate(hidden); // keys and values have none
        let logits = vectors.last_mut().unwrap();
        logits[..END].fill(-1e30);
        logits[END] += 1.5;
        Self { sizes, matrices, vectors }
    }

    /// Logits after each of `tokens`.
    fn logits(&self, tokens: &[usize], memory: &[f64], bridged: &[f64], length: usize) -> Vec<Vec<f64>> {
        let Sizes { vocabulary, hidden: width, heads, layers, .. } = self.sizes;
        let linear = |which: usize, x: &[f64]| -> Vec<f64> {
            let bias = self.vectors[which].iter().chain(std::iter::repeat(&0.0));
            self.matrices[which].times(x).iter().zip(bias).map(|(v, b)| v + b).collect()
        };
        let add = |x: &mut Vec<f64>, more: Vec<f64>| x.iter_mut().zip(more).for_each(|(x, more)| *x += more);
        let round = |v: Vec<f64>| v.into_iter().map(rounded).collect::<Vec<f64>>();
        let mut hidden: Vec<f64> = bridged[..width].iter().map(|v| rounded(v.tanh())).collect();
        let mut cells = bridged[width..].to_vec();
        let mut own: Vec<Vec<f64>> = Vec::new();
        let mut found = Vec::new();
        for &token in tokens {
            let mut x = lstm(&self.matrices[0], &self.vectors[0], token, &mut hidden, &mut cells);
            own.push(round(linear(1, &normalized(&x))));
            let query = &own[own.len() - 1][..width];
            let keys: Vec<&[f64]> = own.iter().map(|all| &all[width..2 * width]).collect();
            let values: Vec<&[f64]> = own.iter().map(|all| &all[2 * width..]).collect();
            let mixed = attend(query, &keys, &values, heads);
            add(&mut x, linear(2, &mixed));
            for layer in 0..layers {
                let which = 3 + 4 * layer;
                let part = |kind: usize| -> Vec<&[f64]> {
                    let at = |position: usize| ((position * layers + layer) * 2 + kind) * width;
                    (0..length).map(|position| &memory[at(position)..at(position) + width]).collect()
                };
                let query = round(linear(which, &normalized(&x)));
                add(&mut x, linear(which + 1, &attend(&query, &part(0), &part(1), heads)));
                let inner =
                    linear(which + 2, &normalized(&x)).into_iter().map(|v| rounded(v.max(0.0))).collect::<Vec<_>>();
                add(&mut x, linear(which + 3, &inner));
            }
            found.push(linear(3 + 4 * layers, &normalized(&x))[..vocabulary].to_vec());
        }
        found
    }
}

/// Sources of all lengths, none among them.
fn sources(rows: usize, sizes: &Sizes) -> (Vec<u8>, Vec<usize>) {
    let lengths: Vec<usize> = (0..rows).map(|row| (row * 7 + 1) % (sizes.max_source + 1)).collect();
    let token =
        |row: usize, at: usize| if at < lengths[row] { 3 + (row * 31 + at * 17) % (sizes.vocabulary - 3) } else { 0 };
    let all = (0..rows).flat_map(|row| (0..sizes.max_source).map(move |at| (row, at)));
    (all.map(|(row, at)| token(row, at) as u8).collect(), lengths)
}

/// Sizes, rows, and whether a block takes 32 of them.
pub(crate) type Case = (Sizes, usize, bool);

pub(crate) fn cases() -> [Case; 4] {
    let sizes = |[vocabulary, encoder, hidden, heads, layers, feedforward, max_source, max_target]: [usize; 8]| Sizes {
        vocabulary,
        encoder,
        hidden,
        heads,
        layers,
        feedforward,
        max_source,
        max_target,
    };
    [
        (sizes([31, 32, 32, 4, 1, 32, 9, 7]), 5, false),
        (sizes([200, 64, 64, 2, 2, 96, 37, 6]), 37, true),
        (sizes([31, 64, 128, 4, 2, 256, 32, 20]), 16, false),
        (sizes([9, 32, 256, 8, 1, 64, 3, 9]), 19, true),
    ]
}

fn generation(sizes: Sizes, rows: usize, wide: bool) -> Generation {
    let multiprocessors = if wide { 1 } else { rows };
    Generation::new(sizes, rows, Device { multiprocessors, shared: 227 << 10 }).unwrap()
}

/// Checks the states of one case.
pub(crate) fn check_states((sizes, rows, wide): Case, mut memory: Memory) {
    let made = generation(sizes, rows, wide);
    let (units, vocabulary) = (sizes.encoder, sizes.vocabulary);
    let matrices = [1, 2].map(|seed| Matrix::random(4 * units, units, seed));
    let tables = [3, 4].map(|seed| random(4 * vocabulary * units, 1.0, seed));
    let (source, lengths) = sources(rows, &sizes);
    let weights = Weights {
        matrices: memory.add(&matrices.each_ref().map(Matrix::fragments).concat(), 0),
        vectors: memory.add(&singles(&tables.concat()), 0),
    };
    let at = memory.add(&source, 1);
    let states = memory.add(&vec![0xff; rows * sizes.max_source * 4 * units], 0);
    let ends = memory.add(&vec![0xff; rows * 4 * units], 0);
    emulate(&[made.encode(weights, at, states, ends).unwrap()], &mut memory);
    assert_eq!(memory.conflicts, 0, "rows of matrices share banks");
    let read = |address: u64| -> Vec<f64> {
        memory.bytes(address).as_chunks().0.iter().map(|b| bf16::from_le_bytes(*b).to_f64()).collect()
    };
    let (states, ends) = (read(states), read(ends));
    for row in 0..rows {
        let tokens = &source[row * sizes.max_source..][..lengths[row]];
        for direction in 0..2 {
            let (mut hidden, mut cells) = (vec![0.0; units], vec![0.0; units]);
            for step in 0..lengths[row] {
                let position = if direction == 0 { step } else { lengths[row] - 1 - step };
                let (matrix, table) = (&matrices[direction], &tables[direction]);
                lstm(matrix, table, tokens[position].into(), &mut hidden, &mut cells);
                let own = &states[((row * sizes.max_source + position) * 2 + direction) * units..][..units];
                let last = &ends[(2 * row + direction) * units..][..units];
                for (wanted, (state, last)) in hidden.iter().zip(own.iter().zip(last)) {
                    assert!((wanted - state).abs() <= TOLERANCE, "row {row}, position {position}: {state}, {wanted}");
                    assert!(step + 1 < lengths[row] || last == state);
                }
            }
        }
        let behind =
            &states[(row * sizes.max_source + lengths[row]) * 2 * units..(row + 1) * sizes.max_source * 2 * units];
        assert!(behind.iter().all(|v| v.is_nan()), "what lies behind row {row} is not written");
    }
}

/// Checks the tokens of one case; returns how many are the very likeliest, how many there are, and rows that ended.
pub(crate) fn check_tokens((sizes, rows, wide): Case, mut memory: Memory) -> (u32, u32, u32) {
    let (mut alike, mut all, mut ended) = (0, 0, 0);
    let made = generation(sizes, rows, wide);
    let decoder = Decoder::random(sizes);
    let (source, lengths) = sources(rows, &sizes);
    let (each, width) = (sizes.max_source * sizes.layers * 2 * sizes.hidden, 2 * sizes.hidden);
    let mut kept = random(rows * each, 1.0, 7);
    for (row, &length) in lengths.iter().enumerate() {
        kept[row * each + length * each / sizes.max_source..(row + 1) * each].fill(f64::NAN);
    }
    let bridged = random(rows * width, 1.0, 8);
    memory.backwards = wide;
    let matrices: Vec<u8> = decoder.matrices.iter().flat_map(Matrix::fragments).collect();
    let weights =
        Weights { matrices: memory.add(&matrices, 0), vectors: memory.add(&singles(&decoder.vectors.concat()), 0) };
    let encoded = Encoded {
        source: memory.add(&source, 1),
        memory: memory.add(&halves(&kept), 0),
        bridged: memory.add(&halves(&bridged), 0),
    };
    let scratch = memory.add(&vec![0xff; made.scratch()], 0);
    let out = memory.add(&vec![0xff; rows * sizes.max_target], 1);
    emulate(&[made.decode(weights, encoded, scratch, out, EPSILON).unwrap()], &mut memory);
    assert_eq!(memory.conflicts, 0, "rows of matrices share banks");
    for row in 0..rows {
        let found = &memory.bytes(out)[row * sizes.max_target..][..sizes.max_target];
        let end = found.iter().position(|&token| usize::from(token) == END);
        let steps = if lengths[row] == 0 { 0 } else { end.map_or(sizes.max_target, |at| at + 1) };
        assert!(found[steps..].iter().all(|&token| token == 0), "row {row}: {found:?}");
        let tokens: Vec<usize> = std::iter::once(START).chain(found[..steps].iter().map(|&t| t.into())).collect();
        let (own, bridged) = (&kept[row * each..][..each], &bridged[row * width..][..width]);
        let logits = decoder.logits(&tokens[..steps], own, bridged, lengths[row]);
        for (step, (logits, &token)) in logits.iter().zip(&tokens[1..]).enumerate() {
            let most = logits.iter().copied().fold(f64::MIN, f64::max);
            assert!(logits[token] >= most - TOLERANCE, "{sizes:?}, row {row}, step {step}: {token}, {logits:?}");
            (alike, all) = (alike + u32::from(logits[token] == most), all + 1);
        }
        ended += u32::from(end.is_some());
    }
    (alike, all, ended)
}

#[test]
fn states_are_those_of_two_lstms() {
    if available() {
        cases().into_iter().for_each(|case| check_states(case, Memory::default()));
    }
}

#[test]
fn tokens_are_the_likeliest() {
    if !available() {
        return;
    }
    let counts = cases().map(|case| check_tokens(case, Memory::default()));
    let (alike, all, ended) = counts.into_iter().fold((0, 0, 0), |a, b| (a.0 + b.0, a.1 + b.1, a.2 + b.2));
    assert!(100 * alike >= 99 * all && all > 300 && ended > 10, "{alike} of {all}, {ended} rows ended");
}
