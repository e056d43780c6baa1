//! Settings from the environment. Only this module reads it; Python adds the folders of its packages.

use std::env;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use crate::{Error, Result};

/// Where compiled kernels are kept between processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Nowhere, and why: each process compiles what it needs.
    Off(&'static str),
    /// In this folder, which somebody named: one that cannot be trusted is an error.
    Folder(PathBuf),
    /// In this folder of the user's cache; in memory where it cannot be written or trusted.
    Default(PathBuf),
}

/// Where libraries and compiled kernels are looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The compiler's library, or the folder that holds it. Nothing else is tried then.
    pub nvrtc: Option<PathBuf>,
    /// Folders that hold installed Python packages, in order: NVIDIA's wheels lie in `nvidia` below them.
    pub packages: Vec<PathBuf>,
    /// Folder of a CUDA toolkit.
    pub toolkit: Option<PathBuf>,
    /// Where compiled kernels are kept.
    pub keep: Keep,
    /// Wait after every launch, so that an error names the kernel that made it, and compile with line numbers.
    pub synchronize: bool,
    /// Use no kernel that only some devices run: those for all take their place, with the same results.
    pub plain: bool,
}

impl Settings {
    /// Reads `OCTAVO_NVRTC`, `CUDA_HOME` or `CUDA_PATH`, `OCTAVO_CACHE_DIR` or `XDG_CACHE_HOME`, `OCTAVO_CUDA_SYNC` and
    /// `OCTAVO_CUDA_PLAIN`.
    ///
    /// An error where one of the last two is neither 0 nor 1.
    pub fn from_environment() -> Result<Self> {
        let path = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let caches = path("XDG_CACHE_HOME").or_else(|| path("HOME").map(|home| home.join(".cache")));
        let keep = match path("OCTAVO_CACHE_DIR") {
            Some(folder) if folder.as_os_str().eq_ignore_ascii_case("off") => Keep::Off("OCTAVO_CACHE_DIR=off"),
            Some(folder) => Keep::Folder(folder),
            None => match caches {
                Some(folder) => Keep::Default(folder.join("octavo").join("cubin")),
                None => Keep::Off("none of OCTAVO_CACHE_DIR, XDG_CACHE_HOME and HOME names a folder"),
            },
        };
        let switch = |name: &str| match env::var_os(name) {
            Some(given) if given == "1" => Ok(true),
            Some(given) if !given.is_empty() && given != "0" => {
                Err(Error::Setting(format!("{name}={given:?}; accepted are 0 and 1")))
            }
            _ => Ok(false),
        };
        Ok(Self {
            nvrtc: path("OCTAVO_NVRTC"),
            packages: Vec::new(),
            toolkit: path("CUDA_HOME").or_else(|| path("CUDA_PATH")),
            keep,
            synchronize: switch("OCTAVO_CUDA_SYNC")?,
            plain: switch("OCTAVO_CUDA_PLAIN")?,
        })
    }
}

static CURRENT: RwLock<Option<Arc<Settings>>> = RwLock::new(None);
static SYNCHRONISE: AtomicBool = AtomicBool::new(false);
static PLAIN: AtomicBool = AtomicBool::new(false);

/// Replaces the settings. Libraries that are loaded stay.
pub fn configure(settings: Settings) {
    SYNCHRONISE.store(settings.synchronize, Ordering::Relaxed);
    PLAIN.store(settings.plain, Ordering::Relaxed);
    *CURRENT.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(settings));
}

/// The settings in force: those last given, else those of the environment.
pub fn current() -> Result<Arc<Settings>> {
    if let Some(settings) = &*CURRENT.read().unwrap_or_else(PoisonError::into_inner) {
        return Ok(settings.clone());
    }
    configure(Settings::from_environment()?);
    current()
}

/// Whether launches wait for their kernels; asked at every launch.
pub(crate) fn synchronize() -> bool {
    SYNCHRONISE.load(Ordering::Relaxed)
}

/// Whether kernels for some devices only are left aside; asked at every product.
pub(crate) fn plain() -> bool {
    PLAIN.load(Ordering::Relaxed)
}
