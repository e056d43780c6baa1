//! Sixteen lanes give the bits of the reference, for every format.

use super::*;
use crate::format::catalogue;

const ROWS_HERE: usize = 19;
const COLUMNS: usize = 48;

fn noise(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let step = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / 8_388_608.0 - 1.0
    };
    (0..count).map(step).collect()
}

/// Levels of this machine, the scalar one first.
fn levels() -> Vec<Level> {
    [Level::Scalar, Level::Avx2, Level::Avx512].into_iter().filter(|&level| level <= Level::detect()).collect()
}

/// Formats of the catalogue and others, with the groups that `COLUMNS` columns have.
fn formats() -> Vec<(Format, usize, usize)> {
    let extra = ["int4:g16", "uint3:g8", "binary3:channel", "e3m0", "bm6e3/16", "blog4/8", "fixed6", "ternary:channel"];
    let texts = catalogue().iter().map(|format| format.to_string()).chain(extra.map(String::from));
    let formats = texts.filter_map(|text| Format::parse(&text).ok());
    formats
        .map(|format| {
            let each = match format.granularity() {
                Granularity::Block(block) => block as usize,
                _ => COLUMNS,
            };
            (format, each, COLUMNS.div_ceil(each))
        })
        .collect()
}

#[test]
fn gptq_gives_the_bits_of_the_reference_at_every_level() {
    for (format, each, groups) in formats() {
        for choice in [Choice::Codec(ScaleRule::Floor), Choice::Fit, Choice::Given] {
            let mut first = None;
            for level in levels() {
                let (scales, zeros) = row_sizes(format, groups);
                let one = if format.scale_type() == Some(ScaleType::F32) { 1.0f32.to_bits() as u8 } else { 60 };
                let (mut scales, mut zeros) = (vec![one; ROWS_HERE * scales], vec![1; ROWS_HERE * zeros]);
                let mut values = noise(ROWS_HERE * COLUMNS, 1);
                let (mut errors, mut loss) = (values.clone(), vec![0.25; ROWS_HERE]);
                let groups_of: Vec<u32> = (0..COLUMNS).map(|k| (k / each) as u32).collect();
                let feedback: Vec<f32> = noise(COLUMNS * COLUMNS, 3).iter().map(|v| v * 0.1).collect();
                let weights: Vec<f32> = noise(COLUMNS, 5).iter().map(|v| 1.1 + v).collect();
                let block = Block {
                    values: &mut values,
                    errors: &mut errors,
                    feedback: &feedback,
                    weights: &weights,
                    groups: &groups_of,
                    loss: &mut loss,
                };
                let table = ScaleTable { scales: &mut scales, zeros: &mut zeros, tensor: 0.002 };
                gptq_at(level, format, choice, groups, block, table).unwrap();
                let bits = |x: &[f32]| x.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
                let result = (bits(&values), bits(&errors), loss, scales, zeros);
                let wanted = first.get_or_insert_with(|| result.clone());
                assert!(result == *wanted, "'{format}', {choice:?} at {level:?}");
            }
        }
    }
}

#[test]
fn fitted_scales_are_those_of_the_reference_at_every_level() {
    for (format, _, groups) in formats().into_iter().filter(|(format, ..)| format.scale_type().is_some()) {
        if format.granularity() == Granularity::Tensor {
            continue; // one row: the same arithmetic
        }
        for (power, weighted) in [(2.0, false), (2.0, true), (0.7, false), (1.3, true)] {
            let mut first = None;
            for level in levels() {
                let (scales, zeros) = row_sizes(format, groups);
                let (mut scales, mut zeros) = (vec![60u8; ROWS_HERE * scales], vec![1; ROWS_HERE * zeros]);
                let x = noise(ROWS_HERE * COLUMNS, 7);
                let weights: Vec<f32> = noise(COLUMNS, 9).iter().map(|v| 1.1 + v).collect();
                let weights = if weighted { &weights[..] } else { &[] };
                let table = ScaleTable { scales: &mut scales, zeros: &mut zeros, tensor: 0.002 };
                fit_at(level, format, &x, ROWS_HERE, weights, (power, 8), table).unwrap();
                let wanted = first.get_or_insert_with(|| (scales.clone(), zeros.clone()));
                assert!((scales, zeros) == *wanted, "'{format}', p = {power} at {level:?}");
            }
        }
    }
}
