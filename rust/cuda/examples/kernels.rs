//! Writes `docs/kernels.md`, which kernel multiplies what: `cargo run -p octavo-cuda --example kernels`.

use std::fmt::Write;

use octavo_core::format::catalogue;
use octavo_core::linear::{self, Input, Kernel, Problem};
use octavo_core::simd::Processor;
use octavo_core::{DType, Format, Level, Result};
use octavo_cuda::arch::{Arch, OLDEST};
use octavo_cuda::linear::{Device, kernel as cuda_kernel};

/// Rows and columns of the weights.
const SIZE: usize = 4096;
/// Rows of inputs that are asked about: all few ones, and some of the many, between two of which the kernel changes once.
const PROBES: [std::ops::RangeInclusive<usize>; 6] =
    [1..=70, 128..=128, 512..=512, 1024..=1024, 2048..=2048, 4096..=4096];
/// Formats beside those of the catalogue.
const MORE: &str = "int4:g64 int5:g32 uint4:g64 int12 q2_k q3_k q4_k q5_k q6_k";

fn main() -> std::io::Result<()> {
    let page = page().map_err(std::io::Error::other)?;
    std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/kernels.md"), page)
}

/// The text of the page.
pub(crate) fn page() -> Result<String> {
    let mut page = String::from(
        "# Kernels\n\n\
         Which kernel multiplies packed weights. `octavo.explain` and `octavo.linear.kernel` name it for a layer or a product. This page is written from the tables of the crates by \
         `cargo run -p octavo-cuda --example kernels`; a test holds it to them.\n\n\
         ## The table of CPU kernels\n\n\
         The first kernel that takes a product runs. Rows are those of the inputs; where results must not depend on their number, those of five rows, or of one, decide.\n\n\
         | kernel | processor | rows | weights | why the bounds are there |\n| --- | --- | --- | --- | --- |\n",
    );
    for kernel in linear::kernels().filter(|kernel| kernel.processors.end().level() != Level::Neon) {
        let Kernel { name, processors, min_weights, bounds, .. } = kernel;
        let (first, last) = (processors.start().name(), processors.end().name());
        let processors = match (processors.end(), first == last) {
            (_, true) => first.to_owned(),
            (Processor::Amx, _) => format!("from {first}"),
            _ => format!("{first} to {last}"),
        };
        let (min, max) = (kernel.min_rows.max(*kernel.call_rows.start()), kernel.max_rows.min(*kernel.call_rows.end()));
        let weights = if *min_weights > 1 { format!("from {min_weights}") } else { "any".to_owned() };
        _ = writeln!(page, "| {name} | {processors} | {} | {weights} | {bounds} |", range(min, max));
    }
    _ = write!(
        page,
        "\nProcessors: `avx2` has FMA and F16C, too; `avx512` is F, BW, DQ, VL and CD; `avx512 vbmi`, `avx512 vnni` (with VBMI2), `avx512 bf16` and `amx` each have the instructions of all before. \
         A processor that lacks one counts as the kind before it.\n\n\
         On 64-bit Arm, `int8 dot neon` multiplies integers where the processor has dot products of bytes, and `int8 lanes neon` elsewhere. \
         `fma neon` and `fma prepared neon` multiply numbers. Sparse weights are expanded.\n\n\
         ## Kernels by format\n\n\
         For weights of {SIZE} x {SIZE}. Smaller weights have smaller bounds, see above.\n",
    );
    for processor in Processor::ALL.into_iter().rev().filter(|processor| processor.level() != Level::Neon) {
        _ = write!(
            page,
            "\n### {}\n\n| inputs | weights | kernel by rows of inputs |\n| --- | --- | --- |\n",
            processor.name()
        );
        for (name, input) in inputs()? {
            let name_of = |format, rows| {
                let problem = Problem { processor, ..Problem::new(format, input, rows, SIZE, SIZE) };
                linear::kernel(&problem).ok().map(str::to_owned)
            };
            rows_of(&mut page, name, name_of)?;
        }
    }
    page.push_str("\n## CUDA\n\nWhere no kernel is named, weights are decoded and PyTorch multiplies.\n");
    let devices = [
        ("Compute capability 8.0 and above", Arch { capability: OLDEST, specific: false }),
        ("Hopper", Arch::native(90)),
    ];
    for (title, arch) in devices {
        let device = Device { multiprocessors: 132, arch };
        _ = write!(page, "\n### {title}\n\n| inputs | weights | kernel by rows of inputs |\n| --- | --- | --- |\n");
        for (name, input) in inputs()? {
            let (input, dtype) = match input {
                Input::Plain(dtype) => (None, dtype),
                Input::Integer(input) => (Some(input), DType::F32),
                Input::Rounded(_) => continue, // as plain ones
            };
            let name_of = |format, rows| match cuda_kernel(format, input, [rows, SIZE, SIZE], dtype, device) {
                Ok(name) => Some(name.unwrap_or("decode + torch").to_owned()),
                Err(_) => None,
            };
            rows_of(&mut page, name, name_of)?;
        }
    }
    Ok(page)
}

