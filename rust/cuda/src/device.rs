//! Devices: their properties, PyTorch's context on them, and the kernels loaded there.

use std::ffi::c_char;
use std::ptr::null_mut;
use std::sync::OnceLock;

use cudarc::driver::sys::{self, CUdevice_attribute as Fact};

use crate::driver::{Driver, attribute, check};
use crate::modules::Modules;
use crate::{Error, Result};

/// Devices of a machine that are told apart.
const MOST: usize = 64;

/// Properties of a device that decide how kernels are launched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Properties {
    /// Its name.
    pub name: String,
    /// Ten times the major and once the minor compute capability: 90 for a Hopper.
    pub capability: u32,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Bytes of shared memory that one block may have.
    pub shared_per_block: u32,
    /// Bytes of the L2 cache.
    pub cache: u32,
    /// Bytes of memory.
    pub memory: u64,
}

/// A device with its primary context, which is PyTorch's own.
pub(crate) struct Device {
    pub(crate) ordinal: i32,
    pub(crate) properties: Properties,
    pub(crate) modules: Modules,
    context: Context,
}

/// A handle that all threads may use.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Context(sys::CUcontext);
// SAFETY: the driver's contexts belong to no thread; a thread makes one current for itself.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// The facts of a device.
pub fn properties(device: i32) -> Result<&'static Properties> {
    Ok(&Device::get(device)?.properties)
}

/// Devices that this process sees; an error says why there are none.
pub fn devices() -> Result<i32> {
    match Driver::get()?.devices {
        0 => Err(Error::Unavailable("the NVIDIA driver sees no device; CUDA_VISIBLE_DEVICES may hide them".to_owned())),
        devices => Ok(devices),
    }
}

impl Device {
    /// The device of an ordinal, opened at the first call that succeeds and kept.
    pub(crate) fn get(ordinal: i32) -> Result<&'static Self> {
        static OPEN: [OnceLock<Device>; MOST] = [const { OnceLock::new() }; MOST];
        let driver = Driver::get()?;
        let slot = usize::try_from(ordinal).ok().filter(|_| ordinal < driver.devices).and_then(|at| OPEN.get(at));
        let Some(slot) = slot else {
            let count = devices()?;
            return Err(Error::Unavailable(format!(
                "device {ordinal} is not there; there are {count}, counted from 0"
            )));
        };
        match slot.get() {
            Some(device) => Ok(device),
            None => {
                let device = Self::open(ordinal)?;
                Ok(slot.get_or_init(|| device))
            }
        }
    }

    fn open(ordinal: i32) -> Result<Self> {
        let what = || format!("device {ordinal}");
        let mut handle = 0;
        // SAFETY: valid for writes.
        check(unsafe { sys::cuDeviceGet(&raw mut handle, ordinal) }, what)?;
        let properties = facts(handle)?;
        let mut context = null_mut();
        // The context is retained for the life of the process; it is never destroyed nor reset here.
        // SAFETY: valid for writes.
        check(unsafe { sys::cuDevicePrimaryCtxRetain(&raw mut context, handle) }, what)?;
        Ok(Self { ordinal, properties, modules: Modules::default(), context: Context(context) })
    }

    /// Makes the device's context current for this thread until the guard is dropped.
    pub(crate) fn enter(&self) -> Result<Entered> {
        let mut current = null_mut();
        let what = || format!("device {}: its context", self.ordinal);
        // SAFETY: valid for writes; the context is retained for as long as the process lives.
        unsafe {
            check(sys::cuCtxGetCurrent(&raw mut current), what)?;
            if current == self.context.0 {
                return Ok(Entered { pushed: false });
            }
            check(sys::cuCtxPushCurrent_v2(self.context.0), what)?;
        }
        Ok(Entered { pushed: true })
    }
}

/// Gives the thread its former context back.
pub(crate) struct Entered {
    pushed: bool,
}

impl Drop for Entered {
    fn drop(&mut self) {
        if self.pushed {
            let mut popped = null_mut();
            // SAFETY: valid for writes. An error has nowhere to go, and the next call reports it again.
            let _ = unsafe { sys::cuCtxPopCurrent_v2(&raw mut popped) };
        }
    }
}

/// The facts of a device, without opening it.
pub(crate) fn facts_of(ordinal: i32) -> Result<Properties> {
    let mut handle = 0;
    // SAFETY: valid for writes.
    check(unsafe { sys::cuDeviceGet(&raw mut handle, ordinal) }, || format!("device {ordinal}"))?;
    facts(handle)
}

fn facts(handle: sys::CUdevice) -> Result<Properties> {
    let of = |which| attribute(handle, which);
    let mut name = [0_u8; 128];
    let mut memory = 0;
    // SAFETY: the name is cut to the length given, its zero included, for which there is room; the memory's size is valid
    // for writes.
    unsafe {
        let status = sys::cuDeviceGetName(name.as_mut_ptr().cast::<c_char>(), 127, handle);
        check(status, || "a device's name".to_owned())?;
        check(sys::cuDeviceTotalMem_v2(&raw mut memory, handle), || "a device's memory".to_owned())?;
    }
    let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
    Ok(Properties {
        name: String::from_utf8_lossy(name).into_owned(),
        capability: 10 * of(Fact::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?
            + of(Fact::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        multiprocessors: of(Fact::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        shared_per_block: of(Fact::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        cache: of(Fact::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?,
        memory: memory as u64,
    })
}
