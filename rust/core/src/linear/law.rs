//! The law of the table: the kernel that [`kernel`] names is the one that runs, counted by the kernels themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use super::*;
use crate::codec::{self, DType, Layout, Options, Packed, PackedMut, Sizes, Values, ValuesMut};
use crate::format::catalogue;
use crate::linear::encoded_sample::noise;
use crate::pool;
use crate::simd::Processor;
use crate::sparse::{self, Shape, Sparse};

#[path = "../../tests/common/fewer.rs"]
mod fewer;

use fewer::fewer;

/// Formats beside those of the catalogue: long and odd groups, and those of a row.
const MORE: &str = "int4:g64 uint4:g128 int5:g32 bfp6/16 int2:tensor uint7:g16 int12 int8:g192 int4:channel int8:channel \
                    binary2 int4:g7 int8:tensor uint8:g32 int8:g64 int3 int6:channel";
/// Of inputs.
const INPUTS: &str = "bf16 fp16 int8:g32 int8:g64 int8:channel int8:tensor mxint8 nvfp4 mxfp6e2m3 int4:g32 mxfp4 int8 int4 \
                      int4:channel bfp8/16 mxfp8e4m3 uint8:g32 ternary nf4 int12";
/// Rows and columns of weights, on both sides of the bounds of the table.
const SIZES: [(usize, usize); 16] = [
    (1, 1),
    (1, 7),
    (5, 33),
    (16, 64),
    (63, 65),
    (64, 64),
    (127, 129),
    (128, 128),
    (70, 300),
    (63, 520),
    (64, 512),
    (33, 1001),
    (512, 64),
    (1, 65_537),
    (1024, 1024),
    (1040, 1030),
];
/// Rows of inputs, on both sides of the bounds.
const ROWS: [usize; 24] =
    [1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 300, 1000, 4096];

/// Held while a test limits the processor, which is the same for all threads.
static LIMIT: Mutex<()> = Mutex::new(());

/// Numbers without a pattern.
struct Random(u64);

impl Random {
    fn below(&mut self, count: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % count
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}

/// Encoded weights.
struct Weights {
    format: Format,
    parts: [Vec<u8>; 4],
    shape: Shape,
    /// Codes that are not 0, the bitmap and the starts of panels.
    sparse: Option<(Vec<u8>, Vec<u64>, Vec<u64>)>,
}

impl Weights {
    fn new(format: Format, (rows, columns): (usize, usize)) -> Self {
        let values: Vec<f32> = (0..rows * columns).map(noise).collect();
        let layout = Layout::new(&[rows, columns], -1, format).unwrap();
        let sizes = Sizes::new(format, &layout).unwrap();
        let mut parts = [sizes.codes, sizes.scales, sizes.zeros, sizes.levels].map(|bytes| vec![0; bytes]);
        let [codes, scales, zeros, levels] = &mut parts;
        let to = PackedMut { codes, scales, zeros, levels };
        codec::encode(Values::F32(&values), layout, format, &Options::default(), to).unwrap();
        let shape = Shape { rows, columns };
        let sparse = sparse::takes(format).then(|| {
            let (codes, width) = (&parts[0], format.width());
            let nonzero = sparse::count(codes, width, shape).unwrap();
            let mut to = vec![0; sparse::code_bytes(nonzero, width).unwrap()];
            let mut bitmap = vec![0; shape.words().unwrap()];
            sparse::compress(codes, width, shape, nonzero, &mut to, &mut bitmap).unwrap();
            let starts = sparse::starts(&bitmap, shape, nonzero).unwrap();
            (to, bitmap, starts)
        });
        Self { format, parts, shape, sparse }
    }

    fn packed(&self) -> Packed<'_> {
        let [codes, scales, zeros, levels] = &self.parts;
        Packed { codes, scales, zeros, levels }
    }
}

