//! Codecs on the device against octavo-core: the same bits for every format, dtype, shape and address.

use octavo_core::format::{KQuant, catalogue};
use octavo_core::{DType, Format, Layout, Nonfinite, ScaleRule, Sizes};
use octavo_cuda::Error;
use octavo_cuda::codec::{self, Buffer, Encoding, Parts};

use self::data::Encoded;
use self::job::Job;
use crate::emulator::{available, emulate};

mod data;
pub(crate) mod job;

/// Formats beyond the catalogue: odd widths, blocks and biases.
const MORE: [&str; 30] = [
    "fixed17.3",
    "fixed24.30",
    "fixed32.16",
    "ufixed32.-3",
    "fixed8.511",
    "fixed8.-300",
    "fixed20",
    "ufixed5:channel",
    "ufixed8:mse",
    "fixed8:mse,channel",
    "int3:channel",
    "int2:g3",
    "int8:g512",
    "uint7:g5",
    "uint3:g32",
    "uint16",
    "e2m1b-3",
    "e8m10",
    "denorm9e3",
    "denorm4e2",
    "binary3",
    "binary4:channel",
    "bfp6/7",
    "bm13e2/9",
    "mxint5/7",
    "nvfp4/5",
    "int2:g3,full",
    "int8:g512,full",
    "uint3:g7,offset",
    "uint8:g64,offset",
];
/// One or two of every kind, for the run that takes seconds.
const FEW: [&str; 13] = [
    "mxint8",
    "mxfp6e3m2",
    "mxfp8e5m2",
    "nvfp4",
    "bfp6/7",
    "int8:channel",
    "uint3:g32",
    "int4:g32,full",
    "uint5:g32,offset",
    "nf4",
    "e4m3",
    "fixed8:mse",
    "binary2:channel",
];
const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];
const RULES: [ScaleRule; 3] = [ScaleRule::Floor, ScaleRule::Ceil, ScaleRule::Mse];

/// Shapes that take every way through the kernels: whole blocks in joined rows, rows of odd lengths, one element, none,
/// odd addresses, and several tiles and chunks with a tail.
fn all_shapes(job: &mut Job, format: Format, dtype: DType, seed: u64) {
    let rule = |i: u64| if format.is_block() { RULES[((seed + i) % 3) as usize] } else { ScaleRule::Floor };
    let shapes = [(2, 512, 0), (3, 77, 0), (1, 1, 0), (0, 5, 0), (4, 96, 1), (2, 1032, 0), (1, 20_160, 0)];
    for (i, shape) in (0u64..).zip(shapes) {
        job.add(format, dtype, shape, rule(i), seed * 8 + i);
    }
}

fn formats() -> impl Iterator<Item = Format> {
    catalogue().iter().copied().chain(MORE).map(|text| Format::parse(text).unwrap())
}

#[test]
fn blocks_of_k_quants_decode_to_the_processors_bits() {
    if !available() {
        return;
    }
    let mut job = Job::default();
    for (seed, kind) in (0u64..).zip(KQuant::ALL) {
        let format = Format::parse(&format!("q{}_k", kind.width())).unwrap();
        for (i, dtype) in (0u64..).zip(DTYPES) {
            for shape in [(2, 512, 0), (3, 300, 0), (1, 1, 0), (4, 256, 1), (1, 20_224, 0)] {
                job.add_carried(format, dtype, shape, seed * 8 + i);
            }
        }
        assert!(
            codec::encode(
                format,
                DType::F32,
                &Layout::new(&[1, 256], -1, format).unwrap(),
                Buffer::default(),
                &Parts::default(),
                Buffer::default(),
                &Encoding::default(),
            )
            .is_err()
        );
    }
    job.run();
}

#[test]
fn a_few_formats_give_the_processors_bits() {
    if !available() {
        return;
    }
    let mut job = Job::default();
    for (i, text) in FEW.into_iter().enumerate() {
        all_shapes(&mut job, Format::parse(text).unwrap(), DTYPES[(i + 2) % 3], i as u64);
    }
    job.run();
}

