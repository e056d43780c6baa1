//! Codec kernels in machine code, where there is a compiler: registers, no spills, and the instructions of the hot ones.

#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test stops where its set-up fails, or says why it skips"
)]

mod common;

use octavo_core::Format;
use octavo_core::format::{Element, Granularity, catalogue};
use octavo_cuda::arch::{Arch, Target};
use octavo_cuda::codec::programs;
use octavo_cuda::nvrtc::{Nvrtc, usage};

use common::{disassembled, nvrtc};

/// Registers that a thread of each kernel may take. 40 leave room for 6 blocks of 256 threads, 64 for 4, 255 for 1.
fn registers(entry: &str, format: Format) -> u32 {
    let levels = matches!(format.element(), Element::Binary { .. });
    // Units of eight elements have one scale each.
    let plain = !levels && !matches!(format.granularity(), Granularity::Block(block) if !block.is_multiple_of(8));
    match entry {
        "decode" if plain => 40,
        "largest" | "choose_largest" | "pack_zeros" | "scale_join" => 40,
        "choose_sums" => 128,
        "encode" if levels => 255,
        _ => 64,
    }
}

fn arch(capability: u32) -> Arch {
    Arch::native(capability)
}

/// What breaks the budgets.
fn broken(nvrtc: &Nvrtc, texts: &[&str], archs: &[u32], dtype: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let (mut kernels, mut most) = (0, 0);
    for text in texts {
        let format = Format::parse(text).unwrap();
        for program in programs(format) {
            if !program.name.ends_with(dtype) {
                continue;
            }
            for &known in archs.iter().filter(|known| nvrtc.known.contains(known)) {
                let image = match nvrtc.compile(&program, Target::Cubin(arch(known))) {
                    Ok(image) => image,
                    Err(error) => {
                        wrong.push(error.to_string());
                        continue;
                    }
                };
                for kernel in usage(&image.log) {
                    let name = format!("{} {} sm_{known}", program.name, kernel.entry);
                    kernels += 1;
                    most = most.max(kernel.registers);
                    if kernel.spill_stores + kernel.spill_loads + kernel.stack > 0 {
                        wrong.push(format!("{name}: {kernel:?}"));
                    }
                    let allowed = registers(&kernel.entry, format);
                    if kernel.registers > allowed {
                        wrong.push(format!("{name}: {} registers of {allowed}", kernel.registers));
                    }
                }
            }
        }
    }
    eprintln!("{kernels} kernels, at most {most} registers");
    wrong
}

#[test]
fn kernels_of_a_few_formats_stay_within_their_budgets() {
    let Some(nvrtc) = nvrtc() else { return };
    let mut wrong = broken(&nvrtc, &["int8:channel"], &[80, 90], "bfloat16");
    wrong.extend(broken(&nvrtc, &["mxint8", "mxfp4"], &[80, 86, 89, 90, 100, 120], "bfloat16"));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
#[ignore = "compiles some 10,000 programs"]
fn all_kernels_stay_within_their_budgets() {
    let Some(nvrtc) = nvrtc() else { return };
    let more = ["int8:g512", "uint7:g5", "binary4:channel", "bfp6/7", "bm13e2/9", "nvfp4/5", "fixed32.16", "e8m10"];
    let texts: Vec<&str> = catalogue().iter().copied().chain(more).collect();
    let wrong = broken(&nvrtc, &texts, &[80, 86, 89, 90, 100, 120], "");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Instructions of one kernel in the order they are laid out, and its labels; none where they cannot be listed.
fn instructions(cubin: &[u8], entry: &str) -> Option<Vec<String>> {
    let mut lines = disassembled(cubin, entry)?;
    lines.retain(|line| line.starts_with("/*") || line.starts_with(".L_"));
    Some(lines)
}

/// Instructions that a thread executes where no branch for rare cases is taken: the first branch leads to the tail, short
/// ones around saturation.
fn executed(lines: &[String]) -> Vec<&str> {
    let at = |label: &str| lines.iter().position(|line| line.trim_end_matches(':') == label);
    let (mut i, mut done, mut branches) = (0, Vec::new(), 0);
    while let Some(line) = lines.get(i) {
        i += 1;
        let Some(text) = line.split("*/").nth(1).map(str::trim) else { continue };
        done.push(text);
        if let Some(label) =
            text.split_once("BRA `(").and_then(|(_, rest)| rest.split_once(')')).map(|(label, _)| label)
        {
            let target = at(label).unwrap();
            let around = branches > 0 && (i..i + 90).contains(&target);
            branches += 1;
            if around || !text.starts_with('@') {
                i = target;
            }
        }
        if text.starts_with("EXIT") || done.len() > 10_000 {
            break;
        }
    }
    done
}

#[test]
fn decoding_mxint8_takes_few_instructions() {
    let Some(nvrtc) = nvrtc() else { return };
    // Elements of a thread; loads of codes and stores that it makes; instructions an element.
    for (name, elements, load, most) in [
        ("decode-mxint8-bfloat16", 32, ".64", 8),
        ("decode-mxint8-float16", 32, ".64", 8),
        ("decode-mxint4-bfloat16", 32, "", 10),
    ] {
        let text = name.split('-').nth(1).unwrap();
        let program = programs(Format::parse(text).unwrap()).into_iter().find(|program| program.name == name).unwrap();
        for known in [80, 90].into_iter().filter(|known| nvrtc.known.contains(known)) {
            let image = nvrtc.compile(&program, Target::Cubin(arch(known))).unwrap();
            let Some(lines) = instructions(&image.code, "decode") else { return };
            let done = executed(&lines);
            let count = |word: &str| done.iter().filter(|text| text.contains(word)).count();
            assert_eq!(count("LDL") + count("STL"), 0, "{name} sm_{known}");
            assert_eq!(count("LDG.E.U8"), 4, "{name} sm_{known}: one scale a unit");
            let loads = done.iter().filter(|text| text.contains("LDG.E.NA") && text.contains(load)).count();
            assert_eq!(loads, 4, "{name} sm_{known}: one load of codes a unit");
            // Each store stands twice, for outputs that stay in the cache and for others.
            assert!(count("STG.E") >= 4 && count(".128") >= 4, "{name} sm_{known}");
            let spent = done.len();
            eprintln!("{name} sm_{known}: {:.2} instructions an element", spent as f64 / f64::from(elements));
            assert!(spent <= most * elements as usize, "{name} sm_{known}: {spent} instructions");
        }
    }
}
