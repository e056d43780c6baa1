//! Compiled programs: from memory, from the cache folder, or from the compiler, in this order.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::arch::Target;
use crate::cache::{Cache, Key};
use crate::nvrtc::{Image, Nvrtc};
use crate::settings;
use crate::{Program, Result};

static IMAGES: Mutex<Option<HashMap<Key, Arc<Image>>>> = Mutex::new(None);

/// The code of a program for devices of a compute capability, of which there is at least one.
pub(crate) fn of(program: &Program, capability: u32) -> Result<Arc<Image>> {
    let nvrtc = Nvrtc::get()?;
    let target = Target::choose(capability, &nvrtc.known)?;
    let key = Key::new(program, target, nvrtc.version);
    let mut images = IMAGES.lock().unwrap_or_else(PoisonError::into_inner);
    let images = images.get_or_insert_default();
    if let Some(image) = images.get(&key) {
        return Ok(image.clone());
    }
    let image = Arc::new(kept(nvrtc, &Cache::open(&settings::current()?.keep)?, program, target, &key)?.0);
    images.insert(key, image.clone());
    Ok(image)
}

/// Compiles a program for an architecture unless the cache's folder has it; tells whether it was compiled.
///
/// Needs a compiler, and no GPU.
pub fn prebuild(program: &Program, target: Target) -> Result<(Image, bool)> {
    let nvrtc = Nvrtc::get()?;
    let cache = Cache::open(&settings::current()?.keep)?;
    kept(nvrtc, &cache, program, target, &Key::new(program, target, nvrtc.version))
}

fn kept(nvrtc: &Nvrtc, cache: &Cache, program: &Program, target: Target, key: &Key) -> Result<(Image, bool)> {
    if let Some(image) = cache.get(key) {
        return Ok((image, false));
    }
    let image = nvrtc.compile(program, target)?;
    cache.put(key, &image);
    Ok((image, true))
}
