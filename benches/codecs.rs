//! Bandwidth of `encode`, `decode` and `quantize` for every family at three sizes, each next to a copy of the same size.
//!
//! Throughput counts the float32 side only (4 bytes an element), so that formats, operations and the copy compare directly.
//! `cargo bench -p octavo-benches --bench codecs [-- FILTER]`; benches are named `operation/size/format`, see README.md here.

use std::hint::black_box;
use std::mem::{Discriminant, discriminant};
use std::process::ExitCode;
use std::time::Duration;

use criterion::{BenchmarkGroup, BenchmarkId, Criterion, SamplingMode, Throughput, measurement::WallTime};
use octavo_core::format::{Element, Format, catalogue};
use octavo_core::{Error, Layout, Level, Options, Packed, PackedMut, Result, Sizes, Values, ValuesMut, codec, pool};

/// At least one format of every family; `benched_formats` holds the list to that.
const FORMATS: &str = "bf16 fixed8.4 fixed8 int8 int4:g32 uint4:g32 e4m3 e3m2 denorm8e4 log8 binary binary2:channel \
                       ternary bfp8/16 bm8e4/16 blog8/16 mxint8 mxint4 mxfp8e4m3 mxfp8e5m2 mxfp6e2m3 mxfp4 nvfp4 nf4";
/// Rows of the benched tensors are the length of a wide layer.
const ROW: usize = 4096;
/// Name and number of rows. As float32 these are 256 KiB, 4 MiB and 64 MiB: the caches of a core, the shared cache, memory.
const SIZES: [(&str, usize); 3] = [("64Ki", 16), ("1Mi", 256), ("16Mi", 4096)];

/// The buffers of one format at one size.
struct Parts {
    codes: Vec<u8>,
    scales: Vec<u8>,
    zeros: Vec<u8>,
    levels: Vec<u8>,
}

impl Parts {
    fn new(sizes: &Sizes) -> Self {
        Self {
            codes: vec![0; sizes.codes],
            scales: vec![0; sizes.scales],
            zeros: vec![0; sizes.zeros],
            levels: vec![0; sizes.levels],
        }
    }
    fn read(&self) -> Packed<'_> {
        Packed { codes: &self.codes, scales: &self.scales, zeros: &self.zeros, levels: &self.levels }
    }
    fn write(&mut self) -> PackedMut<'_> {
        PackedMut { codes: &mut self.codes, scales: &mut self.scales, zeros: &mut self.zeros, levels: &mut self.levels }
    }
}

/// Standard normal values, the same in every run: Box-Muller over a 64-bit linear congruential generator.
fn normal(count: usize) -> Vec<f32> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 40) as f32 + 0.5) / (1u32 << 24) as f32
    };
    (0..count).map(|_| (-2.0 * uniform().ln()).sqrt() * (std::f32::consts::TAU * uniform()).cos()).collect()
}

/// Family of a format as a value that can be compared; signed and unsigned integers are two families.
fn family(format: Format) -> (Discriminant<Element>, bool) {
    (discriminant(&format.element()), format.has_zeros())
}

/// The benched formats. A family of the catalogue that has none is an error, so that a new family is not forgotten.
fn benched_formats() -> Result<Vec<Format>> {
    let formats: Vec<Format> = FORMATS.split_whitespace().map(Format::parse).collect::<Result<_>>()?;
    for text in catalogue() {
        let listed = family(Format::parse(text)?);
        if !formats.iter().any(|&format| family(format) == listed) {
            return Err(Error::format(format!("no bench for the family of '{text}'; add one to FORMATS")));
        }
    }
    Ok(formats)
}

/// Copies on as many threads as the codecs use, and like them serially where the data is small.
fn copy(threads: usize, from: &[f32], to: &mut [f32]) {
    let piece = from.len().div_ceil(threads);
    let pieces = to.chunks_mut(piece).zip(from.chunks(piece)).collect();
    let copied = pool::consume(pieces, size_of_val(from), |(to, from): (&mut [f32], &[f32])| to.copy_from_slice(from));
    assert!(copied.is_ok());
}

/// A group of benches that starts with the copy they are read against. Ten flat samples: the machine's noise is larger
/// than what more samples would resolve, and the whole run has to stay short.
fn group<'a>(
    criterion: &'a mut Criterion,
    operation: &str,
    size: &str,
    threads: usize,
    x: &[f32],
    out: &mut [f32],
) -> BenchmarkGroup<'a, WallTime> {
    let mut group = criterion.benchmark_group(format!("{operation}/{size}"));
    group
        .throughput(Throughput::Bytes(size_of_val(x) as u64))
        .sampling_mode(SamplingMode::Flat)
        .sample_size(10)
        .nresamples(2000)
        .warm_up_time(Duration::from_millis(150))
        .measurement_time(Duration::from_millis(400));
    group.bench_function("copy", |bencher| bencher.iter(|| copy(threads, black_box(x), out)));
    group
}

fn bench(criterion: &mut Criterion) -> Result<()> {
    let formats = benched_formats()?;
    let options = Options::default();
    let threads = pool::num_threads();
    let most = SIZES.iter().map(|&(_, rows)| rows * ROW).max().unwrap_or(0);
    let all = normal(most);
    let mut all_out = vec![0.0; most];
    for (size, rows) in SIZES {
        let (x, out) = (&all[..rows * ROW], &mut all_out[..rows * ROW]);

        let mut encode = group(criterion, "encode", size, threads, x, out);
        for &format in &formats {
            let layout = Layout::new(&[rows, ROW], -1, format)?;
            let mut parts = Parts::new(&Sizes::new(format, &layout)?);
            codec::encode(Values::F32(x), layout, format, &options, parts.write())?; // a refusal shows here, untimed
            encode.bench_function(BenchmarkId::from_parameter(format), |bencher| {
                bencher.iter(|| codec::encode(Values::F32(black_box(x)), layout, format, &options, parts.write()));
            });
        }
        encode.finish();

        let mut decode = group(criterion, "decode", size, threads, x, out);
        for &format in &formats {
            let layout = Layout::new(&[rows, ROW], -1, format)?;
            let mut parts = Parts::new(&Sizes::new(format, &layout)?);
            codec::encode(Values::F32(x), layout, format, &options, parts.write())?;
            codec::decode(parts.read(), layout, format, ValuesMut::F32(out))?;
            decode.bench_function(BenchmarkId::from_parameter(format), |bencher| {
                bencher.iter(|| codec::decode(black_box(parts.read()), layout, format, ValuesMut::F32(out)));
            });
        }
        decode.finish();

        let mut quantize = group(criterion, "quantize", size, threads, x, out);
        for &format in &formats {
            let layout = Layout::new(&[rows, ROW], -1, format)?;
            codec::quantize(Values::F32(x), layout, format, &options, ValuesMut::F32(out))?;
            quantize.bench_function(BenchmarkId::from_parameter(format), |bencher| {
                bencher
                    .iter(|| codec::quantize(Values::F32(black_box(x)), layout, format, &options, ValuesMut::F32(out)));
            });
        }
        quantize.finish();
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
