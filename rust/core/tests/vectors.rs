//! The recorded vectors of `conformance`, at every SIMD level of this machine: scales, codes and values to the bit.
//!
//! One rule of FORMATS.md differs: a minifloat has one code of zero, so that recorded codes of -0 count as zero.

#![expect(clippy::expect_used, reason = "a test stops where its set-up fails")]

use octavo_core::{Format, Layout, Level, Options, Packed, PackedMut, Sizes, Values, ValuesMut, codec, unpack_rows};
use safetensors::SafeTensors;

const FORMATS: [&str; 6] = ["mxfp8e5m2", "mxfp8e4m3", "mxfp6e3m2", "mxfp6e2m3", "mxfp4", "mxint8"];
const CASES: [&str; 7] = ["normal", "a6x64", "scales", "topbin", "ties1", "ties4", "zeros"];

fn floats(file: &SafeTensors<'_>, name: &str) -> Vec<f32> {
    let bytes = file.tensor(name).expect(name).data();
    bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn scales_codes_and_values_are_those_recorded() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../conformance/vectors/ocp_mx.safetensors");
    let bytes = std::fs::read(path).expect("the vectors");
    let file = SafeTensors::deserialize(&bytes).expect("a file of tensors");
    let mut compared = 0;
    for level in Level::available() {
        Level::force(Some(level)).expect("a level of this machine");
        for text in FORMATS {
            let format = Format::parse(text).expect("a format");
            for case in CASES {
                let x = floats(&file, &format!("inputs.{case}"));
                let shape = file.tensor(&format!("inputs.{case}")).expect(case).shape().to_vec();
                let layout = Layout::new(&shape, -1, format).expect("a matrix");
                let sizes = Sizes::new(format, &layout).expect("small sizes");
                let (mut codes, mut scales) = (vec![0xff; sizes.codes], vec![0xff; sizes.scales]);
                let to = PackedMut { codes: &mut codes, scales: &mut scales, zeros: &mut [], levels: &mut [] };
                codec::encode(Values::F32(&x), layout, format, &Options::default(), to).expect("encode");
                let recorded = |part: &str| file.tensor(&format!("{text}.{case}.{part}")).expect(part).data();
                assert_eq!(scales, recorded("scales"), "{text} {case} {level:?}: scales");
                let mut single = vec![0; x.len()];
                unpack_rows(&codes, shape[0], shape[1], format.width(), &mut single).expect("unpack");
                let negative_zero = if text == "mxint8" { None } else { Some(1 << (format.width() - 1)) };
                let one_zero = |code| if Some(code) == negative_zero { 0 } else { code };
                let wanted: Vec<u32> = recorded("codes").iter().map(|&code| one_zero(code.into())).collect();
                assert_eq!(single, wanted, "{text} {case} {level:?}: codes");
                let wanted: Vec<f32> = floats(&file, &format!("{text}.{case}.values"));
                let wanted = bits(&wanted.into_iter().map(|value| value + 0.0).collect::<Vec<_>>()); // -0 + 0 is 0
                let mut values = vec![f32::NAN; x.len()];
                let packed = Packed { codes: &codes, scales: &scales, zeros: &[], levels: &[] };
                codec::decode(packed, layout, format, ValuesMut::F32(&mut values)).expect("decode");
                assert_eq!(bits(&values), wanted, "{text} {case} {level:?}: values");
                let to = ValuesMut::F32(&mut values);
                codec::quantize(Values::F32(&x), layout, format, &Options::default(), to).expect("quantize");
                assert_eq!(bits(&values), wanted, "{text} {case} {level:?}: quantized values");
                compared += x.len();
            }
        }
    }
    Level::force(None).expect("no level");
    assert!(compared > 0);
}
