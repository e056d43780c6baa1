//! Products with packed weights of 4096 by 4096, for one row of inputs and for many.
//!
//! Throughput counts the bytes of the packed weights. `cargo bench -p octavo-benches --bench linear [-- FILTER]`; benches are
//! named `rows/format`, see README.md here.

use std::hint::black_box;
use std::process::ExitCode;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, SamplingMode, Throughput};
use octavo_core::linear::{Bias, Matrix, multiply, multiply_integer};
use octavo_core::{Format, Layout, Level, Options, Packed, PackedMut, Result, Sizes, Values, ValuesMut, codec, pool};

/// One format of each way to read weights.
const FORMATS: &str = "mxint8 int8:g32 int8:channel mxint6 mxfp6e3m2 int4:g32 uint4:g32 mxfp4 nvfp4 nf4 mxfp8e4m3";
/// Rows and columns of the weights.
const SIZE: usize = 4096;
/// Rows of inputs.
const BATCHES: [usize; 3] = [1, 4, 32];

/// Values without a pattern, the same in every run: a 64-bit linear congruential generator.
fn values(count: usize) -> Vec<f32> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

fn bench(criterion: &mut Criterion) -> Result<()> {
    let weights = values(SIZE * SIZE);
    for m in BATCHES {
        let x = values(m * SIZE);
        let mut out = vec![0.0; m * SIZE];
        let mut group = criterion.benchmark_group(m.to_string());
        group
            .sampling_mode(SamplingMode::Flat)
            .sample_size(20)
            .nresamples(2000)
            .warm_up_time(Duration::from_millis(150))
            .measurement_time(Duration::from_millis(600));
        for text in FORMATS.split_whitespace() {
            let format = Format::parse(text)?;
            let layout = Layout::new(&[SIZE, SIZE], -1, format)?;
            let sizes = Sizes::new(format, &layout)?;
            let (mut codes, mut scales) = (vec![0; sizes.codes], vec![0; sizes.scales]);
            let (mut zeros, mut levels) = (vec![0; sizes.zeros], vec![0; sizes.levels]);
            let parts = PackedMut { codes: &mut codes, scales: &mut scales, zeros: &mut zeros, levels: &mut levels };
            codec::encode(Values::F32(&weights), layout, format, &Options::default(), parts)?;
            let packed = Packed { codes: &codes, scales: &scales, zeros: &zeros, levels: &levels };
            let w = Matrix { format, packed, rows: SIZE, columns: SIZE };
            group.throughput(Throughput::Bytes(sizes.total() as u64));
            multiply(Values::F32(&x), m, &w, None, ValuesMut::F32(&mut out))?; // a refusal shows here, untimed
            group.bench_function(BenchmarkId::from_parameter(format), |bencher| {
                bencher.iter(|| multiply(Values::F32(black_box(&x)), m, &w, None, ValuesMut::F32(&mut out)));
            });
            if text == "int8:channel" {
                let name = format!("{format} x {format}");
                multiply_integer(Values::F32(&x), m, format, None, &w, Bias::None, ValuesMut::F32(&mut out))?;
                group.bench_function(BenchmarkId::from_parameter(name), |bencher| {
                    bencher.iter(|| {
                        let out = ValuesMut::F32(&mut out);
                        multiply_integer(Values::F32(black_box(&x)), m, format, None, &w, Bias::None, out)
                    });
                });
            }
        }
        group.finish();
    }
    Ok(())
}

#[expect(clippy::print_stderr, reason = "the report of a bench is its standard error and output")]
fn main() -> ExitCode {
    let mut criterion = Criterion::default().configure_from_args();
    eprintln!("SIMD level {}, {} threads", Level::current().name(), pool::num_threads());
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
