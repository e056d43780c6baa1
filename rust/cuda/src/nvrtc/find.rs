//! The search for NVRTC, and the error that lists every place that was tried.

use std::fs;
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use super::Nvrtc;
use crate::settings::Settings;
use crate::{Error, Result};

/// Major versions that are looked for, the newest first.
const MAJORS: [u32; 2] = [13, 12];
/// Folders of NVIDIA's wheels below site-packages: of CUDA 13 and of CUDA 12.
const WHEELS: [&str; 2] = ["nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib"];
/// Folders of a toolkit that hold libraries.
const TOOLKIT: [&str; 3] = ["lib64", "lib", "targets/x86_64-linux/lib"];
#[cfg(target_os = "linux")]
const RTLD_NOLOAD: i32 = 4;
#[cfg(not(target_os = "linux"))]
const RTLD_NOLOAD: i32 = 0x10;

/// What was tried, in order, with the reason each was passed over.
struct Tried(Vec<String>);

pub(super) fn find(settings: &Settings, newest: Option<u32>) -> Result<Nvrtc> {
    let mut tried = Tried(Vec::new());
    if let Some(given) = &settings.nvrtc {
        let paths = if given.is_dir() { libraries(given, newest) } else { vec![given.clone()] };
        if paths.is_empty() {
            tried.0.push(format!("{}: no libnvrtc.so.{}", given.display(), majors(newest)));
        }
        return first(&paths, newest, &mut tried).ok_or_else(|| {
            Error::Unavailable(format!("OCTAVO_NVRTC names no NVRTC that can be used:\n{}", tried.text()))
        });
    }
    if let Some(loaded) = loaded(newest, &mut tried) {
        return Ok(loaded);
    }
    let (with, without): (Vec<&PathBuf>, Vec<&PathBuf>) =
        settings.packages.iter().partition(|folder| folder.join("nvidia").is_dir());
    tried.0.extend(without.iter().map(|folder| format!("{}: no package of NVIDIA's", folder.display())));
    let wheels = with.iter().flat_map(|folder| WHEELS.map(|wheel| folder.join(wheel)));
    let toolkit = settings.toolkit.iter().flat_map(|folder| TOOLKIT.map(|lib| folder.join(lib)));
    for folder in wheels.chain(toolkit) {
        let paths = libraries(&folder, newest);
        if paths.is_empty() {
            tried.0.push(format!("{}: not there", folder.display()));
        }
        if let Some(found) = first(&paths, newest, &mut tried) {
            return Ok(found);
        }
    }
    let names: Vec<PathBuf> = accepted(newest).map(|major| PathBuf::from(format!("libnvrtc.so.{major}"))).collect();
    first(&names, newest, &mut tried).ok_or_else(|| {
        let major = newest.map_or(MAJORS[0], |newest| newest.min(MAJORS[0]));
        let wheel = if major >= 13 { "nvidia-cuda-nvrtc" } else { "nvidia-cuda-nvrtc-cu12" };
        Error::Unavailable(format!(
            "NVRTC, the compiler of CUDA kernels, was not found; install it (pip install {wheel}) or name it with \
             OCTAVO_NVRTC. Looked for:\n{}",
            tried.text()
        ))
    })
}

/// Major versions whose code the driver takes, the newest first.
fn accepted(newest: Option<u32>) -> impl Iterator<Item = u32> {
    MAJORS.into_iter().filter(move |&major| newest.is_none_or(|newest| major <= newest))
}

fn majors(newest: Option<u32>) -> String {
    accepted(newest).map(|major| major.to_string()).collect::<Vec<_>>().join(" or ")
}

/// The compilers inside a folder.
fn libraries(folder: &Path, newest: Option<u32>) -> Vec<PathBuf> {
    let named = accepted(newest).map(|major| folder.join(format!("libnvrtc.so.{major}")));
    named.filter(|path| path.exists()).collect()
}

/// A compiler that something else in this process loaded, such as PyTorch.
fn loaded(newest: Option<u32>, tried: &mut Tried) -> Option<Nvrtc> {
    for major in accepted(newest) {
        let name = format!("libnvrtc.so.{major}");
        // SAFETY: RTLD_NOLOAD loads nothing, so no initializer runs.
        match unsafe { Library::open(Some(&name), RTLD_NOLOAD | RTLD_NOW) } {
            Ok(library) => match Nvrtc::open(&mapped(&name), library.into(), None) {
                Ok(found) => return Some(found),
                Err(reason) => tried.0.push(format!("{name}, already loaded: {reason}")),
            },
            Err(_) => tried.0.push(format!("{name}, loaded by another package: none")),
        }
    }
    None
}

/// The file that a loaded library came from, where the system tells.
fn mapped(name: &str) -> PathBuf {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let file = maps.lines().filter_map(|line| line.find('/').and_then(|start| line.get(start..)));
    file.map(Path::new)
        .find(|path| path.file_name().is_some_and(|file| file == name))
        .unwrap_or(Path::new(name))
        .to_owned()
}

/// The first of `paths` that can be used.
fn first(paths: &[PathBuf], newest: Option<u32>, tried: &mut Tried) -> Option<Nvrtc> {
    for path in paths {
        let found = open(path);
        match found {
            Ok(found) if newest.is_some_and(|newest| found.version.0 > newest) => {
                let (major, minor) = found.version;
                tried.0.push(format!("{}: NVRTC {major}.{minor} is newer than the driver", path.display()));
            }
            Ok(found) => return Some(found),
            Err(reason) => tried.0.push(format!("{}: {reason}", path.display())),
        }
    }
    None
}

/// Loads a compiler, after its built-in functions: version 13.0 finds those only where they are loaded already.
fn open(path: &Path) -> std::result::Result<Nvrtc, String> {
    let builtins = builtins(path);
    // SAFETY: the library's initializers run. It is NVIDIA's, or what the user's settings or the loader take for it: whoever
    // decides about those decides about this process.
    let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
    let library = library.map_err(|error| reason(path, &error))?;
    let named = if path.is_absolute() { path.to_owned() } else { mapped(&path.to_string_lossy()) };
    Nvrtc::open(&named, library.into(), builtins.map(Into::into))
}

fn builtins(path: &Path) -> Option<Library> {
    let major = path.file_name()?.to_str()?.strip_prefix("libnvrtc.so.")?;
    let major = major.split('.').next()?;
    let beside = fs::read_dir(path.parent()?).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    let prefix = format!("libnvrtc-builtins.so.{major}.");
    let mut beside: Vec<PathBuf> = beside
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&prefix)))
        .collect();
    beside.sort_unstable();
    // SAFETY: as in `open`.
    unsafe { Library::open(Some(beside.first()?), RTLD_NOW | RTLD_LOCAL) }.ok()
}

fn reason(path: &Path, error: &libloading::Error) -> String {
    if path.is_absolute() && !path.exists() {
        return "not there".to_owned();
    }
    let text = match std::error::Error::source(error) {
        Some(source) => source.to_string(),
        None => error.to_string(),
    };
    let text = text.strip_prefix(&format!("{}: ", path.display())).unwrap_or(&text).to_owned();
    if text.contains("cannot open shared object file: No such file") {
        "not on the loader's path".to_owned()
    } else {
        text
    }
}

impl Tried {
    fn text(&self) -> String {
        self.0.iter().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
    }
}
