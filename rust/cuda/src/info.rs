//! Driver, devices, NVRTC and kernel cache of this machine. A missing part is a reason in the result, never an error.

use std::fs;
use std::path::PathBuf;

use crate::cache::Cache;
use crate::device::{Properties, facts_of};
use crate::driver::Driver;
use crate::nvrtc::Nvrtc;
use crate::settings;

/// Something that is there, or the reason why it is not.
pub type Found<T> = std::result::Result<T, String>;

/// The driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverInfo {
    /// Newest version of CUDA whose code it takes.
    pub cuda: (u32, u32),
    /// Its own version, where the system tells.
    pub release: Option<String>,
}

/// The compiler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvrtcInfo {
    /// Its file.
    pub path: PathBuf,
    /// Its version.
    pub version: (u32, u32),
    /// Compute capabilities that it compiles for.
    pub known: Vec<u32>,
}

/// The folder of compiled kernels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheInfo {
    /// The folder.
    pub folder: PathBuf,
    /// Kernels in it.
    pub entries: usize,
    /// Their bytes.
    pub bytes: u64,
}

/// Everything that decides whether and how kernels run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// The driver.
    pub driver: Found<DriverInfo>,
    /// Devices, in the order of their ordinals.
    pub devices: Vec<Found<Properties>>,
    /// The compiler.
    pub nvrtc: Found<NvrtcInfo>,
    /// The folder of compiled kernels.
    pub cache: Found<CacheInfo>,
}

/// Looks at the machine. Opens no device.
pub fn info() -> Info {
    let driver = Driver::get().map_err(|error| error.to_string());
    let nvrtc = Nvrtc::get().map_err(|error| error.to_string());
    let cache = settings::current().and_then(|settings| Cache::open(&settings.keep)).map_err(|error| error.to_string());
    Info {
        devices: (0..driver.as_ref().map_or(0, |driver| driver.devices))
            .map(|ordinal| facts_of(ordinal).map_err(|error| error.to_string()))
            .collect(),
        driver: driver.map(|driver| DriverInfo {
            cuda: (driver.version / 1000, driver.version % 1000 / 10),
            release: fs::read_to_string("/sys/module/nvidia/version").ok().map(|text| text.trim().to_owned()),
        }),
        nvrtc: nvrtc.map(|found| NvrtcInfo {
            path: found.path.clone(),
            version: found.version,
            known: found.known.clone(),
        }),
        cache: cache.and_then(|cache| {
            let (entries, bytes) = cache.size();
            let folder = cache.folder().map(ToOwned::to_owned);
            folder.map(|folder| CacheInfo { folder, entries, bytes }).ok_or_else(|| cache.why_not.unwrap_or_default())
        }),
    }
}
