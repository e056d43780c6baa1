//! Any text as a format: refused, or a format whose text gives the same format, and whose description is sound.
#![no_main]

use libfuzzer_sys::fuzz_target;
use octavo_core::{Error, Format};

fuzz_target!(|text: &str| {
    let format = match Format::parse(text) {
        Ok(format) => format,
        Err(Error::Format(fault)) => {
            let message = fault.to_string();
            assert!(message.len() < 1000, "{message}");
            return;
        }
        Err(error) => panic!("another error: {error}"),
    };
    let printed = format.to_string();
    assert_eq!(Format::parse(&printed).expect("what is printed is read"), format);
    assert_eq!(Format::parse(&printed).expect("as above").to_string(), printed);
    assert!((1..=32).contains(&format.width()));
    assert!(format.nominal_bits() >= f64::from(format.width()), "{printed}");
    assert!(format.bits_per_element(100).is_finite());
    let (low, high) = format.range();
    assert!(low <= 0.0 && high > 0.0 && high.is_finite() && low.is_finite(), "{printed}: {low}..{high}");
    assert!(format.smallest() > 0.0 && format.smallest() <= high, "{printed}: {}", format.smallest());
    if format.width() <= 12 {
        let values = format.values().expect("elements of up to 16 bits are listed");
        assert!(values.windows(2).all(|pair| pair[0].value <= pair[1].value), "{printed}");
        assert!(values.iter().all(|entry| entry.code < 1 << format.width()), "{printed}");
    }
});
