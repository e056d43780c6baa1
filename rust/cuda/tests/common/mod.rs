//! What the tests share: programs, a compiler where there is one, and stand-ins for NVIDIA's libraries.

#![allow(dead_code, reason = "each test binary uses a part")]
#![allow(clippy::print_stderr, clippy::panic, reason = "a skipped test says why; a broken stand-in fails")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::{env, fs};

use octavo_cuda::nvrtc::Nvrtc;
use octavo_cuda::settings::{Keep, Settings};
use octavo_cuda::{Argument, Call, Program};

/// Settings that know of nothing.
pub(crate) fn bare() -> Settings {
    let keep = Keep::Off("a test");
    Settings { nvrtc: None, packages: Vec::new(), toolkit: None, keep, synchronize: false, plain: false }
}

/// Launches on the stand-in for the driver.
pub(crate) fn launch(device: i32, stream: u64, calls: &[Call]) -> octavo_cuda::Result<()> {
    // SAFETY: the stand-in writes down what it is given; it uses no stream and no memory that calls name.
    unsafe { octavo_cuda::launch(device, stream, calls) }
}

/// A real compiler: that of `OCTAVO_NVRTC`, of the active virtual environment, or of the machine.
pub(crate) fn nvrtc() -> Option<Nvrtc> {
    let mut settings = Settings::from_environment().ok()?;
    if let Some(venv) = env::var_os("VIRTUAL_ENV") {
        let versions = fs::read_dir(Path::new(&venv).join("lib")).into_iter().flatten().flatten();
        settings.packages = versions.map(|version| version.path().join("site-packages")).collect();
    }
    match Nvrtc::find(&settings, None) {
        Ok(found) => Some(found),
        Err(error) => {
            eprintln!("skipped: {error}");
            None
        }
    }
}

/// The lines that `nvdisasm` writes of one kernel; none where it is not found.
pub(crate) fn disassembled(cubin: &[u8], entry: &str) -> Option<Vec<String>> {
    let folder = tempfile::tempdir().ok()?;
    let file = folder.path().join("kernel.cubin");
    fs::write(&file, cubin).ok()?;
    let tool = env::var_os("OCTAVO_NVDISASM").unwrap_or_else(|| "nvdisasm".into());
    let Ok(listed) = Command::new(tool).arg("-c").arg(&file).output() else {
        eprintln!("skipped: no nvdisasm; OCTAVO_NVDISASM names one");
        return None;
    };
    let start = format!(".text.{entry}:");
    let text = String::from_utf8_lossy(&listed.stdout);
    let own = text.lines().skip_while(|line| !line.starts_with(&start)).skip(1);
    Some(own.take_while(|line| !line.starts_with(".text.")).map(|line| line.trim().to_owned()).collect())
}

/// A program of one source text.
pub(crate) fn program(
    name: &str,
    files: &'static [(&'static str, &'static str)],
    entries: &'static [&'static str],
) -> Program {
    Program { name: name.to_owned(), files, defines: Vec::new(), entries }
}

/// A small call of a kernel.
pub(crate) fn call(program: &Arc<Program>, entry: &'static str, arguments: Vec<Argument>) -> Call {
    Call { program: program.clone(), entry, grid: [3, 2, 1], block: [64, 2, 1], shared: 0, arguments, early: false }
}

/// Builds a stand-in from its C source under the name that loaders look for; none where there is no C compiler.
pub(crate) fn fake(source: &str, library: &str, folder: &Path) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fakes").join(source);
    let path = folder.join(library);
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-Wall", "-pthread", &format!("-Wl,-soname,{library}"), "-o"])
        .args([&path, &source])
        .status();
    match built {
        Ok(status) if status.success() => Some(path),
        Ok(status) => panic!("{} does not compile: {status}", source.display()),
        Err(_) => {
            eprintln!("skipped: there is no C compiler to build a stand-in with");
            None
        }
    }
}
