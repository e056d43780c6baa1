//! The fuzz targets of `fuzz` compile, and their seeds, whole and cut, obey their laws.
//!
//! They are written for libFuzzer, in a workspace of their own. Here this crate stands for `libfuzzer_sys`, whose macro
//! gives a target a function `run` in place of an entry for the fuzzer.

#![allow(clippy::expect_used, clippy::panic, unreachable_pub, reason = "targets stop where a law is broken")]
#![allow(clippy::duplicate_mod, reason = "two targets have the same folder, each as a crate of its own")]
#![allow(unused_attributes, reason = "targets are crates without a main function of their own")]

extern crate self as libfuzzer_sys;

#[path = "../../../fuzz/fuzz_targets/byte_pairs.rs"]
mod byte_pairs;
#[path = "../../../fuzz/fuzz_targets/codec.rs"]
mod codec;
#[path = "../../../fuzz/fuzz_targets/config.rs"]
mod config;
#[path = "../../../fuzz/fuzz_targets/container.rs"]
mod container;
#[path = "../../../fuzz/fuzz_targets/format.rs"]
mod format;
#[path = "../../../fuzz/fuzz_targets/lines.rs"]
mod lines;
#[path = "../../../fuzz/fuzz_targets/model.rs"]
mod model;
#[path = "../../../fuzz/fuzz_targets/tokenizer.rs"]
mod tokenizer;

use std::fs;
use std::path::{Path, PathBuf};

/// A target: it stops where its law is broken.
type Law = fn(&[u8]);

/// One test for all: they share the SIMD level of the process.
#[test]
fn seeds_obey_the_laws_of_their_targets() {
    let targets: [(&str, Law); 8] = [
        ("byte_pairs", byte_pairs::run),
        ("codec", codec::run),
        ("config", config::run),
        ("container", container::run),
        ("format", format::run),
        ("lines", lines::run),
        ("model", model::run),
        ("tokenizer", tokenizer::run),
    ];
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz");
    assert_eq!(files(&fuzz.join("fuzz_targets")).len(), targets.len(), "a target is missing here");
    for (name, run) in targets {
        let seeds = files(&fuzz.join("seeds").join(name));
        assert!(!seeds.is_empty(), "{name} has no seeds");
        for seed in seeds {
            let bytes = fs::read(seed).unwrap();
            for cut in [0, 1, 2, 3].map(|quarter| bytes.len() - quarter * bytes.len() / 4) {
                run(&bytes[..cut]);
            }
        }
    }
}

/// The files of a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder of the repository");
    let mut found: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    found.sort();
    found
}

/// As the macro of `libfuzzer_sys`.
#[macro_export]
macro_rules! fuzz_target {
    (|$input:ident: &[u8]| $law:expr) => {
        pub(crate) fn run($input: &[u8]) {
            $law
        }
    };
    (|$input:ident: &str| $law:expr) => {
        pub(crate) fn run(input: &[u8]) {
            let Ok($input) = std::str::from_utf8(input) else { return };
            $law
        }
    };
}
