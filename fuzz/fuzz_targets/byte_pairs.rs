//! Bytes as a file of byte pairs of any kind, and as a text: refused with `Error::Data`, or read soundly. The first byte
//! chooses the kind and the pattern, the second how many bytes the file has (times 64); the text follows.
#![no_main]

use libfuzzer_sys::fuzz_target;
use octavo_core::Error;
use octavo_core::text::bpe::{BytePairs, Learner, Pattern, PieceCounts, Special};

fn data<T>(answer: Result<T, Error>) -> Option<T> {
    match answer {
        Ok(value) => Some(value),
        Err(Error::Data(fault)) => {
            let message = fault.to_string();
            assert!(message.len() < 2000, "{message}");
            None
        }
        Err(error) => panic!("another error: {error}"),
    }
}

/// Ids and back; the parts of a text give the ids of the whole.
fn check(tokenizer: &BytePairs, text: &[u8]) {
    let Some(ids) = data(tokenizer.encode(text, Special::Split)) else { return };
    if !tokenizer.parts().composed {
        assert_eq!(tokenizer.decode(&ids).expect("ids of the tokenizer's own"), text);
    }
    let cut = tokenizer.settled(text, Special::Split);
    let parts = [&text[..cut], &text[cut..]].map(|part| tokenizer.encode(part, Special::Split).expect("as the whole"));
    assert_eq!(parts.concat(), ids);
    data(tokenizer.encode(text, Special::Allow));
    let again = BytePairs::from_json(tokenizer.to_json().expect("a vocabulary is written").as_bytes());
    assert_eq!(again.expect("what is written is read").size(), tokenizer.size());
}

fuzz_target!(|bytes: &[u8]| {
    let [kind, length, rest @ ..] = bytes else { return };
    let (file, text) = rest.split_at(rest.len().min(usize::from(*length) * 64));
    let pattern = Pattern::ALL[usize::from(*kind) / 4 % Pattern::ALL.len()];
    let read = match kind % 4 {
        0 => BytePairs::from_json(file),
        1 => BytePairs::from_ranks(file, pattern, vec![("<|end|>".to_owned(), 1 << 20)]),
        2 => {
            let end = file.iter().position(|&byte| byte == 0).unwrap_or(file.len());
            BytePairs::from_merges(&file[..end], file.get(end + 1..).unwrap_or(&[]), pattern)
        }
        _ => {
            let mut counts = PieceCounts::new(pattern, &["<|end|>".to_owned()]).expect("a token of 7 bytes");
            data(counts.restore(file));
            counts.add(text).expect("texts are counted");
            let mut learner = Learner::new(&counts, 300, &["<|end|>".to_owned()], 1).expect("a size above 257");
            learner.advance(usize::MAX);
            learner.finish()
        }
    };
    if let Some(tokenizer) = data(read) {
        check(&tokenizer, text);
    }
});
