//! Laws of sparse codes: exact there and back at every level, and damage is an error.

use proptest::prelude::*;

use super::expand::panel_bytes;
use super::*;
use crate::format::catalogue;

/// Dense codes of a matrix, a share of them 0.
fn dense(width: u32, shape: Shape, zeros: u32, seed: u32) -> Vec<u8> {
    let mut out = Vec::new();
    for row in 0..shape.rows as u32 {
        let codes: Vec<u8> = (0..shape.columns as u32)
            .map(|column| {
                let bits = (row.wrapping_mul(40_503) ^ column ^ seed).wrapping_mul(0x9e37_79b9).rotate_left(13);
                let bits = bits.wrapping_mul(0x85eb_ca6b);
                if bits >> 16 & 1023 < zeros { 0 } else { (bits >> 4) as u8 & (255 >> (8 - width)) }
            })
            .collect();
        let mut packed = vec![0; packed_bytes(shape.columns, width).unwrap()];
        pack(Level::Scalar, &codes, width, &mut packed);
        out.extend(packed);
    }
    out
}

struct Compressed {
    codes: Vec<u8>,
    bitmap: Vec<u64>,
    nonzero: u64,
}

fn compressed(codes: &[u8], width: u32, shape: Shape) -> Compressed {
    let nonzero = count(codes, width, shape).unwrap();
    let mut held = Compressed {
        codes: vec![0; code_bytes(nonzero, width).unwrap()],
        bitmap: vec![0; shape.words().unwrap()],
        nonzero,
    };
    compress(codes, width, shape, nonzero, &mut held.codes, &mut held.bitmap).unwrap();
    held
}

fn shapes() -> impl Strategy<Value = Shape> {
    let sizes = || prop_oneof![0usize..70, Just(64), Just(256), Just(259)];
    (sizes(), sizes()).prop_map(|(rows, columns)| Shape { rows, columns })
}

proptest! {
    #[test]
    fn expanding_gives_the_codes_that_were_compressed(shape in shapes(), width in 1u32..=8, zeros in 0u32..1100, seed: u32) {
        let codes = dense(width, shape, zeros, seed);
        let held = compressed(&codes, width, shape);
        prop_assert_eq!(expanded(&held.codes, &held.bitmap, held.nonzero, width, shape).unwrap(), codes.clone());
        let starts = starts(&held.bitmap, shape, held.nonzero).unwrap();
        let sparse = Sparse { codes: &held.codes, bitmap: &held.bitmap, starts: &starts };
        let bytes = packed_bytes(shape.columns, width).unwrap();
        for first in (0..shape.rows).step_by(PANEL) {
            let some = (shape.rows - first).min(21);
            let mut out = vec![7; some * bytes];
            expand(&sparse, width, shape, first, some, &mut out).unwrap();
            prop_assert_eq!(&out, &codes[first * bytes..][..some * bytes]);
        }
    }

    #[test]
    fn all_levels_expand_to_the_same_bytes(shape in shapes(), zeros in 0u32..1100, seed: u32) {
        let held = compressed(&dense(8, shape, zeros, seed), 8, shape);
        let starts = starts(&held.bitmap, shape, held.nonzero).unwrap();
        let sparse = Sparse { codes: &held.codes, bitmap: &held.bitmap, starts: &starts };
        for panel in 0..shape.panels() {
            let of = |level| {
                let mut rows = Vec::new();
                let stride = panel_bytes(level, &sparse, 8, shape, panel, &mut Vec::new(), &mut rows).unwrap();
                rows.chunks(stride.max(1)).map(|row| row[..shape.columns].to_vec()).collect::<Vec<_>>()
            };
            for level in Level::available() {
                prop_assert_eq!(of(level), of(Level::Scalar));
            }
        }
    }

    #[test]
    fn damaged_parts_are_refused_or_read_and_never_panic(
        shape in shapes(), width in 1u32..=8, cut in 0usize..9, word: u64, at: prop::sample::Index, nonzero in 0u64..9
    ) {
        let mut held = compressed(&dense(width, shape, 600, 3), width, shape);
        let starts = starts(&held.bitmap, shape, held.nonzero).unwrap();
        held.codes.truncate(held.codes.len().saturating_sub(cut));
        if !held.bitmap.is_empty() {
            let at = at.index(held.bitmap.len());
            held.bitmap[at] ^= word;
        }
        let _ = expanded(&held.codes, &held.bitmap, held.nonzero ^ nonzero, width, shape);
        let sparse = Sparse { codes: &held.codes, bitmap: &held.bitmap, starts: &starts };
        let mut out = vec![0; shape.rows * packed_bytes(shape.columns, width).unwrap()];
        let _ = expand(&sparse, width, shape, 0, shape.rows, &mut out);
        let far = vec![u64::MAX; starts.len()];
        let _ = expand(&Sparse { starts: &far, ..sparse }, width, shape, 0, shape.rows, &mut out);
    }
}

#[test]
fn bits_that_do_not_match_are_refused_by_name() {
    let shape = Shape { rows: 18, columns: 6 };
    let held = compressed(&dense(8, shape, 500, 1), 8, shape);
    let text = |bitmap: &[u64], nonzero| starts(bitmap, shape, nonzero).unwrap_err().to_string();
    assert!(text(&held.bitmap, held.nonzero + 1).contains("codes that are not 0"));
    assert!(text(&held.bitmap[1..], held.nonzero).contains("bitmap (words)"));
    for (word, bit) in [(1, 2), (1, 63), (2, 8), (3, 6)] {
        let mut bitmap = held.bitmap.clone();
        bitmap[word] |= 1 << bit;
        assert!(text(&bitmap, held.nonzero).contains("outside"), "{word} {bit}");
    }
}

#[test]
fn formats_are_taken_where_code_0_is_plus_zero() {
    let taken = |text: &str| takes(Format::parse(text).unwrap());
    for text in [
        "int8:g32",
        "int4:g32",
        "int4:g32,full",
        "int6:channel",
        "mxint8",
        "mxfp4",
        "mxfp6e3m2",
        "nvfp4",
        "bfp8/16",
        "e4m3",
        "log8",
    ] {
        assert!(taken(text), "{text}");
    }
    for text in ["nf4", "nf3", "uint8:g32", "uint4:g32,offset", "binary", "int12", "fp16"] {
        assert!(!taken(text), "{text}");
    }
    for text in catalogue() {
        let format = Format::parse(text).unwrap();
        assert!(!takes(format) || format.width() <= MOST_WIDTH && !format.has_zeros(), "{text}");
    }
}
