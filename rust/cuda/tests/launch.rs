//! Launches through a stand-in for the driver that writes down what it is asked, and one for the compiler.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::ffi::{CStr, c_char, c_int};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use libloading::Library;
use octavo_cuda::settings::{Keep, Settings, configure};
use octavo_cuda::{Argument, Call, Error, Program, TensorMap, properties, warmup};
use tempfile::TempDir;

use common::{bare, call, fake, launch, program};

struct Fakes {
    folder: TempDir,
    driver: Library,
    compiler: Library,
    one: Mutex<()>,
}

impl Fakes {
    /// The stand-ins, loaded under the names that this crate asks for, and the right to use them alone.
    fn get() -> Option<(&'static Self, MutexGuard<'static, ()>)> {
        static FAKES: OnceLock<Option<Fakes>> = OnceLock::new();
        let fakes = FAKES.get_or_init(Self::load).as_ref()?;
        let one = fakes.one.lock().unwrap_or_else(PoisonError::into_inner);
        fakes.configure(false);
        fakes.notes();
        Some((fakes, one))
    }

    fn load() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let (driver, compiler) =
            (fake("cuda.c", "libcuda.so", folder.path())?, fake("nvrtc.c", "libnvrtc.so.13", folder.path())?);
        let open = |path: &Path| {
            // SAFETY: the libraries have no initializers.
            unsafe { Library::new(path) }.unwrap()
        };
        let fakes = Self { driver: open(&driver), compiler: open(&compiler), folder, one: Mutex::new(()) };
        for device in 0..2 {
            properties(device).unwrap(); // opens its context
        }
        Some(fakes)
    }

    fn configure(&self, synchronize: bool) {
        let compiler = self.folder.path().join("libnvrtc.so.13");
        let keep = Keep::Folder(self.folder.path().join("kept"));
        configure(Settings { nvrtc: Some(compiler), keep, synchronize, ..bare() });
    }

    /// What the driver was asked since the last call.
    fn notes(&self) -> Vec<String> {
        // SAFETY: the function returns a text that lives until the next call.
        let text = unsafe {
            let take = self.driver.get::<unsafe extern "C" fn() -> *const c_char>(b"fake_take").unwrap();
            CStr::from_ptr(take()).to_str().unwrap().to_owned()
        };
        text.lines().map(str::to_owned).collect()
    }

    fn compiles(&self) -> c_int {
        // SAFETY: of this type.
        unsafe { self.compiler.get::<unsafe extern "C" fn() -> c_int>(b"fake_compiles").unwrap()() }
    }
}

const FILES: &[(&str, &str)] = &[("k.cu", "mix_pilf plain refused")];
const ENTRIES: &[&str] = &["mix_pilf", "plain", "refused"];

fn mix(name: &str) -> Call {
    let arguments =
        vec![Argument::Address(0x7f00_0000_1000), Argument::I32(-7), Argument::I64(1 << 40), Argument::F32(-0.5)];
    let program = Program { defines: vec![("NAME", name.to_owned())], ..program(name, FILES, ENTRIES) };
    call(&Arc::new(program), "mix_pilf", arguments)
}

fn refusal(call: Call) -> String {
    launch(0, 0, &[call]).unwrap_err().to_string()
}

#[test]
fn a_call_reaches_its_stream_with_its_arguments_and_the_context_is_given_back() {
    let Some((fakes, _one)) = Fakes::get() else { return };
    let launched =
        "launch mix_pilf on 0, stream 77, grid 3 2 1, block 64 2 1, shared 0: 0x7f0000001000 -7 1099511627776 -0.5";
    launch(0, 77, &[mix("first")]).unwrap();
    assert_eq!(fakes.notes(), ["push", "load on 0", launched, "pop"]);
    let compiles = fakes.compiles();
    // Another value that is the same program finds what is loaded.
    launch(0, 77, &[mix("first"), mix("first")]).unwrap();
    assert_eq!(fakes.notes(), ["push", launched, launched, "pop"]);
    assert_eq!(fakes.compiles(), compiles);
    launch(0, 77, &[]).unwrap();
    assert_eq!(fakes.notes(), [""; 0]);
}

#[test]
fn only_what_follows_another_call_may_begin_early() {
    let Some((fakes, _one)) = Fakes::get() else { return };
    let early = || Call { early: true, ..mix("early") };
    launch(0, 5, &[early(), early(), mix("early")]).unwrap();
    let launches: Vec<bool> =
        fakes.notes().iter().filter(|note| note.starts_with("launch")).map(|note| note.contains(", early:")).collect();
    assert_eq!(launches, [false, true, false]);
}

