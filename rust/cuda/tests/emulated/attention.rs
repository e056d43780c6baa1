//! Attention over pages against float64: odd lengths, empty and full pages, groups of heads, latents, packed pages.

use half::{bf16, f16};
use octavo_core::codec::{Options, encode};
use octavo_core::{DType, Format, Layout, PackedMut, Sizes, Values};
use octavo_cuda::attention::{Attention, Device, Given, PAGE, Shape};

use crate::emulator::{Memory, available, emulate};
use crate::linear::normal;

/// What is asked for; lengths of the sequences.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    pub(crate) lengths: &'static [usize],
    pub(crate) heads: usize,
    pub(crate) key_heads: usize,
    pub(crate) depth: usize,
    pub(crate) values: usize,
    pub(crate) latent: bool,
    pub(crate) window: usize,
    pub(crate) dtype: DType,
    pub(crate) format: &'static str,
    /// Of the device: more of them cut sequences in more parts.
    pub(crate) multiprocessors: usize,
}

const GROUPED: Case = Case {
    lengths: &[1, 63, 64, 65, 200],
    heads: 6,
    key_heads: 2,
    depth: 16,
    values: 24,
    latent: false,
    window: 0,
    dtype: DType::BF16,
    format: "",
    multiprocessors: 1,
};
const LATENT: Case = Case {
    lengths: &[130, 7],
    heads: 20,
    key_heads: 1,
    depth: 40,
    values: 32,
    latent: true,
    dtype: DType::F16,
    multiprocessors: 8,
    ..GROUPED
};

fn round(v: f32, dtype: DType) -> f32 {
    match dtype {
        DType::F16 => f16::from_f32(v).to_f32(),
        _ => bf16::from_f32(v).to_f32(),
    }
}

fn bytes(values: &[f32], dtype: DType) -> Vec<u8> {
    let bits = |v: f32| if dtype == DType::F16 { f16::from_f32(v).to_bits() } else { bf16::from_f32(v).to_bits() };
    values.iter().flat_map(|&v| bits(v).to_le_bytes()).collect()
}

/// Rows as pages hold them: their numbers as float64, and codes and scales.
fn held(rows: &[f32], width: usize, case: &Case) -> (Vec<f64>, Vec<u8>, Vec<u8>) {
    if case.format.is_empty() {
        return (rows.iter().map(|&v| f64::from(round(v, case.dtype))).collect(), bytes(rows, case.dtype), Vec::new());
    }
    let format = Format::parse(case.format).unwrap();
    let layout = Layout::new(&[rows.len() / width, width], -1, format).unwrap();
    let sizes = Sizes::new(format, &layout).unwrap();
    let (mut codes, mut scales) = (vec![0; sizes.codes], vec![0; sizes.scales]);
    let out = PackedMut { codes: &mut codes, scales: &mut scales, zeros: &mut [], levels: &mut [] };
    encode(Values::F32(rows), layout, format, &Options::default(), out).unwrap();
    let mut plain = vec![0.0f32; rows.len()];
    let packed = octavo_core::Packed { codes: &codes, scales: &scales, zeros: &[], levels: &[] };
    octavo_core::codec::decode(packed, layout, format, octavo_core::ValuesMut::F32(&mut plain)).unwrap();
    (plain.iter().map(|&v| f64::from(v)).collect(), codes, scales)
}

