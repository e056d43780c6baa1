//! No search for NVRTC, and the error that says so: kernels were never compiled on this system.

use super::Nvrtc;
use crate::settings::Settings;
use crate::{Error, Result};

pub(super) fn find(_settings: &Settings, _newest: Option<u32>) -> Result<Nvrtc> {
    Err(Error::Unavailable(
        "kernels for GPUs are compiled on Linux only; on Windows, install Octavo in WSL 2, which reaches the GPU"
            .to_owned(),
    ))
}