#[test]
fn tensor_maps_are_encoded_where_the_kernel_reads_them() {
    let Some((fakes, _one)) = Fakes::get() else { return };
    let program = Arc::new(program("maps", &[("k.cu", "boxes_immp")], &["boxes_immp"]));
    let map = |address, pitch| Argument::Map(TensorMap { address, rows: 300, columns: 400, pitch, box_rows: 256 });
    let arguments = |maps: &[Argument]| {
        let others = [Argument::I32(7), Argument::Address(0x70)];
        [&others[..1], maps, &others[1..]].concat()
    };
    launch(0, 5, &[call(&program, "boxes_immp", arguments(&[map(0x1000, 512), map(0x2000, 400)]))]).unwrap();
    let expected = "launch boxes_immp on 0, stream 5, grid 3 2 1, block 64 2 1, shared 0: 7 \
        [0x1000: 512 of 300 x 400, 256 x 128] [0x2000: 400 of 300 x 400, 256 x 128] 0x70";
    assert_eq!(fakes.notes()[2], expected);
    let text = refusal(call(&program, "boxes_immp", arguments(&[map(0x1000, 512), map(0x2000, 401)])));
    assert!(text.starts_with("kernel 'maps: boxes_immp': TensorMap") && text.contains("pitch: 401"), "{text}");
    let text = refusal(call(&program, "boxes_immp", vec![map(0x1000, 512); 3]));
    assert_eq!(text, "kernel 'maps: boxes_immp': more than 2 tensor maps");
}

#[test]
fn what_only_some_devices_run_can_be_left_aside() {
    let Some((_fakes, _one)) = Fakes::get() else { return };
    let arch = || octavo_cuda::linear::Device::get(0).unwrap().arch.to_string();
    assert_eq!(arch(), "sm_90a");
    configure(Settings { plain: true, ..bare() });
    assert_eq!(arch(), "sm_80");
}

#[test]
fn each_device_loads_what_is_compiled_once() {
    let Some((fakes, _one)) = Fakes::get() else { return };
    let before = fakes.compiles();
    for device in [1, 0, 1] {
        launch(device, 0, &[mix("twice")]).unwrap();
    }
    let loads: Vec<String> = fakes.notes().into_iter().filter(|note| note.starts_with("load")).collect();
    assert_eq!(loads, ["load on 1", "load on 0"]);
    assert_eq!(fakes.compiles() - before, 1);
    let properties = properties(1).unwrap();
    assert_eq!((properties.name.as_str(), properties.capability, properties.multiprocessors), ("Fake 1", 90, 132));
    let error = launch(2, 0, &[mix("twice")]).unwrap_err();
    assert!(
        matches!(&error, Error::Unavailable(text) if text.contains("device 2 is not there; there are 2")),
        "{error}"
    );
}

#[test]
fn programs_that_differ_in_a_macro_or_text_are_others() {
    let Some((fakes, _one)) = Fakes::get() else { return };
    let before = fakes.compiles();
    for (text, value) in [("1", "a"), ("2", "a"), ("1", "b"), ("1", "a")] {
        let files: &'static [(&str, &str)] =
            if text == "1" { &[("k.cu", "mix_pilf plain refused 1")] } else { &[("k.cu", "mix_pilf plain refused 2")] };
        let made = Program { defines: vec![("M", value.to_owned())], ..program("others", files, ENTRIES) };
        launch(0, 0, &[call(&Arc::new(made), "plain", Vec::new())]).unwrap();
    }
    assert_eq!(fakes.compiles() - before, 3);
}

#[test]
fn many_threads_load_a_cold_kernel_once() {
    let Some((fakes, _one)) = Fakes::get() else { return };
    std::thread::scope(|scope| {
        for stream in 0..8 {
            scope.spawn(move || launch(0, stream, &[mix("crowd")]).unwrap());
        }
    });
    let notes = fakes.notes();
    let count = |what: &str| notes.iter().filter(|note| note.starts_with(what)).count();
    assert_eq!((count("load"), count("launch"), count("push"), count("pop")), (1, 8, 8, 8));
}