/// Softmax of the products of a query and keys, and the mixed values, in float64.
fn attend(query: &[f64], rows: &[(&[f64], &[f64])], scale: f64, values: usize) -> Vec<f64> {
    let scores: Vec<f64> =
        rows.iter().map(|(key, _)| scale * query.iter().zip(*key).map(|(q, k)| q * k).sum::<f64>()).collect();
    let most = scores.iter().copied().fold(f64::MIN, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
    let all: f64 = weights.iter().sum();
    let mixed =
        |column: usize| weights.iter().zip(rows).map(|(weight, (_, value))| weight * value[column]).sum::<f64>();
    (0..values).map(|column| if rows.is_empty() { 0.0 } else { mixed(column) / all }).collect()
}

/// Largest difference, of the largest number.
pub(crate) fn error_of(case: &Case, mut memory: Memory) -> f64 {
    let &Case { lengths, heads, key_heads, depth, values, latent, window, dtype, .. } = case;
    let longest = lengths.iter().map(|length| length.div_ceil(PAGE)).max().unwrap().max(1);
    // Pages lie in another order than positions, and some belong to nobody.
    let mut tables = vec![0i32; lengths.len() * longest];
    let all: usize = lengths.iter().map(|length| length.div_ceil(PAGE)).sum();
    let pages = all + 2;
    let mut next = 0;
    for (sequence, length) in lengths.iter().enumerate() {
        for page in 0..length.div_ceil(PAGE) {
            tables[sequence * longest + page] = (all - next) as i32;
            next += 1;
        }
    }
    let numbers = |count, seed| normal(count, seed);
    let query: Vec<f32> = numbers(lengths.len() * heads * depth, 1).into_iter().map(|v| round(v, dtype)).collect();
    let rows = pages * key_heads * PAGE;
    let (keys, key_codes, key_scales) = held(&numbers(rows * depth, 2), depth, case);
    let (of_values, value_codes, value_scales) = held(&numbers(rows * values, 3), values, case);

    let mut poisoned = |codes: &[u8], width: usize| {
        // Rows behind a sequence hold NaN, as memory that was never written may.
        let mut codes = codes.to_vec();
        if case.format.is_empty() {
            for (sequence, &length) in lengths.iter().enumerate() {
                for position in length..length.div_ceil(PAGE) * PAGE {
                    let page = tables[sequence * longest + position / PAGE] as usize;
                    for head in 0..key_heads {
                        let row = (page * key_heads + head) * PAGE + position % PAGE;
                        codes[2 * row * width..2 * (row + 1) * width].fill(0xff);
                    }
                }
            }
        }
        memory.add(&codes, 0)
    };
    let keys_at = poisoned(&key_codes, depth);
    let values_at = if latent { 0 } else { poisoned(&value_codes, values) };
    let packed = !case.format.is_empty();
    let words = |values: &[i32]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    let shape = Shape {
        sequences: lengths.len(),
        heads,
        key_heads,
        depth,
        values,
        latent,
        longest,
        window,
        dtype,
        format: packed.then(|| Format::parse(case.format).unwrap()),
    };
    let device = Device { multiprocessors: case.multiprocessors, shared: 99 << 10 };
    let made = Attention::new(shape, device).unwrap();
    let out = vec![0xff; 2 * lengths.len() * heads * values];
    let given = Given {
        query: memory.add(&bytes(&query, dtype), 0),
        keys: keys_at,
        key_scales: if packed { memory.add(&key_scales, 0) } else { 0 },
        values: values_at,
        value_scales: if packed && !latent { memory.add(&value_scales, 0) } else { 0 },
        tables: memory.add(&words(&tables), 4),
        lengths: memory.add(&words(&lengths.iter().map(|&length| length as i32).collect::<Vec<_>>()), 4),
        out: memory.add(&out, 2),
    };
    let scratch = memory.add(&vec![0xff; made.scratch()], 4);
    let scale = 1.0 / (depth as f32).sqrt();
    emulate(&made.calls(&given, scale, scratch).unwrap(), &mut memory);
    assert_eq!(memory.conflicts, 0, "rows of matrices share banks");

    let (mut apart, mut largest) = (0.0f64, 1e-6f64);
    let found = memory.bytes(given.out).as_chunks().0.iter().map(|b| match dtype {
        DType::F16 => f16::from_le_bytes(*b).to_f64(),
        _ => bf16::from_le_bytes(*b).to_f64(),
    });
    let found: Vec<f64> = found.collect();
    for (sequence, &length) in lengths.iter().enumerate() {
        let begin = if window > 0 { length.saturating_sub(window) } else { 0 };
        for head in 0..heads {
            let row = |position: usize| {
                let page = tables[sequence * longest + position / PAGE] as usize;
                (page * key_heads + head / (heads / key_heads)) * PAGE + position % PAGE
            };
            let seen: Vec<(&[f64], &[f64])> = (begin..length)
                .map(|position| {
                    let key = &keys[row(position) * depth..][..depth];
                    (key, if latent { &key[..values] } else { &of_values[row(position) * values..][..values] })
                })
                .collect();
            let at = sequence * heads + head;
            let own: Vec<f64> = query[at * depth..(at + 1) * depth].iter().map(|&v| f64::from(v)).collect();
            for (wanted, found) in attend(&own, &seen, f64::from(scale), values).iter().zip(&found[at * values..]) {
                assert!(found.is_finite(), "sequence {sequence}, head {head}: {found}");
                apart = apart.max((wanted - found).abs());
                largest = largest.max(wanted.abs());
            }
        }
    }
    apart / largest
}

/// Weights and results are rounded to 8 or 11 bits, and packed numbers too where the format has more.
fn bound(dtype: DType) -> f64 {
    if dtype == DType::F16 { 1.5e-3 } else { 1.2e-2 }
}

pub(crate) fn cases() -> Vec<Case> {
    vec![
        GROUPED,
        Case { multiprocessors: 40, ..GROUPED },
        Case { dtype: DType::F16, window: 70, ..GROUPED },
        Case { window: 5, multiprocessors: 40, ..GROUPED },
        Case { lengths: &[0, 128, 3], heads: 3, key_heads: 3, depth: 64, values: 64, ..GROUPED },
        LATENT,
        Case { dtype: DType::BF16, multiprocessors: 1, window: 100, ..LATENT },
        Case { lengths: &[70], heads: 16, depth: 576, values: 512, ..LATENT },
        Case { format: "mxint8", depth: 64, values: 32, ..GROUPED },
        Case { format: "int8:g32", depth: 64, values: 48, dtype: DType::F16, multiprocessors: 9, ..GROUPED },
        Case { format: "mxfp4", ..LATENT },
        Case { format: "mxfp8e4m3", depth: 96, values: 64, ..LATENT },
        Case { format: "nf4", depth: 64, values: 64, ..LATENT },
    ]
}

#[test]
fn rows_are_those_of_float64() {
    if !available() {
        return;
    }
    for (i, case) in cases().into_iter().enumerate() {
        let mut memory = Memory::default();
        memory.backwards = i % 2 == 1;
        let error = error_of(&case, memory);
        assert!(error < bound(case.dtype), "case {i}: {error}");
    }
}

#[test]
fn addresses_that_cannot_be_are_refused() {
    let shape = Shape {
        sequences: 1,
        heads: 2,
        key_heads: 1,
        depth: 16,
        values: 16,
        latent: false,
        longest: 1,
        window: 0,
        dtype: DType::F16,
        format: None,
    };
    let made = Attention::new(shape, Device { multiprocessors: 1, shared: 99 << 10 }).unwrap();
    let good = Given { query: 16, keys: 16, key_scales: 0, values: 16, value_scales: 0, tables: 4, lengths: 4, out: 2 };
    assert!(made.calls(&good, 1.0, 0).is_ok());
    for bad in
        [Given { query: 8, ..good }, Given { values: 0, ..good }, Given { tables: 2, ..good }, Given { out: 0, ..good }]
    {
        assert!(made.calls(&bad, 1.0, 0).is_err(), "{bad:?}");
    }
}
