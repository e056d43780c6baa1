//! Sixteen lanes give the bits of the reference, for every format; sums are those of plain loops.

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
    Level::available().collect()
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

/// `[rows, k]` times `[k, columns]`, each sum from `start`, term by term.
fn plain(start: f64, terms: impl Iterator<Item = (f32, f32)>) -> f64 {
    terms.fold(start, |sum, (a, b)| sum + f64::from(a) * f64::from(b))
}

/// Sizes beside those of tiles, panels, strips and blocks.
const SIZES: [usize; 9] = [1, 2, 15, 16, 17, 33, 64, 65, 270];

#[test]
fn outer_products_are_sums_in_the_order_of_rows_however_these_are_shared_out() {
    for k in SIZES {
        let rows = 700 / k + 3;
        let x = noise(rows * k, 7);
        let mut wanted = vec![0.0; k * k];
        for i in 0..k {
            for j in i..k {
                wanted[i * k + j] = plain(0.0, (0..rows).map(|row| (x[row * k + i], x[row * k + j])));
            }
        }
        for level in levels() {
            for each in [1, 2, 5, rows] {
                let mut got = vec![0.0; k * k];
                for x in x.chunks(each * k) {
                    wide_sums::add_at(level, x, k, &mut got).unwrap();
                }
                for i in 0..k {
                    assert_eq!(got[i * k + i..(i + 1) * k], wanted[i * k + i..(i + 1) * k], "{level:?}, {k}, {each}");
                }
            }
        }
    }
}

#[test]
fn a_factor_is_the_same_at_every_level_and_gives_its_matrix() {
    for k in SIZES {
        let x = noise((2 * k + 3) * k, 11);
        let mut h = vec![0.0; k * k];
        add_outer_products(&x, k, &mut h).unwrap();
        let mut first: Option<Vec<f64>> = None;
        for level in levels() {
            let mut u = h.clone();
            assert!(wide_sums::factor_at(level, &mut u, k).unwrap());
            for i in 0..k {
                for j in i..k {
                    let product: f64 = (0..=i).map(|row| u[row * k + i] * u[row * k + j]).sum();
                    assert!((product - h[i * k + j]).abs() < 1e-9 * (2 * k + 3) as f64, "{level:?}, {k}: {i}, {j}");
                }
            }
            let first = first.get_or_insert_with(|| u.clone());
            for i in 0..k {
                assert_eq!(u[i * k + i..(i + 1) * k], first[i * k + i..(i + 1) * k], "{level:?}, {k}, row {i}");
            }
        }
        for bad in [0.0, -1.0, f64::NAN] {
            let mut h = h.clone();
            h[k * k - 1] = bad;
            assert!(!factor(&mut h, k).unwrap());
        }
    }
}

#[test]
fn errors_are_fed_back_and_weighed_in_the_order_of_columns() {
    for k in SIZES {
        let rows = 19;
        let (errors, feedback, costs) = (noise(rows * k, 3), noise(k * k, 5), noise(k, 9));
        let fed = |row: usize, column: usize, depth: usize, start: f64| {
            plain(start, (0..depth).map(|i| (errors[row * k + i], feedback[i * k + column])))
        };
        for level in levels() {
            for start in [0, k / 3, k - 1] {
                let given = noise(rows * (k - start), 1);
                let mut values = given.clone();
                wide_sums::feed_at(level, &mut values, &errors, &feedback, (k, start)).unwrap();
                let at = |i: usize| (i / (k - start), start + i % (k - start));
                let wanted = given.iter().enumerate().map(|(i, &v)| fed(at(i).0, at(i).1, start, f64::from(v)) as f32);
                assert_eq!(values, wanted.collect::<Vec<_>>(), "{level:?}, {k}, {start}");
            }
            let mut loss = vec![7.0; rows];
            wide_sums::losses_at(level, &errors, &feedback, &costs, 0.5, &mut loss).unwrap();
            for (row, loss) in loss.into_iter().enumerate() {
                let weighed = (0..k).fold(0.0, |sum, column| {
                    let fed = fed(row, column, column + 1, 0.0);
                    sum + fed * fed * f64::from(costs[column])
                });
                assert_eq!(loss, weighed - 0.5 * wide_sums::squares(&errors[row * k..(row + 1) * k]), "{level:?}, {k}");
            }
        }
    }
}

#[test]
fn sums_refuse_lengths_that_do_not_fit() {
    assert!(add_outer_products(&[0.0; 5], 2, &mut [0.0; 4]).is_err());
    assert!(add_outer_products(&[0.0; 4], 2, &mut [0.0; 5]).is_err());
    assert!(add_outer_products(&[], 0, &mut []).is_ok());
    assert!(factor(&mut [1.0; 3], 2).is_err());
    assert!(feed_back(&mut [0.0; 4], &[0.0; 4], &[0.0; 4], 2, 1).is_err());
    assert!(losses(&[0.0; 4], &[0.0; 4], &[0.0; 2], 0.0, &mut [0.0; 3]).is_err());
    assert!(take_squares(&[0.0; 4], 2, 1.0, &mut [0.0; 3]).is_err());
}