#[test]
fn a_cold_kernel_in_a_capture_is_an_error_and_a_warm_one_is_not() {
    let Some((fakes, _one)) = Fakes::get() else { return };
    let error = launch(0, 0xCA, &[mix("captured")]).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::Capture(_)), "{text}");
    assert!(text.contains("'captured: mix_pilf'") && text.contains("octavo.cuda.device.warmup"), "{text}");
    assert_eq!(fakes.notes(), ["push", "pop"]);

    warmup(0, &[mix("captured")]).unwrap();
    assert_eq!(fakes.notes(), ["push", "load on 0", "pop"]);
    fakes.configure(true); // nor does a capture allow waiting
    launch(0, 0xCA, &[mix("captured")]).unwrap();
    assert_eq!(fakes.notes().len(), 3);
}

#[test]
fn waiting_after_each_launch_names_the_kernel_that_failed() {
    let Some((fakes, _one)) = Fakes::get() else { return };
    launch(0, 0xBAD, &[mix("late")]).unwrap(); // nobody waited
    fakes.configure(true);
    launch(0, 0, &[mix("late")]).unwrap();
    assert_eq!(fakes.notes().iter().filter(|note| *note == "wait").count(), 1);
    let text = launch(0, 0xBAD, &[mix("late")]).unwrap_err().to_string();
    assert_eq!(text, "kernel 'late: mix_pilf' on device 0 failed: CUDA_ERROR_ILLEGAL_ADDRESS (700): the fake says so");
}

#[test]
fn a_refused_launch_says_which_and_why() {
    let Some((_fakes, _one)) = Fakes::get() else { return };
    let program = Arc::new(program("p", FILES, ENTRIES));
    let text = refusal(call(&program, "refused", Vec::new()));
    assert!(text.starts_with("kernel 'p: refused' on device 0, grid [3, 2, 1]"), "{text}");
    assert!(text.contains("CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES (701)"), "{text}");
    let text = refusal(call(&program, "absent", Vec::new()));
    assert_eq!(text, "program 'p' has no kernel 'absent'; it has mix_pilf, plain, refused");
    let text = refusal(Call { block: [513, 1, 1], ..call(&program, "plain", Vec::new()) });
    assert!(text.contains("513 threads a block; the kernel's registers allow 512"), "{text}");
    let text = refusal(Call { shared: 232_448 - 1023, ..call(&program, "plain", Vec::new()) });
    assert!(text.contains("there are 231424"), "{text}");
    let text = refusal(call(&program, "plain", vec![Argument::I32(0); 65]));
    assert!(text.contains("65 arguments, at most 64"), "{text}");
    // More than 48 KB of shared memory were allowed when the kernel was loaded.
    launch(0, 0, &[Call { shared: 200_000, ..call(&program, "plain", Vec::new()) }]).unwrap();
}

#[test]
fn a_kernel_that_its_code_lacks_and_a_program_that_does_not_compile_are_errors() {
    let Some((fakes, _one)) = Fakes::get() else { return };
    let lacking = Arc::new(program("lacking", &[("k.cu", "mix_pilf")], &["mix_pilf", "elsewhere"]));
    let text = refusal(call(&lacking, "mix_pilf", Vec::new()));
    assert!(text.starts_with("loading 'lacking: elsewhere' on device 0: CUDA_ERROR_NOT_FOUND (500)"), "{text}");
    assert_eq!(fakes.notes(), ["push", "load on 0", "unload", "pop"]);
    let broken = Arc::new(program("broken", &[("k.cu", "BROKEN")], &["plain"]));
    match launch(0, 0, &[call(&broken, "plain", Vec::new())]) {
        Err(Error::Compile { program, arch, log, .. }) => {
            assert_eq!((program.as_str(), arch.as_str()), ("broken", "sm_90a"));
            assert!(log.contains("broken.cu(7)"), "{log}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_the_folder_keeps_is_not_compiled_again() {
    let Some((fakes, _one)) = Fakes::get() else { return };
    let made = (*mix("kept").program).clone();
    let target = octavo_cuda::arch::Target::choose(90, &[90]).unwrap();
    let (first, compiled) = octavo_cuda::prebuild(&made, target).unwrap();
    assert!(compiled);
    let (again, compiled) = octavo_cuda::prebuild(&made, target).unwrap();
    assert!(!compiled);
    assert_eq!(first, again);
    let before = fakes.compiles();
    launch(0, 0, &[call(&Arc::new(made), "plain", Vec::new())]).unwrap();
    assert_eq!(fakes.compiles(), before);
}
