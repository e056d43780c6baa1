//! NVRTC, the compiler: found at run time, never linked.
//!
//! Bound by hand, not through cudarc: its loader tries bare library names only, and panics where it finds none.

#[cfg_attr(not(unix), path = "find_nothing.rs")]
mod find;
mod log;

use std::ffi::{CStr, CString, c_char, c_int};
use std::path::{Path, PathBuf};
use std::ptr::null_mut;
use std::sync::{Mutex, OnceLock, PoisonError};

use libloading::Library;

pub use log::{Usage, usage};

use crate::arch::{Arch, Target};
use crate::driver::Driver;
use crate::settings::{self, Settings};
use crate::{Error, Program, Result};

/// More architectures than any compiler knows.
const MOST_ARCHS: usize = 1024;

type Handle = *mut std::ffi::c_void;
type OfHandle<T> = unsafe extern "C" fn(Handle, T) -> c_int;

/// The functions that are called; all are there in NVRTC 12 and 13.
struct Functions {
    version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int,
    count_archs: unsafe extern "C" fn(*mut c_int) -> c_int,
    archs: unsafe extern "C" fn(*mut c_int) -> c_int,
    create: unsafe extern "C" fn(
        *mut Handle,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> c_int,
    destroy: unsafe extern "C" fn(*mut Handle) -> c_int,
    compile: unsafe extern "C" fn(Handle, c_int, *const *const c_char) -> c_int,
    cubin_size: OfHandle<*mut usize>,
    cubin: OfHandle<*mut c_char>,
    ptx_size: OfHandle<*mut usize>,
    ptx: OfHandle<*mut c_char>,
    log_size: OfHandle<*mut usize>,
    log: OfHandle<*mut c_char>,
    error_name: unsafe extern "C" fn(c_int) -> *const c_char,
}

/// A loaded compiler.
pub struct Nvrtc {
    functions: Functions,
    /// Where it was found; a bare name where it was loaded by one.
    pub path: PathBuf,
    /// Major and minor version.
    pub version: (u32, u32),
    /// Compute capabilities that it compiles for, ascending.
    pub known: Vec<u32>,
    _libraries: (Library, Option<Library>),
}

/// Code for a device, with what the assembler said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// Machine code or PTX, as the target says.
    pub code: Vec<u8>,
    /// Warnings and the report of [`usage`].
    pub log: String,
}

/// Options of every program, after its target.
///
/// `--fmad=false`: the processor's path rounds after every operation, and so do kernels, except where their source says
/// `fma`. Subnormals are kept, and nothing is approximate.
pub const OPTIONS: [&str; 6] = [
    "--std=c++17",
    "-default-device",
    "--fmad=false",
    "--ptxas-options=-v",
    "--ptxas-options=--warn-on-spills",
    "--ptxas-options=--warn-on-local-memory-usage",
];

impl Nvrtc {
    /// The compiler of this process, found at the first call that succeeds. Where there is a driver, it takes the code.
    pub fn get() -> Result<&'static Self> {
        static FOUND: OnceLock<Nvrtc> = OnceLock::new();
        let newest = Driver::get().ok().map(Driver::major);
        let found = match FOUND.get() {
            Some(found) => found,
            None => {
                let loaded = Self::find(&*settings::current()?, newest)?;
                FOUND.get_or_init(|| loaded)
            }
        };
        match newest {
            Some(newest) if found.version.0 > newest => Err(too_new(&found.path, found.version, newest)),
            _ => Ok(found),
        }
    }

    /// Looks for a compiler where `settings` say, of at most the major version `newest`. The error lists every place that
    /// was tried.
    pub fn find(settings: &Settings, newest: Option<u32>) -> Result<Self> {
        find::find(settings, newest)
    }

    #[cfg_attr(not(unix), expect(dead_code, reason = "nothing is found there"))]
    fn open(path: &Path, library: Library, builtins: Option<Library>) -> std::result::Result<Self, String> {
        let functions = Functions::of(&library).map_err(|missing| format!("it has no {missing}"))?;
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both are valid for writes.
        let status = unsafe { (functions.version)(&raw mut major, &raw mut minor) };
        let version = (u32::try_from(major).unwrap_or(0), u32::try_from(minor).unwrap_or(0));
        if status != 0 || version.0 < 12 {
            return Err(format!("its version is {major}.{minor}; 12 or later is needed"));
        }
        let mut count = 0;
        // SAFETY: valid for writes.
        let status = unsafe { (functions.count_archs)(&raw mut count) };
        let silent = || "it does not say which architectures it knows".to_owned();
        let count =
            usize::try_from(count).ok().filter(|&count| status == 0 && count <= MOST_ARCHS).ok_or_else(silent)?;
        let mut known = vec![0; count];
        // SAFETY: `archs` writes as many numbers as `count_archs` said, for which there is room.
        if unsafe { (functions.archs)(known.as_mut_ptr()) } != 0 {
            return Err(silent());
        }
        let mut known: Vec<u32> = known.into_iter().filter_map(|arch| u32::try_from(arch).ok()).collect();
        known.sort_unstable();
        Ok(Self { functions, path: path.to_owned(), version, known, _libraries: (library, builtins) })
    }

    /// The architectures to compile for in advance: those known that kernels are written for, with their own features.
    pub fn archs(&self) -> Vec<Arch> {
        self.known.iter().filter(|&&known| known >= crate::arch::OLDEST).map(|&known| Arch::native(known)).collect()
    }

    /// Compiles a program. One at a time in a process: the compiler has a lock of its own.
    pub fn compile(&self, program: &Program, target: Target) -> Result<Image> {
        static ONE: Mutex<()> = Mutex::new(());
        let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let failed = |reason: String, log: String| Error::Compile {
            program: program.name.clone(),
            arch: target.to_string(),
            reason,
            log,
        };
        let text = |text: String| CString::new(text).map_err(|_| failed("a zero byte".to_owned(), String::new()));
        let (source, name) = (text(program.source())?, text(format!("{}.cu", program.name))?);
        let options = options(target).into_iter().map(text).collect::<Result<Vec<_>>>()?;
        let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let f = &self.functions;
        let mut job = Job { handle: null_mut(), functions: f };
        // SAFETY: all texts end in zero and outlive the calls, and the options are as many as their number says; the
        // handle is live from `create` to the end of `job`.
        unsafe {
            let created =
                (f.create)(&raw mut job.handle, source.as_ptr(), name.as_ptr(), 0, std::ptr::null(), std::ptr::null());
            if created != 0 {
                return Err(failed(self.reason(created), String::new()));
            }
            let status = (f.compile)(job.handle, c_int::try_from(options.len()).unwrap_or(0), options.as_ptr());
            let log = job.read(f.log_size, f.log).unwrap_or_default();
            let log = String::from_utf8_lossy(log.strip_suffix(b"\0").unwrap_or(&log)).into_owned();
            if status != 0 {
                return Err(failed(self.reason(status), log));
            }
            let code = match target {
                Target::Cubin(_) => job.read(f.cubin_size, f.cubin),
                Target::Ptx(_) => job.read(f.ptx_size, f.ptx),
            };
            match code {
                Ok(code) if !code.is_empty() => Ok(Image { code, log }),
                Ok(_) => Err(failed("it made no code".to_owned(), log)),
                Err(status) => Err(failed(self.reason(status), log)),
            }
        }
    }

    fn reason(&self, status: c_int) -> String {
        // SAFETY: the library returns a static text, or null.
        let name = unsafe {
            let name = (self.functions.error_name)(status);
            if name.is_null() { "unknown".into() } else { CStr::from_ptr(name).to_string_lossy() }
        };
        format!("{name} ({status}), NVRTC {}.{} at {}", self.version.0, self.version.1, self.path.display())
    }
}

