//! NVIDIA's driver through cudarc: loaded at run time, and checked for every function before the first call.

use std::ffi::{CStr, c_char, c_int};
use std::panic::catch_unwind;
use std::ptr::null;
use std::sync::OnceLock;

use cudarc::driver::sys;

use crate::{Error, Result};

/// Every function that this crate calls; a driver that lacks one is too old, and cudarc would panic at the call.
const NEEDED: [&str; 22] = [
    "cuInit",
    "cuDriverGetVersion",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuDeviceGetCount",
    "cuDeviceGet",
    "cuDeviceGetName",
    "cuDeviceGetAttribute",
    "cuDeviceTotalMem_v2",
    "cuDevicePrimaryCtxRetain",
    "cuCtxGetCurrent",
    "cuCtxPushCurrent_v2",
    "cuCtxPopCurrent_v2",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuModuleGetFunction",
    "cuFuncGetAttribute",
    "cuFuncSetAttribute",
    "cuLaunchKernelEx",
    "cuStreamIsCapturing",
    "cuStreamSynchronize",
    "cuThreadExchangeStreamCaptureMode",
];

/// The initialized driver.
pub(crate) struct Driver {
    /// The CUDA version it belongs to, as `1000 * major + 10 * minor`.
    pub(crate) version: u32,
    /// Devices that this process sees.
    pub(crate) devices: i32,
    /// The process that initialized it: a fork of it has no CUDA.
    process: u32,
}

impl Driver {
    /// The driver, initialized at the first call that succeeds.
    pub(crate) fn get() -> Result<&'static Self> {
        static FOUND: OnceLock<Driver> = OnceLock::new();
        if let Some(driver) = FOUND.get() {
            driver.same_process()?;
            return Ok(driver);
        }
        let found = catch_unwind(Self::initialize)
            .unwrap_or_else(|_| Err(Error::Unavailable("the NVIDIA driver's library cannot be loaded".to_owned())))?;
        Ok(FOUND.get_or_init(|| found))
    }

    fn same_process(&self) -> Result<()> {
        if self.process == std::process::id() {
            return Ok(());
        }
        Err(Error::Unavailable(format!(
            "process {} is a fork of process {}, which had initialized CUDA; CUDA does not survive a fork. Start workers \
             with the 'spawn' or 'forkserver' method",
            std::process::id(),
            self.process
        )))
    }

    fn initialize() -> Result<Self> {
        // SAFETY: the driver's initializers run, as in every program that uses CUDA.
        if !unsafe { sys::is_culib_present() } {
            return Err(Error::Unavailable(
                "no NVIDIA driver: the loader finds neither libcuda.so nor libcuda.so.1. On a machine with a GPU install \
                 the driver; in a container start it with access to the GPU (docker run --gpus all)"
                    .to_owned(),
            ));
        }
        // SAFETY: present; addresses are looked up, not called.
        let missing = unsafe {
            let library = sys::culib();
            NEEDED.into_iter().find(|name| library.get::<*const ()>(name.as_bytes()).is_err())
        };
        if let Some(name) = missing {
            return Err(Error::Unavailable(format!("the NVIDIA driver has no {name}: it is too old; update it")));
        }
        // SAFETY: all functions are there.
        let status = unsafe { sys::cuInit(0) };
        if status != sys::CUresult::CUDA_SUCCESS {
            let (name, text) = describe(status);
            let hint = match status as u32 {
                34 => "; a stub library of a toolkit was found instead of the driver: remove it from LD_LIBRARY_PATH",
                3 => "; a process forked after CUDA was initialized cannot use it: start it with 'spawn'",
                100 => "; CUDA_VISIBLE_DEVICES may hide all devices",
                _ => "",
            };
            return Err(Error::Unavailable(format!("the NVIDIA driver does not start: {name}, {text}{hint}")));
        }
        let (mut version, mut devices) = (0, 0);
        // SAFETY: both are valid for writes.
        unsafe {
            check(sys::cuDriverGetVersion(&raw mut version), || "the driver's version".to_owned())?;
            check(sys::cuDeviceGetCount(&raw mut devices), || "the number of devices".to_owned())?;
        }
        Ok(Self { version: u32::try_from(version).unwrap_or(0), devices, process: std::process::id() })
    }

    /// Major version of CUDA whose code it takes.
    pub(crate) fn major(&self) -> u32 {
        self.version / 1000
    }
}

/// Turns a result into an error that says what was being done.
pub(crate) fn check(status: sys::CUresult, what: impl FnOnce() -> String) -> Result<()> {
    if status == sys::CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let (name, text) = describe(status);
    Err(Error::Driver { what: what(), name, code: status as u32, text })
}

/// What the driver calls a result, and what it says about it.
fn describe(status: sys::CUresult) -> (String, String) {
    let of = |ask: unsafe fn(sys::CUresult, *mut *const c_char) -> sys::CUresult| {
        let mut text = null();
        // SAFETY: the driver writes the address of a static text, or null.
        unsafe {
            let known = ask(status, &raw mut text) == sys::CUresult::CUDA_SUCCESS && !text.is_null();
            if known { CStr::from_ptr(text).to_string_lossy().into_owned() } else { "an unknown error".to_owned() }
        }
    };
    (of(sys::cuGetErrorName), of(sys::cuGetErrorString))
}

/// One number about a device.
pub(crate) fn attribute(device: sys::CUdevice, which: sys::CUdevice_attribute) -> Result<u32> {
    let mut value: c_int = 0;
    // SAFETY: valid for writes.
    check(unsafe { sys::cuDeviceGetAttribute(&raw mut value, which, device) }, || format!("{which:?}"))?;
    Ok(u32::try_from(value).unwrap_or(0))
}
