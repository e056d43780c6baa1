//! Devices and libraries of this machine, and programs compiled or loaded ahead of their first use.

use std::path::PathBuf;

use octavo_cuda::arch::{Arch, Target};
use octavo_cuda::cache::Key;
use octavo_cuda::catalogue::programs;
use octavo_cuda::nvrtc::Nvrtc;
use octavo_cuda::settings::{Settings, configure};
use octavo_cuda::{Found, Properties, info, prebuild};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::err::enter_cuda;
use crate::format::Format;

/// Reads the environment anew; `packages` are folders that hold installed packages.
#[pyfunction]
#[pyo3(name = "_cuda_configure")]
pub(crate) fn cuda_configure(py: Python<'_>, packages: Vec<PathBuf>) -> PyResult<()> {
    enter_cuda(py, || {
        configure(Settings { packages, ..Settings::from_environment()? });
        Ok(())
    })
}

/// Devices that this process sees; an error says why there are none.
#[pyfunction]
#[pyo3(name = "_cuda_devices")]
pub(crate) fn cuda_devices(py: Python<'_>) -> PyResult<i32> {
    enter_cuda(py, octavo_cuda::devices)
}

/// Everything that is there, and why the rest is not.
#[pyfunction]
#[pyo3(name = "_cuda_info")]
pub(crate) fn cuda_info<'py>(py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
    let found = enter_cuda(py, || Ok(info()))?;
    let (all, missing) = (PyDict::new(py), PyDict::new(py));
    if let Some(driver) = or_missing(&missing, "driver", found.driver)? {
        let of = PyDict::new(py);
        of.set_item("cuda", driver.cuda)?;
        of.set_item("release", driver.release)?;
        all.set_item("driver", of)?;
    }
    if let Some(nvrtc) = or_missing(&missing, "nvrtc", found.nvrtc)? {
        let of = PyDict::new(py);
        of.set_item("path", nvrtc.path.to_string_lossy())?;
        of.set_item("version", nvrtc.version)?;
        of.set_item("capabilities", nvrtc.known)?;
        all.set_item("nvrtc", of)?;
    }
    if let Some(cache) = or_missing(&missing, "cache", found.cache)? {
        let of = PyDict::new(py);
        of.set_item("folder", cache.folder.to_string_lossy())?;
        of.set_item("kernels", cache.entries)?;
        of.set_item("nbytes", cache.bytes)?;
        all.set_item("cache", of)?;
    }
    let mut devices = Vec::new();
    for (ordinal, device) in found.devices.into_iter().enumerate() {
        if let Some(facts) = or_missing(&missing, &format!("device {ordinal}"), device)? {
            devices.push(properties(py, ordinal, &facts)?);
        }
    }
    all.set_item("devices", devices)?;
    all.set_item("missing", missing)?;
    Ok(all)
}

fn or_missing<T>(missing: &Bound<'_, PyDict>, name: &str, found: Found<T>) -> PyResult<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(why) => missing.set_item(name, why).map(|()| None),
    }
}

fn properties<'py>(py: Python<'py>, ordinal: usize, facts: &Properties) -> PyResult<Bound<'py, PyDict>> {
    let of = PyDict::new(py);
    of.set_item("ordinal", ordinal)?;
    of.set_item("name", &facts.name)?;
    of.set_item("arch", Arch::native(facts.capability).to_string())?;
    of.set_item("multiprocessors", facts.multiprocessors)?;
    of.set_item("memory", facts.memory)?;
    of.set_item("shared_per_block", facts.shared_per_block)?;
    of.set_item("cache", facts.cache)?;
    Ok(of)
}

/// Architectures that the compiler knows and kernels are written for.
#[pyfunction]
#[pyo3(name = "_cuda_archs")]
pub(crate) fn cuda_archs(py: Python<'_>) -> PyResult<Vec<String>> {
    enter_cuda(py, || Ok(Nvrtc::get()?.archs().iter().map(ToString::to_string).collect()))
}

/// Name of every program of a format, and a text that tells different programs apart.
#[pyfunction]
#[pyo3(name = "_cuda_programs")]
pub(crate) fn cuda_programs(py: Python<'_>, format: &Format, arch: &str) -> PyResult<Vec<(String, String)>> {
    enter_cuda(py, || {
        let (arch, version): (Arch, _) = (arch.parse()?, Nvrtc::get()?.version);
        let made = programs(format.0, arch).into_iter();
        Ok(made.map(|made| (made.name.clone(), Key::new(&made, Target::Cubin(arch), version).hex())).collect())
    })
}

/// Compiles one program of that list unless it is kept; tells whether it was compiled.
#[pyfunction]
#[pyo3(name = "_cuda_prebuild")]
pub(crate) fn cuda_prebuild(py: Python<'_>, format: &Format, arch: &str, index: usize) -> PyResult<bool> {
    enter_cuda(py, || {
        let arch: Arch = arch.parse()?;
        let missing = || octavo_core::Error::range(format!("'{}' has no program {index} for {arch}", format.0));
        let made = programs(format.0, arch).into_iter().nth(index).ok_or_else(missing)?;
        Ok(prebuild(&made, Target::Cubin(arch))?.1)
    })
}

/// Compiles and loads all programs of formats on a device; returns their number.
#[pyfunction]
#[pyo3(name = "_cuda_warmup")]
pub(crate) fn cuda_warmup(py: Python<'_>, formats: Vec<Format>, device: i32) -> PyResult<usize> {
    enter_cuda(py, || {
        let arch = octavo_cuda::linear::Device::get(device)?.arch;
        let made: Vec<_> = formats.iter().flat_map(|format| programs(format.0, arch)).collect();
        let count = made.len();
        octavo_cuda::warmup_programs(device, made)?;
        Ok(count)
    })
}
