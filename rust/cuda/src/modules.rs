//! Modules loaded on a device, by program.

use std::collections::HashMap;
use std::ffi::{CString, c_int};
use std::hash::{Hash, Hasher};
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use cudarc::driver::sys::{self, CUfunction_attribute as Fact};

use crate::device::Device;
use crate::driver::check;
use crate::images;
use crate::{Call, Error, Program, Result};

/// The programs that a device has loaded. They stay for the life of the process.
#[derive(Default)]
pub(crate) struct Modules {
    loaded: RwLock<HashMap<Key, Arc<[Kernel]>>>,
    loading: Mutex<()>,
}

/// One loaded kernel.
#[derive(Clone, Copy)]
pub(crate) struct Kernel {
    pub(crate) function: sys::CUfunction,
    /// Threads that a block may have, given the registers that each takes.
    pub(crate) threads: u32,
    /// Bytes of dynamic shared memory that a block may have.
    pub(crate) shared: u32,
}
// SAFETY: the driver's functions belong to no thread.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

/// A program as a key: hashed by its short fields; texts at the same address are equal without being read.
struct Key(Arc<Program>);

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.0.name, &self.0.defines).hash(state);
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        let (a, b) = (&*self.0, &*other.0);
        std::ptr::eq(a, b)
            || a.name == b.name
                && a.defines == b.defines
                && (std::ptr::eq(a.files, b.files) || a.files == b.files)
                && a.entries == b.entries
    }
}

impl Eq for Key {}

impl Modules {
    /// The kernel of a call; none where its program is not loaded.
    pub(crate) fn find(&self, call: &Call) -> Result<Option<Kernel>> {
        let loaded = self.loaded.read().unwrap_or_else(PoisonError::into_inner);
        loaded.get(&Key(call.program.clone())).map(|kernels| pick(kernels, call)).transpose()
    }

    /// Compiles and loads a program where it is not loaded; the device's context is current.
    pub(crate) fn load(&self, device: &Device, program: &Arc<Program>) -> Result<()> {
        let _one = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
        let key = Key(program.clone());
        if self.loaded.read().unwrap_or_else(PoisonError::into_inner).contains_key(&key) {
            return Ok(());
        }
        let image = images::of(program, device.properties.capability)?;
        let kernels = load(device, program, &image.code)?;
        self.loaded.write().unwrap_or_else(PoisonError::into_inner).insert(key, kernels.into());
        Ok(())
    }
}

fn pick(kernels: &[Kernel], call: &Call) -> Result<Kernel> {
    let at = call.program.entries.iter().position(|entry| *entry == call.entry);
    at.and_then(|at| kernels.get(at)).copied().ok_or_else(|| {
        let (program, entries) = (&call.program.name, call.program.entries.join(", "));
        Error::Launch(format!("program '{program}' has no kernel '{}'; it has {entries}", call.entry))
    })
}

fn load(device: &Device, program: &Program, code: &[u8]) -> Result<Vec<Kernel>> {
    let what = |entry: &str| format!("loading '{}{entry}' on device {}", program.name, device.ordinal);
    // PTX is a text that ends in zero; machine code may be followed by anything.
    let code: Vec<u8> = code.iter().copied().chain([0]).collect();
    let _relaxed = Relaxed::enter()?;
    let mut module = null_mut();
    // SAFETY: the image is whole, as its hash or the compiler says, and is copied by the driver.
    check(unsafe { sys::cuModuleLoadData(&raw mut module, code.as_ptr().cast()) }, || what(""))?;
    let kernels = program.entries.iter().map(|entry| kernel(device, module, entry, || what(&format!(": {entry}"))));
    let kernels: Result<Vec<Kernel>> = kernels.collect();
    if kernels.is_err() {
        // SAFETY: the module is loaded, and what was found of it is dropped with the error.
        let _ = unsafe { sys::cuModuleUnload(module) };
    }
    kernels
}

fn kernel(device: &Device, module: sys::CUmodule, entry: &str, what: impl Fn() -> String) -> Result<Kernel> {
    let name = CString::new(entry).map_err(|_| Error::Launch(format!("{}: a zero byte in its name", what())))?;
    let mut function = null_mut();
    // SAFETY: the name ends in zero; the handle is valid for writes.
    check(unsafe { sys::cuModuleGetFunction(&raw mut function, module, name.as_ptr()) }, &what)?;
    let of = |fact| {
        let mut value: c_int = 0;
        // SAFETY: valid for writes.
        check(unsafe { sys::cuFuncGetAttribute(&raw mut value, fact, function) }, &what)?;
        Ok::<u32, Error>(u32::try_from(value).unwrap_or(0))
    };
    let threads = of(Fact::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?;
    let still = of(Fact::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?;
    // The most dynamic shared memory is allowed once, here, so that no launch has to ask, not even in a capture.
    let shared = device.properties.shared_per_block.saturating_sub(still);
    let limit = c_int::try_from(shared).unwrap_or(0);
    let dynamic = Fact::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    // SAFETY: the function is loaded.
    check(unsafe { sys::cuFuncSetAttribute(function, dynamic, limit) }, &what)?;
    Ok(Kernel { function, threads, shared })
}

/// Lets this thread load code while another captures a graph.
struct Relaxed(sys::CUstreamCaptureMode);

impl Relaxed {
    fn enter() -> Result<Self> {
        let mut mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the driver writes the former mode.
        let status = unsafe { sys::cuThreadExchangeStreamCaptureMode(&raw mut mode) };
        check(status, || "the thread's capture mode".to_owned())?;
        Ok(Self(mode))
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        // SAFETY: a mode that the driver gave. An error has nowhere to go.
        let _ = unsafe { sys::cuThreadExchangeStreamCaptureMode(&raw mut self.0) };
    }
}