/// The error for a compiler whose code the driver may refuse.
fn too_new(path: &Path, version: (u32, u32), newest: u32) -> Error {
    Error::Unavailable(format!(
        "NVRTC {}.{} at {} is newer than the driver, which takes code up to CUDA {newest}; update the driver, or name an \
         older NVRTC with OCTAVO_NVRTC",
        version.0,
        version.1,
        path.display()
    ))
}

/// All options for a target, in the order they are given.
///
/// Line numbers triple the size of the code, so they are on only where launches are synchronous to find a fault.
pub(crate) fn options(target: Target) -> Vec<String> {
    let architecture = format!("--gpu-architecture={target}");
    let lines = settings::synchronize().then(|| "-lineinfo".to_owned());
    std::iter::once(architecture).chain(OPTIONS.map(str::to_owned)).chain(lines).collect()
}

/// A program inside the compiler.
struct Job<'a> {
    handle: Handle,
    functions: &'a Functions,
}

impl Job<'_> {
    /// Reads something whose size another function tells.
    ///
    /// # Safety
    /// Both functions must be of the library that made the handle, which must be live, and speak of the same thing.
    unsafe fn read(
        &self,
        size: OfHandle<*mut usize>,
        get: OfHandle<*mut c_char>,
    ) -> std::result::Result<Vec<u8>, c_int> {
        let mut bytes = 0;
        // SAFETY: as the caller promises; the buffer has the size that the library asked for.
        unsafe {
            match size(self.handle, &raw mut bytes) {
                0 => {}
                status => return Err(status),
            }
            let mut buffer = vec![0_u8; bytes];
            match get(self.handle, buffer.as_mut_ptr().cast()) {
                0 => Ok(buffer),
                status => Err(status),
            }
        }
    }
}

impl Drop for Job<'_> {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            // SAFETY: the handle is live, and nobody has it after this.
            let _ = unsafe { (self.functions.destroy)(&raw mut self.handle) };
        }
    }
}

impl Functions {
    /// Resolves all; the error is the name of the first that is missing. They must not be called once the library is
    /// unloaded.
    fn of(library: &Library) -> std::result::Result<Self, &'static str> {
        macro_rules! symbol {
            ($name:literal) => {
                // SAFETY: the types are those of nvrtc.h, the same in CUDA 12 and 13; the library lives as long as its user.
                *unsafe { library.get(concat!($name, "\0").as_bytes()) }.map_err(|_| $name)?
            };
        }
        Ok(Self {
            version: symbol!("nvrtcVersion"),
            count_archs: symbol!("nvrtcGetNumSupportedArchs"),
            archs: symbol!("nvrtcGetSupportedArchs"),
            create: symbol!("nvrtcCreateProgram"),
            destroy: symbol!("nvrtcDestroyProgram"),
            compile: symbol!("nvrtcCompileProgram"),
            cubin_size: symbol!("nvrtcGetCUBINSize"),
            cubin: symbol!("nvrtcGetCUBIN"),
            ptx_size: symbol!("nvrtcGetPTXSize"),
            ptx: symbol!("nvrtcGetPTX"),
            log_size: symbol!("nvrtcGetProgramLogSize"),
            log: symbol!("nvrtcGetProgramLog"),
            error_name: symbol!("nvrtcGetErrorString"),
        })
    }
}
