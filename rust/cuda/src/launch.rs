//! Launches calls on a stream of PyTorch.

use std::ffi::c_void;
use std::ptr::null_mut;

use cudarc::driver::sys;

use crate::check::check as check_call;
use crate::device::Device;
use crate::driver::check;
use crate::modules::Kernel;
use crate::tensor_map::{self, Encoded};
use crate::{Argument, Call, Error, Program, Result, settings};

/// Arguments that a kernel may have, and tensor maps among them.
const ARGUMENTS: usize = 64;
const MAPS: usize = 2;
/// Compute capability from which kernels may begin before their predecessors end.
const OVERLAP: u32 = 90;

/// Launches `calls` in order on a stream of a device, without waiting for them.
///
/// `stream` is the handle of a stream of the device's primary context, read anew for every launch; 0 is the default
/// stream. A program that is not loaded yet is compiled and loaded first, which a stream that is captured into a graph
/// does not allow: see [`warmup`].
///
/// # Safety
/// `stream` must be a stream of the device's primary context that is not destroyed meanwhile, or 0. The arguments of each
/// call must be those of its kernel, in number, order and type. The memory whose addresses they hold must be there for
/// the kernel, as large as the maker of the call took it to be, until the stream has done the work, and what is written
/// there must not be used by others but in the order of the stream.
pub unsafe fn launch(device: i32, stream: u64, calls: &[Call]) -> Result<()> {
    if calls.is_empty() {
        return Ok(());
    }
    let device = Device::get(device)?;
    let _context = device.enter()?;
    let stream = stream as sys::CUstream;
    for (i, call) in calls.iter().enumerate() {
        let kernel = match device.modules.find(call)? {
            Some(kernel) => kernel,
            // SAFETY: as the caller promises.
            None => unsafe { cold(device, stream, call)? },
        };
        // SAFETY: as the caller promises; the kernel is the call's, on this device, whose context is current.
        unsafe { start(device, stream, call, &kernel, call.early && i > 0)? };
    }
    Ok(())
}

/// Compiles and loads the programs of `calls` on a device and launches nothing: so that a capture finds them.
pub fn warmup(device: i32, calls: &[Call]) -> Result<()> {
    let device = Device::get(device)?;
    let _context = device.enter()?;
    calls.iter().try_for_each(|call| device.modules.load(device, &call.program))
}

/// [`warmup`] for programs without a call.
pub fn warmup_programs(device: i32, programs: Vec<Program>) -> Result<()> {
    let device = Device::get(device)?;
    let _context = device.enter()?;
    programs.into_iter().try_for_each(|program| device.modules.load(device, &program.into()))
}

/// The kernel of a call, loaded where its stream allows it.
///
/// # Safety
/// `stream` must be one of the current context, which is the device's.
unsafe fn cold(device: &Device, stream: sys::CUstream, call: &Call) -> Result<Kernel> {
    // SAFETY: as the caller promises.
    if unsafe { is_capturing(stream, call)? } {
        return Err(Error::Capture(format!(
            "kernel '{}' is not loaded on device {}, and its stream is being captured into a graph, which allows no \
             loading; call octavo.cuda.device.warmup, or run the work once, before the capture",
            named(call),
            device.ordinal
        )));
    }
    device.modules.load(device, &call.program)?;
    let missing = || Error::Launch(format!("kernel '{}' was loaded and is not there", named(call)));
    device.modules.find(call)?.ok_or_else(missing)
}

/// Launches one call.
///
/// # Safety
/// As for [`launch`]; the kernel must be the call's, on this device, whose context must be current.
unsafe fn start(device: &Device, stream: sys::CUstream, call: &Call, kernel: &Kernel, early: bool) -> Result<()> {
    check_call(call, kernel.threads, kernel.shared)?;
    let mut values = [0_u64; ARGUMENTS];
    let mut maps = [Encoded::default(); MAPS];
    let mut pointers = [null_mut::<c_void>(); ARGUMENTS];
    if call.arguments.len() > ARGUMENTS {
        let count = call.arguments.len();
        return Err(Error::Launch(format!("kernel '{}': {count} arguments, at most {ARGUMENTS}", named(call))));
    }
    let mut room = maps.iter_mut();
    for ((value, pointer), argument) in values.iter_mut().zip(&mut pointers).zip(&call.arguments) {
        *value = match *argument {
            Argument::Address(address) => address,
            Argument::I32(value) => u64::from(value.cast_unsigned()),
            Argument::I64(value) => value.cast_unsigned(),
            Argument::F32(value) => u64::from(value.to_bits()),
            Argument::Map(map) => {
                let too_many = || Error::Launch(format!("kernel '{}': more than {MAPS} tensor maps", named(call)));
                let encoded = room.next().ok_or_else(too_many)?;
                *encoded = tensor_map::encode(&map, || named(call))?;
                *pointer = (&raw mut *encoded).cast();
                continue;
            }
        };
        *pointer = (&raw mut *value).cast();
    }
    let ([gx, gy, gz], [bx, by, bz]) = (call.grid, call.block);
    let what = || {
        format!(
            "kernel '{}' on device {}, grid {:?}, block {:?} (an earlier kernel may be at fault: OCTAVO_CUDA_SYNC=1 tells)",
            named(call),
            device.ordinal,
            call.grid,
            call.block
        )
    };
    let mut overlap = sys::CUlaunchAttribute {
        id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
        pad: [0; 4],
        value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
    };
    let config = sys::CUlaunchConfig {
        gridDimX: gx,
        gridDimY: gy,
        gridDimZ: gz,
        blockDimX: bx,
        blockDimY: by,
        blockDimZ: bz,
        sharedMemBytes: call.shared,
        hStream: stream,
        attrs: &raw mut overlap,
        numAttrs: u32::from(early && device.properties.capability >= OVERLAP),
    };
    // SAFETY: the arguments are those of the kernel, as the caller promises, each in 8 bytes of its own, of which the driver
    // reads as many as the parameter has, or in a tensor map's 128; the processor keeps low bytes first. All outlive
    // the call, which copies them.
    let status =
        unsafe { sys::cuLaunchKernelEx(&raw const config, kernel.function, pointers.as_mut_ptr(), null_mut()) };
    check(status, what)?;
    // SAFETY: as the caller promises.
    if settings::synchronize() && !unsafe { is_capturing(stream, call)? } {
        // SAFETY: as above.
        let status = unsafe { sys::cuStreamSynchronize(stream) };
        check(status, || format!("kernel '{}' on device {} failed", named(call), device.ordinal))?;
    }
    Ok(())
}

/// True where what the stream is given becomes a graph.
///
/// # Safety
/// `stream` must be one of the current context.
unsafe fn is_capturing(stream: sys::CUstream, call: &Call) -> Result<bool> {
    let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    // SAFETY: as the caller promises; the status is valid for writes.
    let result = unsafe { sys::cuStreamIsCapturing(stream, &raw mut status) };
    check(result, || format!("kernel '{}': its stream", named(call)))?;
    Ok(status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
}

fn named(call: &Call) -> String {
    format!("{}: {}", call.program.name, call.entry)
}
