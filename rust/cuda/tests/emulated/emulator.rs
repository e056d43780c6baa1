//! Compiles programs with g++ and runs calls on buffers of bytes.

use std::collections::hash_map::DefaultHasher;
use std::fmt::Write as _;
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use octavo_cuda::{Argument, Call, Program, TensorMap};

const KERNELS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/kernels");
const EMULATION: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/emulation");
/// Objects stay here from one run of the tests to the next, by the hash of what they were made of.
const TEMPORARY: &str = env!("CARGO_TARGET_TMPDIR");
const FLAGS: [&str; 10] = [
    "-std=c++17",
    "-O1",
    "-g1",
    "-fno-strict-aliasing",
    "-ffp-contract=off",
    "-fno-omit-frame-pointer",
    "-I",
    EMULATION,
    "-I",
    KERNELS,
];
/// What finds addresses out of bounds and undefined behaviour.
const BOUNDS: [&str; 2] = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
/// What finds races of the kernels' threads; the emulator itself only reports to it.
const RACES: [&str; 1] = ["-fsanitize=thread"];

/// The buffers of a device, as bytes.
#[derive(Default)]
pub(crate) struct Memory {
    buffers: Vec<(u32, Vec<u8>)>,
    /// Whether blocks and threads run from the last to the first, and copies land as soon instead of as late as they can.
    pub(crate) backwards: bool,
    /// Whether threads that touch the same memory without a barrier between them are a mistake, or bad addresses.
    pub(crate) races: bool,
    /// Bank conflicts of `load_matrices` so far.
    pub(crate) conflicts: u64,
}

impl Memory {
    /// Adds a buffer whose address is `offset` more than a multiple of 128, and returns the address.
    pub(crate) fn add(&mut self, bytes: &[u8], offset: u32) -> u64 {
        self.buffers.push((offset, bytes.to_vec()));
        ((self.buffers.len() as u64) << 40) + u64::from(offset)
    }

    /// The bytes at an address that [`Memory::add`] returned.
    pub(crate) fn bytes(&self, address: u64) -> &[u8] {
        &self.buffers[(address >> 40) as usize - 1].1
    }
}

/// Whether there is a compiler; says so where there is none.
pub(crate) fn available() -> bool {
    let found =
        cfg!(target_os = "linux") && Command::new("g++").arg("--version").output().is_ok_and(|o| o.status.success());
    if !found {
        eprintln!("skipped: no g++");
    }
    found
}

/// Runs calls in order. Panics with the emulator's words where a kernel errs.
pub(crate) fn emulate(calls: &[Call], memory: &mut Memory) {
    if let Err(message) = try_emulate(calls, memory) {
        panic!("{message}");
    }
}

/// Runs calls in order, or says what a kernel did wrong.
pub(crate) fn try_emulate(calls: &[Call], memory: &mut Memory) -> Result<(), String> {
    static JOBS: AtomicUsize = AtomicUsize::new(0);
    let job = Path::new(TEMPORARY).join(format!("job{}_{}", std::process::id(), JOBS.fetch_add(1, Ordering::Relaxed)));
    let out = job.with_extension("out");
    fs::write(&job, request(calls, memory)).unwrap();
    // Memory is freed as the process ends.
    let run = Command::new(emulator(memory.races))
        .arg(&job)
        .env("ASAN_OPTIONS", "detect_leaks=0:detect_stack_use_after_return=0")
        .env("TSAN_OPTIONS", "halt_on_error=1")
        .output();
    let run = run.unwrap();
    fs::remove_file(&job).unwrap();
    if !run.status.success() {
        return Err(String::from_utf8_lossy(&run.stderr).into_owned());
    }
    let all = fs::read(&out).unwrap();
    fs::remove_file(&out).unwrap();
    let (conflicts, mut rest) = all.split_first_chunk::<8>().unwrap();
    memory.conflicts += u64::from_le_bytes(*conflicts);
    for (_, bytes) in &mut memory.buffers {
        let (own, others) = rest.split_at(bytes.len());
        bytes.copy_from_slice(own);
        rest = others;
    }
    Ok(())
}