/// The inputs that are shown.
fn inputs() -> Result<[(&'static str, Input); 6]> {
    Ok([
        ("float32", Input::Plain(DType::F32)),
        ("bfloat16", Input::Plain(DType::BF16)),
        ("rounded to `int8:g32`", Input::Rounded(Format::parse("int8:g32")?)),
        ("rounded to `mxint8`", Input::Rounded(Format::parse("mxint8")?)),
        ("rounded to `mxfp4`", Input::Rounded(Format::parse("mxfp4")?)),
        ("integers `int8`", Input::Integer(Format::parse("int8")?)),
    ])
}

/// Lines of formats that have the same kernels.
fn rows_of(page: &mut String, input: &str, name_of: impl Fn(Format, usize) -> Option<String>) -> Result<()> {
    let mut groups: Vec<(String, Vec<&str>)> = Vec::new();
    for text in catalogue().iter().copied().chain(MORE.split_whitespace()) {
        let format = Format::parse(text)?;
        let mut spans: Vec<(usize, String)> = Vec::new();
        for (rows, name) in PROBES.into_iter().flatten().map_while(|rows| Some((rows, name_of(format, rows)?))) {
            let Some((_, last)) = spans.last().filter(|(_, last)| *last != name) else {
                if spans.is_empty() {
                    spans.push((rows, name));
                }
                continue;
            };
            // Between two probes the kernel changes once.
            let changed = (1..rows).rev().take_while(|rows| name_of(format, *rows).as_ref() != Some(last)).last();
            spans.push((changed.unwrap_or(rows), name));
        }
        let ends = spans.iter().skip(1).map(|(first, _)| first - 1).chain([usize::MAX]);
        let spans = spans.iter().zip(ends).map(|((first, name), end)| format!("{}: {name}", range(*first, end)));
        let text_of_spans = spans.collect::<Vec<_>>().join("; ");
        match groups.iter_mut().find(|(spans, _)| *spans == text_of_spans) {
            _ if text_of_spans.is_empty() => {}
            Some((_, formats)) => formats.push(text),
            None => groups.push((text_of_spans, vec![text])),
        }
    }
    for (spans, formats) in groups {
        _ = writeln!(page, "| {input} | `{}` | {spans} |", formats.join("` `"));
    }
    Ok(())
}

/// Numbers from one to another.
fn range(min: usize, max: usize) -> String {
    match (min, max) {
        (0 | 1, usize::MAX) => "any".to_owned(),
        (_, usize::MAX) => format!("from {min}"),
        _ if min == max => min.to_string(),
        (0 | 1, _) => format!("up to {max}"),
        _ => format!("{min} to {max}"),
    }
}
