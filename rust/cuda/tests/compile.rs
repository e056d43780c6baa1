//! Compiling with a real compiler, where there is one.

mod common;

use octavo_cuda::arch::Target;
use octavo_cuda::nvrtc::usage;
use octavo_cuda::{Error, Program};

use common::{nvrtc, program};

const SCALE: &[(&str, &str)] = &[(
    "scale.cu",
    r#"extern "C" __global__ void __launch_bounds__(256) scale(float* y, const float* x, long long n, float a) {
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + SHIFT;
}
"#,
)];

fn scale(shift: &str) -> Program {
    Program { defines: vec![("SHIFT", shift.to_owned())], ..program("scale", SCALE, &["scale"]) }
}

#[test]
fn a_kernel_compiles_for_every_architecture_that_the_compiler_knows() {
    let Some(nvrtc) = nvrtc() else { return };
    for arch in nvrtc.archs() {
        let image = nvrtc.compile(&scale("1.5f"), Target::Cubin(arch)).unwrap();
        assert!(image.code.starts_with(b"\x7fELF"), "{arch}");
        let [scale] = usage(&image.log).try_into().unwrap();
        assert_eq!((scale.entry.as_str(), scale.stack, scale.spill_stores, scale.spill_loads), ("scale", 0, 0, 0));
        assert!((1..=32).contains(&scale.registers), "{arch}: {scale:?}");
    }
    let ptx = nvrtc.compile(&scale("1.5f"), Target::Ptx(80)).unwrap().code;
    let ptx = String::from_utf8(ptx).unwrap();
    assert!(ptx.contains(".target sm_80") && !ptx.contains("fma"), "products are not contracted\n{ptx}");
}

#[test]
fn a_program_that_does_not_compile_gives_the_compilers_log() {
    let Some(nvrtc) = nvrtc() else { return };
    match nvrtc.compile(&scale("nothing_of_the_kind"), Target::Cubin(nvrtc.archs()[0])) {
        Err(Error::Compile { program, arch, reason, log }) => {
            assert_eq!((program.as_str(), arch.as_str()), ("scale", "sm_80"));
            assert!(reason.contains("NVRTC_ERROR_COMPILATION"), "{reason}");
            assert!(log.contains("scale.cu(3)") && log.contains("nothing_of_the_kind"), "{log}");
        }
        other => panic!("{other:?}"),
    }
}
