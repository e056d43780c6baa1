//! Drivers that are absent, old, stubs or forked: typed errors. Each is tried in a process of its own.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a child tells its parent on stdout")]

mod common;

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::{env, fs};

use libloading::Library;
use octavo_cuda::settings::{Keep, Settings, configure};
use octavo_cuda::{Error, devices, info};

use common::{bare, call, fake, launch, program};

/// Runs [`child`] with these variables and returns what it printed.
fn run(scenario: &str, variables: &[(&str, &Path)]) -> String {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "child", "--ignored", "--nocapture"]).env("FAKE_SCENARIO", scenario);
    let done = command.envs(variables.iter().copied()).output().unwrap();
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(done.status.success(), "{text}\n{}", String::from_utf8_lossy(&done.stderr));
    text
}

#[test]
#[ignore = "runs as a child of the others"]
fn child() {
    let Some(scenario) = env::var_os("FAKE_SCENARIO") else { return };
    let load = |name: &str| {
        env::var_os(name).map(|path| {
            // SAFETY: the stand-ins have no initializers.
            unsafe { Library::new(path) }.unwrap()
        })
    };
    let _driver = load("FAKE_CUDA");
    configure(Settings { nvrtc: env::var_os("FAKE_COMPILER").map(Into::into), keep: Keep::Off("a test"), ..bare() });
    let plain = call(&Arc::new(program("p", &[("k.cu", "plain")], &["plain"])), "plain", Vec::new());
    match scenario.to_str().unwrap() {
        "devices" => println!("{:?}", devices()),
        "info" => println!("{:?}", info()),
        "launch" => println!("{:?}", launch(0, 0, &[plain])),
        "fork" => {
            unsafe extern "C" {
                fn fork() -> i32;
                safe fn _exit(code: i32) -> !;
            }
            launch(0, 0, std::slice::from_ref(&plain)).unwrap();
            let answer = env::var_os("FAKE_ANSWER").unwrap();
            // SAFETY: the child, alone with this thread, writes a file and ends; the C library lets it allocate.
            if unsafe { fork() } == 0 {
                let _ = fs::write(&answer, format!("{:?}", launch(0, 0, &[plain])));
                _exit(0);
            }
            while fs::read(&answer).is_ok_and(|text| text.is_empty()) {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            println!("{}", fs::read_to_string(answer).unwrap());
        }
        other => unreachable!("{other}"),
    }
}

#[test]
fn without_a_driver_everything_says_so_and_nothing_panics() {
    // SAFETY: as every program that uses CUDA does.
    if ["libcuda.so", "libcuda.so.1"].iter().any(|name| unsafe { Library::new(*name) }.is_ok()) {
        return; // this machine has one
    }
    assert!(matches!(devices(), Err(Error::Unavailable(text)) if text.starts_with("no NVIDIA driver")));
    let plain = call(&Arc::new(program("p", &[("k.cu", "plain")], &["plain"])), "plain", Vec::new());
    assert!(matches!(launch(0, 0, &[plain]), Err(Error::Unavailable(_))));
    let info = info();
    assert!(info.driver.is_err() && info.devices.is_empty());
}

#[test]
fn a_stub_a_hidden_device_and_an_old_driver_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let Some(driver) = fake("cuda.c", "libcuda.so", folder.path()) else { return };
    let with = |name, value: &'static str| [("FAKE_CUDA", driver.as_path()), (name, Path::new(value))];
    let stub = run("devices", &with("FAKE_INIT", "34"));
    assert!(stub.contains("Unavailable") && stub.contains("CUDA_ERROR_STUB_LIBRARY"), "{stub}");
    assert!(stub.contains("a stub library of a toolkit"), "{stub}");
    let unknown = run("devices", &with("FAKE_INIT", "4242"));
    assert!(unknown.contains("an unknown error"), "{unknown}");
    let hidden = run("devices", &with("FAKE_DEVICES", "0"));
    assert!(hidden.contains("sees no device"), "{hidden}");
    let old = run("launch", &with("FAKE_CAPABILITY", "75"));
    assert!(old.contains("Unavailable"), "{old}");
    let info = run("info", &with("FAKE_DEVICES", "1"));
    assert!(info.contains("cuda: (13, 0)") && info.contains("Fake 0"), "{info}");

    let source = folder.path().join("empty.c");
    fs::write(&source, "int cuInit(unsigned flags) { return (int)flags; }").unwrap();
    let lacking = folder.path().join("lacking").join("libcuda.so");
    fs::create_dir(lacking.parent().unwrap()).unwrap();
    let built = Command::new("cc").args(["-shared", "-Wl,-soname,libcuda.so", "-o"]).args([&lacking, &source]).status();
    assert!(built.unwrap().success());
    let lacking = run("devices", &[("FAKE_CUDA", &lacking)]);
    assert!(lacking.contains("has no cuDriverGetVersion: it is too old"), "{lacking}");
}

#[test]
fn code_goes_no_further_than_the_driver_takes_it_and_a_new_device_gets_ptx() {
    let folder = tempfile::tempdir().unwrap();
    let Some(driver) = fake("cuda.c", "libcuda.so", folder.path()) else { return };
    let Some(compiler) = fake("nvrtc.c", "libnvrtc.so.13", folder.path()) else { return };
    let with = |name, value: &'static str| {
        [("FAKE_CUDA", driver.as_path()), ("FAKE_COMPILER", compiler.as_path()), (name, Path::new(value))]
    };
    let newer = run("launch", &with("FAKE_VERSION", "12040"));
    assert!(newer.contains("NVRTC 13.2 is newer than the driver"), "{newer}");
    let old = run("launch", &with("FAKE_CAPABILITY", "75"));
    assert!(old.contains("compute capability 7.5; Octavo's kernels need 8.0"), "{old}");
    for capability in ["80", "86", "101", "120"] {
        let fine = run("launch", &with("FAKE_CAPABILITY", capability));
        assert!(fine.contains("Ok(())"), "{fine}");
    }
}

#[test]
fn a_fork_of_a_process_that_used_cuda_is_told_so() {
    let folder = tempfile::tempdir().unwrap();
    let Some(driver) = fake("cuda.c", "libcuda.so", folder.path()) else { return };
    let Some(compiler) = fake("nvrtc.c", "libnvrtc.so.13", folder.path()) else { return };
    let answer = folder.path().join("answer");
    fs::write(&answer, "").unwrap();
    let text = run("fork", &[("FAKE_CUDA", &driver), ("FAKE_COMPILER", &compiler), ("FAKE_ANSWER", &answer)]);
    assert!(text.contains("is a fork of process") && text.contains("'spawn'"), "{text}");
}
