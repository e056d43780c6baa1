//! Bytes as the file of a tokenizer, as lines for one, and as a left side: refused with `Error::Data`, or read soundly.
//! The first byte says how many bytes the file has; the lines follow.
#![no_main]

use libfuzzer_sys::fuzz_target;
use octavo_core::Error;
use octavo_core::text::characters::{Around, CharTokenizer};
use octavo_polynomials::Factors;

fn data<T>(answer: Result<T, impl Into<Error>>) -> Option<T> {
    match answer.map_err(Into::into) {
        Ok(value) => Some(value),
        Err(Error::Data(fault)) => {
            let message = fault.to_string();
            assert!(message.len() < 2000, "{message}");
            None
        }
        Err(error) => panic!("another error: {error}"),
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Some((&length, rest)) = bytes.split_first() else { return };
    let (file, lines) = rest.split_at(rest.len().min(length.into()));
    let tokenizer = data(CharTokenizer::from_json(file)).or_else(|| data(CharTokenizer::from_lines(lines)));
    if let Some(tokenizer) = tokenizer {
        let again = CharTokenizer::from_json(tokenizer.to_json().expect("a vocabulary is written").as_bytes());
        assert_eq!(again.expect("what is written is read"), tokenizer);
        let around = Around { start: length % 2 == 0, end: length % 3 == 0 };
        let (rows, longest) = CharTokenizer::measure(lines).expect("lines are counted");
        let width = longest + around.tokens();
        let (mut ids, mut lengths) = (vec![255u8; rows * width], vec![0; rows]);
        if data(tokenizer.encode_batch(lines, width, around, &mut ids, &mut lengths)).is_some() {
            let text = tokenizer.decode_batch(&ids, rows, width).expect("ids of the tokenizer's own");
            assert_eq!(text.strip_suffix('\n').unwrap_or("").as_bytes(), lines.strip_suffix(b"\n").unwrap_or(lines));
        }
        data(tokenizer.decode_batch(lines, 1, lines.len()));
    }
    if let Some(factors) = std::str::from_utf8(rest).ok().and_then(|left| data(Factors::parse(left))) {
        assert_eq!(factors.to_string().as_bytes(), rest);
    }
});
