//! Finding the compiler.

mod common;

use std::fs;
use std::sync::Mutex;

use octavo_cuda::Error;
use octavo_cuda::nvrtc::Nvrtc;
use octavo_cuda::settings::Settings;

use common::{bare, fake};

/// A compiler that one test loads is one that another finds loaded.
static ONE: Mutex<()> = Mutex::new(());

#[test]
fn a_missing_compiler_is_an_error_that_lists_every_place() {
    let _one = ONE.lock();
    let folder = tempfile::tempdir().unwrap();
    let given = Settings { nvrtc: Some(folder.path().join("libnvrtc.so.13")), ..bare() };
    let text = Nvrtc::find(&given, None).err().unwrap().to_string();
    assert!(text.contains("OCTAVO_NVRTC names no NVRTC") && text.contains("libnvrtc.so.13: not there"), "{text}");

    fs::create_dir_all(folder.path().join("site-packages/nvidia")).unwrap();
    let packages = vec![folder.path().join("empty"), folder.path().join("site-packages")];
    let settings = Settings { packages, toolkit: Some(folder.path().join("toolkit")), ..bare() };
    match Nvrtc::find(&settings, Some(13)) {
        Ok(found) => assert!(found.version.0 <= 13), // this machine has one on the loader's path
        Err(Error::Unavailable(text)) => {
            for place in [
                "pip install nvidia-cuda-nvrtc)",
                "libnvrtc.so.13, loaded by another package: none",
                "empty: no package of NVIDIA's",
                "site-packages/nvidia/cu13/lib: not there",
                "site-packages/nvidia/cuda_nvrtc/lib: not there",
                "toolkit/lib64: not there",
                "libnvrtc.so.12: not on the loader's path",
            ] {
                assert!(text.contains(place), "{place} is not in:\n{text}");
            }
        }
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn a_file_that_is_no_compiler_is_said_to_be_none() {
    let _one = ONE.lock();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("libnvrtc.so.13");
    fs::write(&path, "not a library").unwrap();
    let settings = Settings { nvrtc: Some(path), ..bare() };
    let text = Nvrtc::find(&settings, None).err().unwrap().to_string();
    assert!(text.contains("libnvrtc.so.13: ") && !text.contains("not there"), "{text}");
}

#[test]
fn wheels_are_found_and_a_compiler_newer_than_the_driver_is_passed_over() {
    let _one = ONE.lock();
    let folder = tempfile::tempdir().unwrap();
    let wheel = folder.path().join("nvidia/cu13/lib");
    fs::create_dir_all(&wheel).unwrap();
    if fake("nvrtc.c", "libnvrtc.so.13", &wheel).is_none() {
        return;
    }
    let settings = Settings { packages: vec![folder.path().to_owned()], ..bare() };
    let found = Nvrtc::find(&settings, Some(13)).unwrap();
    assert_eq!((found.path.as_path(), found.version), (wheel.join("libnvrtc.so.13").as_path(), (13, 2)));
    assert_eq!(found.archs().iter().map(ToString::to_string).collect::<Vec<_>>(), ["sm_80", "sm_90a", "sm_100a"]);

    let given = Settings { nvrtc: Some(wheel.join("libnvrtc.so.13")), ..bare() };
    let text = Nvrtc::find(&given, Some(12)).err().unwrap().to_string();
    assert!(text.contains("NVRTC 13.2 is newer than the driver"), "{text}");
}
