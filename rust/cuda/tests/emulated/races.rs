//! Threads of a block that touch the same memory with no barrier between them: there are none.

use octavo_core::{DType, Format, ScaleRule};

use crate::codec::job::Job;
use crate::emulator::{Memory, available};
use crate::integer::{Added, Asked, DEVICE, HOPPER, check};
use crate::linear::{Way, case, error_of};
use crate::seq2seq::{cases, check_states, check_tokens};

fn watched() -> Memory {
    let mut memory = Memory::default();
    memory.races = true;
    memory
}

fn check_codecs(formats: &[(&str, DType)], shapes: &[(usize, usize, u32)]) {
    if !available() {
        return;
    }
    let mut job = Job::default();
    job.memory = watched();
    for &(text, dtype) in formats {
        let format = Format::parse(text).unwrap();
        for (i, &shape) in (0..).zip(shapes) {
            job.add(format, dtype, shape, ScaleRule::Floor, i);
        }
    }
    job.run();
}

#[test]
fn codecs_do_not_race() {
    check_codecs(&[("mxint8", DType::BF16), ("binary2:channel", DType::F32)], &[(3, 77, 0), (2, 512, 0)]);
}

#[test]
#[ignore = "takes a minute"]
fn long_rows_of_more_codecs_do_not_race() {
    let formats =
        [("mxint8", DType::BF16), ("nvfp4", DType::F32), ("int8:channel", DType::F16), ("binary2:channel", DType::F32)];
    check_codecs(&formats, &[(2, 512, 0), (3, 77, 0), (1, 4700, 0)]);
}

/// A format, the sizes of a product, and its method.
type Float = (&'static str, (usize, usize, usize), Way);
/// The format of the input, and the sizes of a product.
type Integer = (&'static str, (usize, usize, usize));

fn check_products(floats: &[Float], integers: &[Integer]) {
    if !available() {
        return;
    }
    for &(format, shape, way) in floats {
        let mut product = case(format, shape, DType::BF16, true, false);
        product.memory.races = true;
        assert!(error_of(product, way) < 3e-3, "{format} {shape:?}");
    }
    for &(input, shape) in integers {
        let asked =
            Asked { format: "int8:channel", input, shape, dtype: DType::F32, added: Added::Floats, given: false };
        check(&asked, false, watched(), DEVICE);
    }
}

#[test]
fn products_do_not_race() {
    check_products(
        &[("mxint8", (1, 33, 700), Way::Int8Limbs), ("mxfp8e4m3", (20, 17, 288), Way::Bf16Limbs)],
        &[("int8", (17, 20, 77))],
    );
}

#[test]
#[ignore = "takes a minute"]
fn large_products_do_not_race() {
    check_products(
        &[
            ("mxfp4", (9, 17, 288), Way::Int8Limbs),
            ("uint4:g64", (3, 20, 2100), Way::Int8Limbs),
            ("nf4", (20, 130, 700), Way::Bf16Limbs),
            ("mxfp8e4m3", (64, 17, 288), Way::Bf16Limbs),
        ],
        &[("int8", (1, 33, 1100)), ("int8:channel", (130, 131, 400))],
    );
    let (input, shape) = ("int8:channel", (130, 257, 144));
    let asked = Asked { format: "int8:channel", input, shape, dtype: DType::BF16, added: Added::Floats, given: false };
    if available() {
        check(&asked, false, watched(), HOPPER);
    }
}

#[test]
fn attention_does_not_race() {
    if !available() {
        return;
    }
    for case in [0, 5, 9].map(|i| crate::attention::cases()[i]) {
        assert!(crate::attention::error_of(&case, watched()) < 1.2e-2);
    }
}

#[test]
fn drop_out_and_norm_do_not_race() {
    if !available() {
        return;
    }
    for case in [(37, 63, [DType::F32; 3], 0.3, true), (3, 1500, [DType::BF16; 3], 0.9, true)] {
        crate::dropout_norm::check(case, watched());
    }
}

#[test]
fn generation_does_not_race() {
    if !available() {
        return;
    }
    for case in cases().into_iter().take(2) {
        check_states(case, watched());
        check_tokens(case, watched());
    }
}
