//! Refusals are variants with the numbers as fields, and texts that say the same.

use super::*;
use crate::codec::{self, DType, Layout, Options, Packed, Sizes, Values, ValuesMut};
use crate::container::Reader;
use crate::linear::{self, Matrix};
use crate::simd::Level;
use crate::{Format, pool};

fn parse(text: &str) -> (FormatError, String) {
    match Format::parse(text) {
        Err(Error::Format(error)) => {
            let shown = error.to_string();
            (error, shown)
        }
        other => panic!("{text}: {other:?}"),
    }
}

#[test]
fn wrong_format_texts_name_the_fault() {
    let (error, shown) = parse("mxfp6e3m3");
    assert!(matches!(error, FormatError::Unknown { nearest: Some("mxfp6e3m2"), .. }), "{error:?}");
    assert_eq!(shown, "unknown format 'mxfp6e3m3'; did you mean 'mxfp6e3m2'?");
    let (error, shown) = parse("somethingelse");
    assert!(matches!(error, FormatError::Unknown { nearest: None, .. }), "{error:?}");
    assert_eq!(shown, "unknown format 'somethingelse'; `octavo formats` lists the families");
    let faults = [
        (
            "int99",
            TextFault::Outside { what: "width", digits: "99".into(), least: 2, most: 16 },
            "width 99 is outside 2..16",
        ),
        ("int04", TextFault::LeadingZero { what: "width", digits: "04".into() }, "width '04' has a leading zero"),
        (
            "int4/16",
            TextFault::NoBlock { name: "int4".into(), block: "16".into(), groups: true },
            "'int4' takes no block size '/16'; groups are written 'int4:g16'",
        ),
        (
            "bfp8",
            TextFault::BlockMissing { name: "bfp8".into() },
            "the block size is missing; write for example 'bfp8/16'",
        ),
        (
            "int4:g32,channel",
            TextFault::Contradiction { first: "g32".into(), second: "channel".into() },
            "options 'g32' and 'channel' contradict each other",
        ),
        (
            "int8:wide",
            TextFault::UnknownOption {
                option: "wide".into(),
                name: "int8".into(),
                accepted: "tensor, channel, gN, full",
            },
            "unknown option 'wide'; 'int8' takes: tensor, channel, gN, full",
        ),
    ];
    for (text, wanted, words) in faults {
        let (error, shown) = parse(text);
        assert!(matches!(&error, FormatError::Text { fault, .. } if *fault == wanted), "{error:?}");
        assert_eq!(shown, format!("format '{text}': {words}"));
    }
}

#[test]
fn shapes_and_lengths_are_fields() {
    let int8 = Format::parse("int8").unwrap();
    let error = Layout::new(&[2, 3], 2, int8).unwrap_err();
    assert!(matches!(&error, Error::Shape(ShapeError::Axis { axis: 2, shape }) if shape == &[2, 3]), "{error:?}");
    assert_eq!(error.to_string(), "axis 2 is outside shape [2, 3]: accepted are -2..1");
    let error = Layout::new(&[], 1, Format::parse("fp16").unwrap()).unwrap_err();
    assert_eq!(error.to_string(), "axis 1 is outside shape ()");
    let error = Layout::new(&[usize::MAX, 3], -1, int8).unwrap_err();
    assert!(matches!(error, Error::Shape(ShapeError::TooManyElements { .. })), "{error:?}");

    let layout = Layout::new(&[2, 3], -1, int8).unwrap();
    let error = codec::decode(Packed::default(), layout, int8, ValuesMut::F32(&mut [0.0; 6])).unwrap_err();
    let expected = Sizes::new(int8, &layout).unwrap().codes;
    match &error {
        Error::Shape(ShapeError::Length { what: "codes (bytes)", got: 0, expected: wanted, .. }) => {
            assert_eq!(*wanted, expected);
        }
        _ => panic!("{error:?}"),
    }
    assert_eq!(error.to_string(), "'int8': codes (bytes) holds 0, expected 6");
    let (x, mut out) = ([0.0; 6], [0u16; 6]);
    let error =
        codec::quantize(Values::F32(&x), layout, int8, &Options::default(), ValuesMut::F16(&mut out)).unwrap_err();
    assert!(matches!(error, Error::Shape(ShapeError::Dtypes { out: DType::F16, x: DType::F32 })), "{error:?}");

    let w = Matrix { format: int8, packed: Packed::default(), rows: 4, columns: 3 };
    let error = linear::multiply(Values::F32(&x), 2, &w, None, ValuesMut::F32(&mut [0.0; 7])).unwrap_err();
    let wanted = (2, 4, 3, 6, 7);
    match &error {
        Error::Shape(ShapeError::Product { m, n, k, inputs, outputs }) => {
            assert_eq!((*m, *n, *k, *inputs, *outputs), wanted);
        }
        _ => panic!("{error:?}"),
    }
    assert_eq!(
        error.to_string(),
        "2 rows times a weight of shape (4, 3) take 2 x 3 inputs and 2 x 4 outputs; got 6 and 7"
    );
}