/// Runs a problem, as callers of the public functions do; false where they refuse it.
fn run(problem: &Problem, weights: &Weights, x: &[f32], halves: &[u16]) -> bool {
    let (m, n, k) = (problem.rows, problem.columns, problem.depth);
    let w = Matrix { format: weights.format, packed: weights.packed(), rows: n, columns: k };
    let (x, halves) = (&x[..m * k], &halves[..m * k]);
    let (mut out, mut narrow, options) = (vec![0.0f32; m * n], vec![0u16; m * n], Options::default());
    let result = match (problem.storage, problem.input, problem.batch) {
        (Storage::Sparse, ..) => {
            let Some((codes, bitmap, starts)) = &weights.sparse else { return false };
            let packed = Packed { codes: &[], zeros: &[], ..w.packed };
            let sparse = Sparse { codes, bitmap, starts };
            let w = SparseMatrix { format: weights.format, sparse, packed, shape: weights.shape };
            multiply_sparse(Values::F32(x), m, &w, None, ValuesMut::F32(&mut out))
        }
        (Storage::Prepared, ..) => {
            let prepared = Prepared::new(&w).unwrap();
            multiply_batch_invariant(x, m, &w, prepared.as_ref(), None, &mut out)
        }
        (_, Input::Plain(_), Batch::Invariant) => multiply_batch_invariant(x, m, &w, None, None, &mut out),
        (_, Input::Plain(_), Batch::Independent) => multiply_rows_independently(x, m, &w, None, &mut out),
        (_, Input::Plain(DType::F32), _) => multiply(Values::F32(x), m, &w, None, ValuesMut::F32(&mut out)),
        (_, Input::Plain(DType::F16), _) => multiply(Values::F16(halves), m, &w, None, ValuesMut::F16(&mut narrow)),
        (_, Input::Plain(DType::BF16), _) => multiply(Values::BF16(halves), m, &w, None, ValuesMut::BF16(&mut narrow)),
        (_, Input::Rounded(input), Batch::Independent) => {
            multiply_rounded_rows_independently(x, m, input, &options, &w, None, &mut out)
        }
        (_, Input::Rounded(input), _) => {
            multiply_rounded(Values::F32(x), m, input, &options, &w, None, ValuesMut::F32(&mut out))
        }
        (_, Input::Integer(input), _) => {
            multiply_integer(Values::F32(x), m, input, None, &w, Bias::None, ValuesMut::F32(&mut out))
        }
    };
    result.is_ok()
}

/// The problem, whose weights are not prepared where they are refused: at the level `scalar`, and for extreme magnitudes.
fn as_prepared(problem: Problem, weights: &Weights) -> Problem {
    let w = Matrix { format: weights.format, packed: weights.packed(), rows: problem.columns, columns: problem.depth };
    let dense = problem.storage == Storage::Prepared && Prepared::new(&w).unwrap().is_none();
    Problem { storage: if dense { Storage::Dense } else { problem.storage }, ..problem }
}

/// A problem on the processor in use.
fn any_problem(random: &mut Random, format: Format, inputs: &[Format], (n, k): (usize, usize), work: usize) -> Problem {
    let fits = |rows: &usize| *rows == 1 || rows * n * k <= work;
    let rows = if random.below(3) == 0 { 1 + random.below(4096) } else { random.of(&ROWS) };
    let rows = Some(rows).filter(fits).unwrap_or_else(|| 1 + random.below((work / (n * k)).clamp(1, 40)));
    let (plain, input) = (Input::Plain(DType::F32), random.of(inputs));
    let integers: Vec<_> = inputs.iter().filter(|input| integer::check_formats(format, **input).is_ok()).collect();
    if !integers.is_empty() && random.below(3) == 0 {
        return Problem::new(format, Input::Integer(*random.of(&integers)), rows, n, k);
    }
    let invariant = |storage| (plain, storage, Batch::Invariant);
    let (input, storage, batch) = match random.below(12) {
        0 | 1 => (plain, Storage::Dense, Batch::Any),
        2 => (Input::Plain(random.of(&[DType::F16, DType::BF16])), Storage::Dense, Batch::Any),
        3 => (plain, Storage::Dense, Batch::Independent),
        4 => invariant(Storage::Dense),
        5 => invariant(Storage::Prepared),
        6 => (plain, Storage::Sparse, Batch::Any),
        7 => (Input::Integer(input), Storage::Dense, Batch::Any),
        9 if input.granularity() != crate::format::Granularity::Tensor && !input.has_levels() => {
            (Input::Rounded(input), Storage::Dense, Batch::Independent)
        }
        _ => (Input::Rounded(input), Storage::Dense, Batch::Any),
    };
    // Few rows of inputs are multiplied with sparse weights.
    let rows = if storage == Storage::Sparse { 1 + rows % 6 } else { rows };
    Problem { storage, batch, ..Problem::new(format, input, rows, n, k) }
}

