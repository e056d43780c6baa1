//! Launches of calls.

use crate::{Call, Error, Result};

/// Launches `calls` in order on a stream of a device, without waiting for them.
///
/// `stream` is the handle of a stream of the device's primary context; 0 is the default stream.
pub fn launch(device: i32, stream: u64, calls: &[Call]) -> Result<()> {
    let _ = (stream, calls);
    Err(Error::Unavailable(format!("device {device}: this build launches nothing yet")))
}