#[test]
fn ids_positions_and_limits_are_fields() {
    let (codes, scales) = ([0u8; 6], [0u8; 8]);
    let packed = Packed { codes: &codes, scales: &scales, ..Packed::default() };
    let w = Matrix { format: Format::parse("int8:channel").unwrap(), packed, rows: 2, columns: 3 };
    let error = linear::gather(&[1, -1], &w, ValuesMut::F32(&mut [0.0; 6])).unwrap_err();
    assert!(matches!(error, Error::Range(RangeError::Id { id: -1, position: 1, rows: 2 })), "{error:?}");
    assert_eq!(error.to_string(), "id -1 at position 1 is outside 0..2");

    let error = pool::set_num_threads(pool::MAX_THREADS + 1).unwrap_err();
    match error {
        Error::Setting(SettingError::Threads { threads, limit }) => assert_eq!(threads, limit + 1),
        other => panic!("{other:?}"),
    }
    let error = "mmx".parse::<Level>().unwrap_err();
    assert!(matches!(&error, Error::Setting(SettingError::UnknownLevel { name }) if name == "mmx"), "{error:?}");
    assert_eq!(error.to_string(), "unknown SIMD level 'mmx'; accepted are scalar, neon, avx2, avx512");
}

#[test]
fn containers_name_tensor_and_fault() {
    let file = |header: &str, data: usize| {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.resize(bytes.len() + data, 0);
        match Reader::from_memory(bytes) {
            Err(Error::Container(error)) => {
                let shown = error.to_string();
                (error, shown)
            }
            Err(other) => panic!("{other:?}"),
            Ok(_) => panic!("{header}"),
        }
    };
    let (error, shown) = file(r#"{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,9]}}"#, 9);
    let ContainerError::Tensor { name, fault } = &error else { panic!("{error:?}") };
    assert_eq!(name, "x");
    match &**fault {
        TensorFault::Offsets { shape, bytes: 8, begin: 0, end: 9, .. } => assert_eq!(shape, &[2]),
        _ => panic!("{error:?}"),
    }
    assert_eq!(shown, "x: shape [2] of F32 is 8 bytes, data_offsets are [0, 9]");
    let (error, shown) = file(r#"{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#, 7);
    assert!(matches!(error, ContainerError::DataBytes { tensors: 8, data: 7 }), "{error:?}");
    assert_eq!(shown, "tensors take 8 bytes, the file has 7 bytes of data: truncated");
    let (error, shown) = file(r#"{"__metadata__":{"octavo.version":"99"}}"#, 0);
    assert!(matches!(&error, ContainerError::Version { found, newer: true, .. } if found == "99"), "{error:?}");
    assert_eq!(
        shown,
        "octavo.version is '99'; this version of octavo reads '1' and '2'; a newer octavo reads this file"
    );
    let (error, shown) = file("[]", 0);
    assert!(matches!(error, ContainerError::HeaderStart), "{error:?}");
    assert_eq!(shown, "header does not begin with '{'");
    let short = Reader::from_memory([0u8; 3]).err();
    let wanted = Error::Container(ContainerError::TooShort { bytes: 3, least: 8 }).to_string();
    assert_eq!(short.map(|error| error.to_string()), Some(wanted));
}

#[test]
fn tokens_name_line_column_and_character() {
    let tokenizer = crate::text::characters::CharTokenizer::from_characters("ab").unwrap();
    let (mut out, mut lengths) = ([0u8; 4], [0i64; 1]);
    let error = tokenizer.encode_batch(b"abx", 4, Default::default(), &mut out, &mut lengths).unwrap_err();
    let found = match &error {
        Error::Data(DataError::UnknownCharacter { line, column, character, .. }) => (*line, *column, *character),
        _ => panic!("{error:?}"),
    };
    assert_eq!(found, (1, 3, 'x'));
    let error = tokenizer.decode_batch(&[9u8], 1, 1).unwrap_err();
    assert!(matches!(&error, Error::Data(DataError::UnknownId { row: 1, column: 1, most: 4, .. })), "{error:?}");
}
