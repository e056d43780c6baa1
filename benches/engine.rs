//! Lines a second of the native engine on one thread, by precision and SIMD level, and the time of a single line.
//!
//! `cargo bench -p octavo-benches --bench engine [-- FILTER]`; benches are named `expand/PRECISION/LEVEL` and
//! `one line/PRECISION/LEVEL`, see README.md here. The level `highest` is that of this machine, AMX included.

use std::hint::black_box;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, SamplingMode, Throughput};
use octavo_core::Level;
use octavo_engine::Result;
use octavo_polynomials::{Engine, Options, Precision};

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../python/octavo/lab/polynomials/shipped");
/// Several tiles, so that rows follow each other as in a long run.
const LINES: usize = 1024;
const PRECISIONS: [Precision; 3] = [Precision::Float, Precision::Bfloat16, Precision::Integer];

/// Products of polynomials with the lengths of the generator in `octavo.data`, more or less; the same in every run.
fn lines() -> Vec<String> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut below = |end: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % end
    };
    (0..LINES)
        .map(|_| {
            let [a, b, c, d] = [32, 32, 10, 10].map(|end| 1 + below(end));
            let name = ['x', 'y', 'z', 'n'][below(4) as usize];
            match below(3) {
                0 => format!("{a}*{name}*({b}-{c}*{name})"),
                1 => format!("(-{c}*{name}-{a})*({d}*{name}+{b})"),
                _ => format!("({name}+{a})*({b}-{d}*{name})"),
            }
        })
        .collect()
}

fn bench(criterion: &mut Criterion) -> Result<()> {
    let lines = lines();
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let levels = [("highest", None), ("avx2", Some(Level::Avx2)), ("scalar", Some(Level::Scalar))];
    for (name, lines) in [("expand", &lines[..]), ("one line", &lines[..1])] {
        let mut group = criterion.benchmark_group(name);
        group.sampling_mode(SamplingMode::Flat).sample_size(10).warm_up_time(Duration::from_millis(300));
        group.throughput(Throughput::Elements(lines.len() as u64));
        for precision in PRECISIONS {
            for (level, force) in levels {
                if force > Some(Level::detect()) {
                    continue;
                }
                Level::force(force)?;
                let engine = Engine::load(Path::new(MODEL), Options { precision, threads: 1, ..Options::default() })?;
                if let Some(error) = engine.expand(lines, 1)?.into_iter().find_map(std::result::Result::err) {
                    return Err(octavo_engine::Error::Internal(error.to_string()));
                }
                group.bench_function(BenchmarkId::new(precision.name(), level), |bencher| {
                    bencher.iter(|| black_box(engine.expand(lines, 1)));
                });
            }
        }
    }
    Ok(())
}

#[expect(clippy::print_stderr, reason = "the report of a bench is its standard error and output")]
fn main() -> ExitCode {
    let mut criterion = Criterion::default().configure_from_args();
    match bench(&mut criterion) {
        Ok(()) => {
            criterion.final_summary();
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