fn request(calls: &[Call], memory: &Memory) -> Vec<u8> {
    let mut job = Vec::new();
    job.extend((memory.buffers.len() as u32).to_le_bytes());
    for (offset, bytes) in &memory.buffers {
        job.extend(offset.to_le_bytes());
        job.extend((bytes.len() as u64).to_le_bytes());
        job.extend(bytes);
    }
    job.push(memory.backwards.into());
    job.extend((calls.len() as u32).to_le_bytes());
    for call in calls {
        for text in [library(&call.program, memory.races).to_str().unwrap(), call.entry, &call.program.name] {
            job.extend((text.len() as u32).to_le_bytes());
            job.extend(text.as_bytes());
        }
        let sizes = call.grid.into_iter().chain(call.block).chain([call.shared, call.arguments.len() as u32]);
        job.extend(sizes.flat_map(u32::to_le_bytes));
        job.push(call.early.into());
        for argument in &call.arguments {
            let (kind, value) = match *argument {
                Argument::Address(v) => (b'a', v),
                Argument::I32(v) => (b'i', u64::from(v as u32)),
                Argument::I64(v) => (b'l', v as u64),
                Argument::F32(v) => (b'f', u64::from(v.to_bits())),
                Argument::Map(map) => (b'm', map.address),
            };
            job.push(kind);
            job.extend(value.to_le_bytes());
            if let Argument::Map(map) = *argument {
                let of_box = [map.box_rows, TensorMap::BOX_COLUMNS].map(u64::from);
                job.extend([map.rows, map.columns, map.pitch].into_iter().chain(of_box).flat_map(u64::to_le_bytes));
            }
        }
    }
    job
}

fn emulator(races: bool) -> PathBuf {
    let text = fs::read_to_string(format!("{EMULATION}/emulator.cpp")).unwrap();
    let own = if races { &["-DRACES", "-ltsan"][..] } else { &BOUNDS };
    let background = concat!(env!("CARGO_MANIFEST_DIR"), "/emulation/hopper.cpp");
    built("emulator", &text, "cpp", &[&[background, "-rdynamic", "-ldl"], own].concat())
}

fn library(program: &Program, races: bool) -> PathBuf {
    let mut source = program.source();
    for entry in program.entries {
        let _ = writeln!(source, "ENTRY({entry})");
    }
    let own = if races { &RACES[..] } else { &BOUNDS };
    built(&program.name, &source, "cc", &[&["-shared", "-fPIC", "-w"], own].concat())
}

/// The object of a source, compiled unless an earlier run left it.
fn built(name: &str, source: &str, extension: &str, flags: &[&str]) -> PathBuf {
    static NAMES: AtomicUsize = AtomicUsize::new(0);
    let mut hasher = DefaultHasher::new();
    (source, FLAGS, flags).hash(&mut hasher);
    for file in
        ["shim.h", "hopper.h", "hopper.cpp", "fibres.h", "races.h", "../kernels/base.cu", "../kernels/hopper.cu"]
    {
        fs::read(format!("{EMULATION}/{file}")).unwrap().hash(&mut hasher);
    }
    let target = Path::new(TEMPORARY).join(format!("{name}-{:016x}", hasher.finish()));
    if !target.exists() {
        // Tests run side by side: whoever comes last renames over an equal file.
        let own = format!("{}.{}.{}", target.display(), std::process::id(), NAMES.fetch_add(1, Ordering::Relaxed));
        let text = format!("{own}.{extension}");
        fs::write(&text, source).unwrap();
        let run = Command::new("g++").args(FLAGS).arg(&text).args(flags).args(["-o", &own]).output().unwrap();
        assert!(run.status.success(), "g++ on {name}:\n{}", String::from_utf8_lossy(&run.stderr));
        fs::remove_file(&text).unwrap();
        fs::rename(&own, &target).unwrap();
    }
    target
}
