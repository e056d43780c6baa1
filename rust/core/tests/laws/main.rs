//! The laws of FORMATS.md section 2 through the public API: random bit patterns, formats, shapes, axes, SIMD levels and threads.
//!
//! `cases` draws what the laws are tried on, `refusals` has what must be an error.

#![expect(clippy::expect_used, reason = "a test stops where its set-up fails")]

mod cases;
#[path = "../common/fewer.rs"]
mod fewer;
mod refusals;

use std::sync::{Mutex, MutexGuard, PoisonError};

use octavo_core::codec;
use octavo_core::format::{KQuant, catalogue};
use octavo_core::{DType, Format, Layout, Level, Nonfinite, Options, ScaleRule, Sizes};
use octavo_core::{pack_rows, packed_bytes, pool, unpack_rows};
use proptest::prelude::*;

use cases::{Case, MORE, Parts, RULES, Tensor, cases, decode, encode, quantize, results};
use fewer::{fewer, takes};

/// SIMD level and thread count belong to the process; tests that set them take turns.
static SETTINGS: Mutex<()> = Mutex::new(());

fn settings() -> MutexGuard<'static, ()> {
    SETTINGS.lock().unwrap_or_else(PoisonError::into_inner)
}

// The law that another architecture could break: all cases even where it is emulated.
proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn results_do_not_depend_on_simd_level(case in cases()) {
        let _turn = settings();
        Level::force(Some(Level::Scalar)).expect("scalar is always there");
        let wanted = results(&case);
        for level in Level::available() {
            Level::force(Some(level)).expect("a level of this machine");
            let got = results(&case);
            Level::force(None).expect("the highest level");
            prop_assert_eq!(&got, &wanted, "{:?}", level);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: fewer(600) as u32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn quantize_equals_decode_of_encode(case in cases()) {
        let case = Case { nonfinite: Nonfinite::Saturate, ..case };
        let decoded = decode(&case, &encode(&case)).meaning();
        let wanted: Vec<u32> = case.x.meaning().iter().zip(decoded).map(|(&x, q)| if x == u32::MAX { x } else { q }).collect();
        prop_assert_eq!(quantize(&case).meaning(), wanted.clone());
        let mut in_place = case.x.clone();
        codec::quantize_in_place(in_place.values_mut(), case.layout(), case.format, &case.options()).expect("in place");
        prop_assert_eq!(in_place.meaning(), wanted);
    }

    #[test]
    fn encoding_at_given_scales_keeps_them(case in cases()) {
        let case = Case { nonfinite: Nonfinite::Saturate, ..case };
        let parts = encode(&case);
        if case.format.scale_type().is_some() {
            let options = Options { given: Some(parts.read()), ..Options::default() };
            let options = Options { nonfinite: Nonfinite::Saturate, ..options };
            let mut again = Parts::new(&Sizes::new(case.format, &case.layout()).expect("small sizes"));
            codec::encode(case.x.values(), case.layout(), case.format, &options, again.write()).expect("encode");
            prop_assert_eq!(again, parts);
        }
    }

    #[test]
    fn packing_is_undone_by_unpacking(width in 1u32..=32, rows in 0usize..5, k in 0usize..80, seed in any::<u32>()) {
        let mask = u32::MAX >> (32 - width);
        let codes: Vec<u32> = (0..(rows * k) as u32).map(|i| (i ^ seed).wrapping_mul(0x9e37_79b9) & mask).collect();
        let row = packed_bytes(k, width).expect("small");
        let mut packed = vec![0xff; rows * row];
        pack_rows(&codes, rows, k, width, &mut packed).expect("pack");
        let mut back = vec![u32::MAX; rows * k];
        unpack_rows(&packed, rows, k, width, &mut back).expect("unpack");
        prop_assert_eq!(&back, &codes);
        for (i, &code) in codes.iter().enumerate() {
            let start = (i / k.max(1)) * row * 8 + (i % k.max(1)) * width as usize;
            let bit = |at: usize| u32::from(packed[at / 8] >> (at % 8) & 1);
            prop_assert_eq!((0..width).fold(0, |sum, j| sum | bit(start + j as usize) << j), code);
        }
        prop_assert!(pack_rows(&codes, rows + 1, k + 1, width, &mut packed).is_err());
        prop_assert!(unpack_rows(&packed, rows, k, 33, &mut back).is_err());
        prop_assert!(unpack_rows(&packed, usize::MAX, k.max(2), width, &mut back).is_err());
    }

    #[test]
    fn any_text_is_read_or_refused(text in "[a-z0-9:/.,\\-]{0,14}") {
        if let Ok(format) = Format::parse(&text) {
            prop_assert_eq!(Format::parse(&format.to_string()).ok(), Some(format));
        }
    }
}

#[test]
fn results_do_not_depend_on_thread_count() {
    let _turn = settings();
    let texts = catalogue().iter().copied().chain(MORE);
    for (i, text) in texts.enumerate().filter(|(i, _)| takes(*i % 8, 8, 0)) {
        let format = Format::parse(text).expect("a format of the catalogue");
        let shape = if i % 2 == 0 { vec![3, 20_011] } else { vec![45_001] };
        let count = shape.iter().product::<usize>() as u32;
        let bits: Vec<u32> = (0..count).map(|j| 0x3f80_0000 ^ j.wrapping_mul(0x9e37_79b9) & 0xbfff_ffff).collect();
        let dtype = if i % 3 == 0 { DType::BF16 } else { DType::F32 };
        let axis = if i % 4 == 2 { 0 } else { -1 };
        let (x, rule) = (Tensor::of(&bits, dtype), if format.is_block() { RULES[i % 3] } else { ScaleRule::Floor });
        let case = Case { format, shape, axis, x, rule, nonfinite: Nonfinite::Saturate };
        pool::set_num_threads(1).expect("one thread");
        let wanted = results(&case);
        for threads in 2..=4 {
            pool::set_num_threads(threads).expect("a few threads");
            assert_eq!(results(&case), wanted, "{text}, {threads} threads");
        }
        pool::set_num_threads(0).expect("the default");
    }
}

#[test]
fn blocks_of_k_quants_decode_alike_at_every_level_in_any_number_of_threads() {
    let _turn = settings();
    for kind in KQuant::ALL {
        let format = Format::parse(&format!("q{}_k", kind.width())).expect("a format");
        for (rows, k) in [(1, 1), (3, 256), (2, 1000), (5, 16_640)] {
            let layout = Layout::new(&[rows, k], -1, format).expect("a shape");
            let sizes = Sizes::new(format, &layout).expect("small sizes");
            // Any bytes, infinite and NaN scales among them.
            let bytes = |count: usize| (0..count as u32).map(|i| (i.wrapping_mul(0x9e37_79b9) >> 23) as u8).collect();
            let parts = Parts { codes: bytes(sizes.codes), scales: bytes(sizes.scales), zeros: vec![], levels: vec![] };
            let values = |dtype| {
                let mut out = Tensor::of(&vec![0; rows * k], dtype);
                codec::decode(parts.read(), layout, format, out.values_mut()).expect("decode");
                out.meaning()
            };
            for dtype in [DType::F32, DType::F16, DType::BF16] {
                Level::force(Some(Level::Scalar)).expect("scalar is always there");
                let wanted = values(dtype);
                for level in Level::available() {
                    Level::force(Some(level)).expect("a level of this machine");
                    assert_eq!(values(dtype), wanted, "{format} {level:?}");
                }
                Level::force(None).expect("the highest level");
                pool::set_num_threads(3).expect("a few threads");
                assert_eq!(values(dtype), wanted, "{format}, 3 threads");
                pool::set_num_threads(0).expect("the default");
            }
        }
    }
}