/// Runs so many problems of at most so many multiplications on every processor of this machine, some of every format;
/// returns how many ran.
#[expect(clippy::print_stdout, reason = "how many problems agreed")]
fn hold(count: usize, work: usize) -> usize {
    let _limit = LIMIT.lock();
    let parse = |text: &&str| Format::parse(text).unwrap();
    let more: Vec<&str> = MORE.split_whitespace().collect();
    let formats: Vec<Format> = catalogue().iter().chain(&more).map(parse).collect();
    let inputs: Vec<Format> = INPUTS.split_whitespace().collect::<Vec<_>>().iter().map(parse).collect();
    let most = SIZES.iter().map(|(n, k)| k * (1 + 4096.min(work / (n * k)))).max().unwrap();
    let x: Vec<f32> = (0..most).map(|i| noise(i + 12_345)).collect();
    let halves: Vec<u16> = x.iter().map(|x| (x.to_bits() >> 16) as u16 & 0xbfff).collect();
    let mut random = Random(20_261_127);
    let (mut ran, mut refused, mut names) = (0, 0, BTreeMap::<&str, usize>::new());
    let (mut wrong, processors) = (Vec::new(), Processor::available());
    let processors: Vec<Processor> = processors.collect();
    for step in 0.. {
        if ran >= count && step >= formats.len() + 4 {
            break;
        }
        // Large weights take long to encode; each format has its turn.
        let sizes =
            if (step + step / formats.len()).is_multiple_of(8) { &SIZES[..] } else { &SIZES[..SIZES.len() - 3] };
        // Sums of so many columns have kernels of their own, which are seldom drawn.
        let weights = match step < 4 {
            true => Weights::new(Format::parse("int8:channel").unwrap(), (1, 65_537)),
            false => Weights::new(formats[step % formats.len()], random.of(sizes)),
        };
        let (n, k) = (weights.shape.rows, weights.shape.columns);
        for &processor in &processors {
            processor.limit();
            let work = if processor == Processor::Scalar { work / 16 } else { work };
            for _ in 0..4 {
                let problem = any_problem(&mut random, weights.format, &inputs, (n, k), work);
                let problem = as_prepared(problem, &weights);
                let named = kernel(&problem);
                ran::take();
                let runs = pool::alone(|| run(&problem, &weights, &x, &halves));
                let noted = ran::take();
                let kernels: Vec<&str> = noted.iter().copied().filter(|name| *name != ran::FALLBACK).collect();
                match named {
                    Ok(name) if runs && kernels == [name] => {
                        *names.entry(name).or_default() += 1;
                        ran += 1;
                    }
                    Err(_) if !runs && noted.is_empty() => refused += 1,
                    named => wrong.push(format!("{problem:?}: {named:?}, {noted:?}")),
                }
            }
        }
    }
    Processor::Amx.limit();
    println!("{ran} problems, {refused} refused, {} disagreements: {names:#?}", wrong.len());
    assert!(wrong.is_empty(), "{} of {ran}: {:#?}", wrong.len(), &wrong[..wrong.len().min(20)]);
    let here = kernels().filter(|kernel| Processor::available().any(|kind| kernel.processors.contains(&kind)));
    let missing: BTreeSet<&str> = here.map(|kernel| kernel.name).filter(|name| !names.contains_key(name)).collect();
    assert!(missing.is_empty(), "never run: {missing:?}");
    ran
}

#[test]
fn the_kernel_that_is_named_is_the_one_that_runs() {
    let count = fewer(10_000);
    assert!(hold(count, fewer(1 << 22)) >= count);
}

#[test]
#[ignore = "a minute: the same of more problems, and larger ones"]
fn the_kernel_that_is_named_is_the_one_that_runs_for_many_problems() {
    assert!(hold(100_000, 1 << 24) >= 100_000);
}