#[test]
#[ignore = "compiles some 1,500 programs"]
fn every_format_gives_the_processors_bits() {
    if !available() {
        return;
    }
    let only = std::env::var("OCTAVO_FORMATS").unwrap_or_default();
    for (i, format) in
        formats().enumerate().filter(|(_, format)| only.is_empty() || only.split(' ').any(|f| f == format.to_string()))
    {
        let mut job = Job::default();
        for (j, dtype) in DTYPES.into_iter().enumerate() {
            for round in 0..2 {
                all_shapes(&mut job, format, dtype, (i * 3 + j) as u64 + 1000 * round);
            }
        }
        job.run();
    }
}

#[test]
fn the_first_value_that_is_not_finite_is_named() {
    if !available() {
        return;
    }
    for (text, dtype, rows, k) in [("mxint8", DType::BF16, 4, 640), ("int8:channel", DType::F16, 5, 77)] {
        let format = Format::parse(text).unwrap();
        let layout = Layout::new(&[rows, k], -1, format).unwrap();
        let sizes = Sizes::new(format, &layout).unwrap();
        for places in [vec![], vec![rows * k - 1], vec![300, 299, 160, 161, 380]] {
            let mut job = Job::default();
            let mut bytes = vec![0; 2 * rows * k];
            for &i in &places {
                bytes[2 * i..2 * i + 2]
                    .copy_from_slice(&(if i % 2 == 0 { 0xffffu16 } else { 0x7c00 | 0x0380 }).to_le_bytes());
            }
            let (at, first) = (job.buffer(&bytes, 0), job.buffer(&u64::MAX.to_le_bytes(), 0));
            let parts = job.parts(&Encoded::new(&sizes, 0), 0);
            let scratch = job.scratch(format, &layout);
            let how = Encoding { first: first.address, ..Encoding::default() };
            let calls = codec::encode(format, dtype, &layout, at, &parts, scratch, &how).unwrap();
            emulate(&calls, &mut job.memory);
            let wanted = places.iter().min().map_or(u64::MAX, |&i| i as u64);
            assert_eq!(job.memory.bytes(first.address), wanted.to_le_bytes(), "{text} {places:?}");
        }
    }
}

#[test]
fn buffers_that_do_not_fit_are_refused() {
    let format = Format::parse("uint4:g32").unwrap();
    let layout = Layout::new(&[3, 64], -1, format).unwrap();
    let buffer = |address, bytes| Buffer { address, bytes };
    let good = Parts {
        codes: buffer(1 << 20, 96),
        scales: buffer(2 << 20, 12),
        zeros: buffer(3 << 20, 3),
        levels: Buffer::default(),
    };
    let out = buffer(4 << 20, 768);
    let decode = |layout: &Layout, parts: &Parts, out| codec::decode(format, DType::F32, layout, parts, out);
    assert_eq!(decode(&layout, &good, out).unwrap().len(), 1);
    for (parts, out) in [
        (Parts { codes: buffer(1 << 20, 95), ..good }, out),
        (Parts { codes: buffer(0, 96), ..good }, out),
        (Parts { scales: buffer((2 << 20) + 1, 12), ..good }, out),
        (Parts { zeros: buffer(3 << 20, 4), ..good }, out),
        (Parts { levels: buffer(3 << 20, 4), ..good }, out),
        (good, buffer(4 << 20, 767)),
        (good, buffer((4 << 20) + 2, 768)),
    ] {
        assert!(matches!(decode(&layout, &parts, out), Err(Error::Core(octavo_core::Error::Shape(_)))));
    }
    let inner = Layout { outer: 1, k: 3, inner: 64 };
    assert!(decode(&inner, &good, out).is_err());
    let (scratch, _) = codec::scratch_bytes(format, &layout).unwrap();
    let encode =
        |how: &Encoding, bytes| codec::encode(format, DType::F32, &layout, out, &good, buffer(5 << 20, bytes), how);
    assert!(encode(&Encoding::default(), scratch).is_ok());
    assert!(encode(&Encoding::default(), scratch + 1).is_err());
    for how in [
        Encoding { rule: ScaleRule::Mse, ..Encoding::default() },
        Encoding { nonfinite: Nonfinite::Nan, ..Encoding::default() },
    ] {
        assert!(matches!(encode(&how, scratch), Err(Error::Core(octavo_core::Error::Format(_)))));
    }
}
