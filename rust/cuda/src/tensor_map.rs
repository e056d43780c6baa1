//! Tensor maps (descriptors for the tensor memory accelerator), encoded by the driver.

use std::ffi::c_void;
use std::sync::OnceLock;

use cudarc::driver::sys::{
    self, CUtensorMapDataType_enum as Type, CUtensorMapFloatOOBfill_enum as Fill,
    CUtensorMapInterleave_enum as Interleave, CUtensorMapL2promotion_enum as Promotion,
    CUtensorMapSwizzle_enum as Swizzle,
};

use crate::driver::check;
use crate::{Error, Result, TensorMap};

/// What a kernel gets: 128 bytes that only the driver and the device understand.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Encoded(sys::CUtensorMap);

impl Default for Encoded {
    fn default() -> Self {
        Self(sys::CUtensorMap { opaque: [0; 16] })
    }
}

/// Encodes a map; `what` names the kernel that it is for. Takes about a microsecond and asks nothing of the device.
pub(crate) fn encode(map: &TensorMap, what: impl Fn() -> String) -> Result<Encoded> {
    // Only kernels for new devices need it: a driver without it still runs all others.
    static THERE: OnceLock<bool> = OnceLock::new();
    // SAFETY: the driver is loaded; the address is looked up, not called.
    let there = || unsafe { sys::culib().get::<*const ()>(b"cuTensorMapEncodeTiled").is_ok() };
    if !*THERE.get_or_init(there) {
        return Err(Error::Unavailable(format!(
            "kernel '{}': the NVIDIA driver has no cuTensorMapEncodeTiled: it is too old for this device; update it, or \
             set OCTAVO_CUDA_PLAIN=1",
            what()
        )));
    }
    let mut encoded = Encoded::default();
    let (sides, pitch) = ([map.columns, map.rows], [map.pitch]);
    let (of_box, steps) = ([TensorMap::BOX_COLUMNS, map.box_rows], [1, 1]);
    // SAFETY: the function is there; two dimensions have two sides, one pitch, two sides of a box and two steps.
    let status = unsafe {
        sys::cuTensorMapEncodeTiled(
            &raw mut encoded.0,
            Type::CU_TENSOR_MAP_DATA_TYPE_UINT8,
            2,
            map.address as *mut c_void,
            sides.as_ptr(),
            pitch.as_ptr(),
            of_box.as_ptr(),
            steps.as_ptr(),
            Interleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
            Swizzle::CU_TENSOR_MAP_SWIZZLE_128B,
            Promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            Fill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    };
    check(status, || format!("kernel '{}': {map:?}", what()))?;
    Ok(encoded)
}
