//! Any bytes as lines to expand: one answer or one failure each, in order, the same in pieces of any size.
//! The first byte says how answers are written, the second how many bytes a piece has.
#![no_main]

#[path = "../folder.rs"]
mod folder;

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use octavo_polynomials::{Engine, Failure, Form, Options, Stream, Summary};

use folder::Folder;

static ENGINE: LazyLock<Engine> = LazyLock::new(|| {
    let options = Options { threads: 1, ..Options::default() };
    Engine::load(Folder::new("lines").path(), options).expect("the model of this folder is good")
});

/// What a stream gives for lines that come in pieces.
fn answers(lines: &[u8], piece: usize, form: Form) -> (Vec<u8>, Vec<Failure>, Summary) {
    let mut stream = Stream::new(&ENGINE, 1, form).expect("one hypothesis is taken");
    let (mut out, mut failures) = (Vec::new(), Vec::new());
    for piece in lines.chunks(piece) {
        stream.push(piece);
        while stream.run(&ENGINE, &mut out, &mut failures).expect("lines are no errors") > 0 {}
    }
    stream.finish();
    while stream.run(&ENGINE, &mut out, &mut failures).expect("as above") > 0 {}
    (out, failures, stream.summary())
}

fuzz_target!(|data: &[u8]| {
    let [form, piece, lines @ ..] = data else { return };
    let form = [Form::Text, Form::Pairs, Form::Json][usize::from(form % 3)];
    let (out, failures, summary) = answers(lines, lines.len().max(1), form);
    let count = lines.split_inclusive(|&byte| byte == b'\n').count() as u64;
    assert_eq!((summary.lines, summary.failed), (count, failures.len() as u64));
    assert_eq!(out.iter().filter(|&&byte| byte == b'\n').count() as u64, count);
    assert!(std::str::from_utf8(&out).is_ok());
    assert!(failures.iter().all(|(number, _)| (1..=count).contains(number)));
    assert!(failures.windows(2).all(|pair| pair[0].0 < pair[1].0));
    assert_eq!(answers(lines, usize::from(*piece) + 1, form), (out.clone(), failures.clone(), summary));
    let (mut streamed, mut failed) = (Vec::new(), Vec::new());
    let keep = |failure: &Failure| {
        failed.push(failure.clone());
        Ok(())
    };
    assert_eq!(ENGINE.expand_stream(lines, &mut streamed, keep, 1, form).expect("memory has no errors"), summary);
    assert_eq!((streamed, failed), (out, failures));
});
