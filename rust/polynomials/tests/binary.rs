//! The program `octavo-expand`, as a shell sees it.

#![expect(clippy::unwrap_used, reason = "a test stops where its set-up fails")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use octavo_core::container::{Dtype, Entry, Writer};
use octavo_core::text::characters::CharTokenizer;
use octavo_polynomials::{Engine, Options};

/// A model of the architecture `lstm`: 9 ids, embedding 3, encoder 2, hidden 4.
const SHAPES: [(&str, &[usize]); 22] = [
    ("source_embedding.weight", &[9, 3]),
    ("target_embedding.weight", &[9, 3]),
    ("encoder.forwards.weight_ih_l0", &[8, 3]),
    ("encoder.forwards.weight_hh_l0", &[8, 2]),
    ("encoder.forwards.bias_ih_l0", &[8]),
    ("encoder.forwards.bias_hh_l0", &[8]),
    ("encoder.backwards.weight_ih_l0", &[8, 3]),
    ("encoder.backwards.weight_hh_l0", &[8, 2]),
    ("encoder.backwards.bias_ih_l0", &[8]),
    ("encoder.backwards.bias_hh_l0", &[8]),
    ("bridge.weight", &[8, 4]),
    ("bridge.bias", &[8]),
    ("attention_query.weight", &[4, 4]),
    ("attention_key.weight", &[4, 4]),
    ("attention_key.bias", &[4]),
    ("attention_score.weight", &[1, 4]),
    ("decoder.weight_ih_l0", &[16, 7]),
    ("decoder.weight_hh_l0", &[16, 4]),
    ("decoder.bias_ih_l0", &[16]),
    ("decoder.bias_hh_l0", &[16]),
    ("output.weight", &[9, 8]),
    ("output.bias", &[9]),
];

const CONFIG: &str = r#"{"octavo":2,"kind":"seq2seq","architecture":"lstm","vocabulary":9,"embedding":3,"encoder":2,
    "hidden":4,"heads":1,"layers":1,"feedforward":1,"max_source":6,"max_target":5}"#;

fn model() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let path = |name| folder.path().join(name);
    std::fs::write(path("config.json"), CONFIG).unwrap();
    CharTokenizer::from_characters("abcxyz").unwrap().save(&path("tokenizer.json")).unwrap();
    let entry = |shape: &[usize]| Entry::Plain { dtype: Dtype::F32, shape: shape.to_vec() };
    let entries: Vec<_> = SHAPES.iter().map(|(name, shape)| ((*name).to_owned(), entry(shape))).collect();
    let mut writer = Writer::create(&path("model.octavo.safetensors"), &entries, &BTreeMap::new(), false).unwrap();
    for (seed, (name, shape)) in SHAPES.iter().enumerate() {
        let value = |i: usize| ((i * 7919 + seed * 104_729) % 1013) as f32 / 253.0 - 2.0;
        let bytes: Vec<u8> = (0..shape.iter().product()).flat_map(|i| value(i).to_le_bytes()).collect();
        writer.put_plain(name, &bytes).unwrap();
    }
    writer.finish().unwrap();
    folder
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_octavo-expand"));
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn run(arguments: &[&str], input: &[u8]) -> Output {
    let mut child = command(arguments).spawn().unwrap();
    // A program that refuses its arguments reads nothing.
    _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn expected(folder: &Path, lines: &[&str], beam: usize) -> Vec<String> {
    let engine = Engine::load(folder, Options::default()).unwrap();
    engine.expand(lines, beam).unwrap().into_iter().map(Result::unwrap_or_default).collect()
}

#[test]
fn lines_are_answered_in_order_and_failures_reported() {
    let folder = model();
    let path = folder.path().to_str().unwrap();
    let lines = ["abc", "", "q", "xyzabc", "xyzabcx", "b"];
    for beam in [1, 3] {
        let arguments = ["--model", path, "--beam", &beam.to_string(), "--threads=2"];
        let output = run(&arguments, lines.join("\n").as_bytes());
        let answers = expected(folder.path(), &lines, beam);
        assert_eq!(text(&output.stdout).lines().collect::<Vec<_>>(), answers);
        let failures: Vec<&str> = text(&output.stderr).lines().collect();
        assert_eq!(failures[0], "line 2: empty line; accepted are 1 to 6 characters");
        assert!(failures[1].starts_with("line 3: column 1: character 'q' is not in the vocabulary"));
        assert_eq!(failures[2], "line 5: 7 characters; accepted are 1 to 6");
        assert_eq!((failures.len(), output.status.code()), (3, Some(1)));
    }
    let marked = run(&["--model", path], b"\xef\xbb\xbfabc");
    assert_eq!(text(&marked.stdout).trim_end(), expected(folder.path(), &["abc"], 1)[0]);
    let output = run(&["--model", path, "--format", "pairs"], b"abc\n");
    assert_eq!(text(&output.stdout), format!("abc={}\n", expected(folder.path(), &["abc"], 1)[0]));
    assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0));
}

#[test]
fn what_was_read_is_answered_before_more_is_waited_for() {
    let folder = model();
    let mut child = command(&["--model", folder.path().to_str().unwrap()]).spawn().unwrap();
    let (mut ask, mut hear) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
    for line in ["abc", "zzz"] {
        writeln!(ask, "{line}").unwrap();
        let mut answer = String::new();
        hear.read_line(&mut answer).unwrap();
        assert_eq!(answer, expected(folder.path(), &[line], 1)[0].clone() + "\n");
    }
    drop(ask);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_closed_pipe_ends_quietly_and_is_no_success() {
    let folder = model();
    let mut child = command(&["--model", folder.path().to_str().unwrap()]).spawn().unwrap();
    drop(child.stdout.take());
    _ = child.stdin.take().unwrap().write_all("abc\n".repeat(100_000).as_bytes());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(2), ""));
}

#[test]
fn help_teaches_and_wrong_arguments_are_refused() {
    for argument in ["--help", "-h"] {
        let output = run(&[argument], b"");
        assert!(text(&output.stdout).contains("Examples:") && output.status.success());
    }
    assert_eq!(text(&run(&["--version"], b"").stdout), format!("octavo-expand {}\n", env!("CARGO_PKG_VERSION")));
    for (arguments, reason) in [
        (&[][..], "error: no model; give the folder of an exported one with --model FOLDER"),
        (&["--frobnicate"], "error: invalid option '--frobnicate'; see octavo-expand --help"),
        (&["-x"], "error: invalid option '-x'"),
        (&["(x+1)"], "error: unexpected argument \"(x+1)\""),
        (&["--model"], "error: missing argument for option '--model'"),
        (&["--beam", "many"], "error: --beam: "),
        (&["--format", "xml"], "error: unknown format 'xml'; accepted are text, pairs, json"),
        (&["--precision", "int4"], "error: unknown precision 'int4'; accepted are float, bfloat16, integer"),
        (&["--route", "gpu"], "error: unknown route 'gpu'; accepted are auto, general, fused"),
        (&["--model", "absent"], "error: absent/config.json: "),
    ] {
        let output = run(arguments, b"");
        let error = text(&output.stderr);
        assert!(error.starts_with(reason) && error.lines().count() == 1, "{arguments:?}: {error}");
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0));
    }
}
