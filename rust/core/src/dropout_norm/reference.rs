//! The definition, number by number, in the order of sums of the fast path. Tests compare bits with it.

use super::Settings;
use crate::codec::Values;
use crate::float::{LANES, tree_sum};

/// Streams, normed rows and the reciprocal roots of rows, as float32.
pub(super) struct Results {
    pub(super) stream: Vec<f32>,
    pub(super) normed: Vec<f32>,
    pub(super) rates: Vec<f32>,
}

/// Gradients as float32, those of the gains row by row.
pub(super) struct Gradients {
    pub(super) x: Vec<f32>,
    pub(super) branch: Vec<f32>,
    pub(super) gains: Vec<f32>,
}

/// Numbers as float32.
pub(super) fn wide(values: Values<'_>) -> Vec<f32> {
    match values {
        Values::F32(x) => x.to_vec(),
        Values::F16(x) => x.iter().map(|&bits| half::f16::from_bits(bits).to_f32()).collect(),
        Values::BF16(x) => x.iter().map(|&bits| half::bf16::from_bits(bits).to_f32()).collect(),
    }
}

/// Sum of a row: column `c` is added to sum `c % 64`, whose four vectors of 16 are added in pairs, then as a tree.
fn sum(terms: impl Iterator<Item = (f32, f32)>) -> f32 {
    let mut sums = [[0.0f32; LANES]; 4];
    for (column, (a, b)) in terms.enumerate() {
        let sum = &mut sums[column % 64 / LANES][column % LANES];
        *sum = a.mul_add(b, *sum);
    }
    tree_sum(std::array::from_fn(|i| (sums[0][i] + sums[1][i]) + (sums[2][i] + sums[3][i])))
}

fn masked(settings: &Settings, row: usize, column: usize, value: f32) -> f32 {
    if settings.mask.is_none_or(|mask| mask.keeps(row, column)) { value } else { 0.0 }
}

/// `round`: what float32 becomes in the dtype of the stream.
pub(super) fn forward(
    x: &[f32],
    branch: &[f32],
    gain: Option<&[f32]>,
    width: usize,
    settings: &Settings,
    round: impl Fn(f32) -> f32,
) -> Results {
    let mut results = Results { stream: Vec::new(), normed: Vec::new(), rates: Vec::new() };
    for (row, (x, branch)) in x.chunks(width).zip(branch.chunks(width)).enumerate() {
        let one = |(column, (&x, &b))| round(settings.weight.mul_add(masked(settings, row, column, b), x));
        let stream: Vec<f32> = x.iter().zip(branch).enumerate().map(one).collect();
        let squares = sum(stream.iter().map(|&s| (s, s)));
        let rate = 1.0 / (squares / width as f32 + settings.epsilon).sqrt();
        let normed = stream.iter().enumerate().map(|(i, s)| round(s * rate * gain.map_or(1.0, |gain| gain[i])));
        results.normed.extend(normed);
        results.stream.extend(stream);
        results.rates.push(rate);
    }
    results
}

/// `of_stream`, `of_normed`: gradients of the two results.
pub(super) fn backward(
    of_stream: &[f32],
    of_normed: &[f32],
    results: &Results,
    gain: Option<&[f32]>,
    width: usize,
    settings: &Settings,
) -> Gradients {
    let mut gradients = Gradients { x: Vec::new(), branch: Vec::new(), gains: Vec::new() };
    for (row, &rate) in results.rates.iter().enumerate() {
        let own = row * width..(row + 1) * width;
        let unit: Vec<f32> = results.stream[own.clone()].iter().map(|s| s * rate).collect();
        let of_normed = &of_normed[own.clone()];
        let of_unit: Vec<f32> =
            of_normed.iter().enumerate().map(|(i, g)| g * gain.map_or(1.0, |gain| gain[i])).collect();
        let inner = sum(of_unit.iter().copied().zip(unit.iter().copied())) / width as f32;
        for (column, &of_stream) in of_stream[own].iter().enumerate() {
            let of_row = (-unit[column]).mul_add(inner, of_unit[column]).mul_add(rate, of_stream);
            gradients.x.push(of_row);
            gradients.branch.push(masked(settings, row, column, of_row * settings.weight));
            gradients.gains.push(of_normed[column] * unit[column]);
        }
    }
    gradients
}
