//! The programs that products with weights of a format may need, for compilation ahead of time.

use octavo_core::format::Element;
use octavo_core::{DType, Format};

use super::{Device, Integer, Linear, Numbers, choose};
use crate::Program;
use crate::arch::Arch;
use crate::gemm::{Bias, Gemm, Output, Product, Scales};

/// Rows of inputs that go to different kernels of integer products.
const ROWS: [usize; 4] = [1, 16, 64, 4096];

/// Programs for large aligned layers, one row and batches, all dtypes. Odd shapes compile at their first use.
pub fn programs(format: Format, arch: Arch) -> Vec<Program> {
    let device = Device { multiprocessors: 132, arch };
    let (n, k, wide) = (4096, 4096, 32_768);
    let mut made = Vec::new();
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let x = Numbers { address: 0, dtype };
        // Limbs of long rows do not fit the memory of a block.
        for (m, k) in [(1, k), (2, k), (4, k), (8, k), (16, k), (32, k), (64, k), (1, wide), (2, wide), (4, wide)] {
            let linear = Linear { format, m, n, k, x, parts: [0; 4], bias: None, out: 0 };
            if let Ok(Some(kernel)) = choose(&linear, device) {
                made.push(kernel.program().clone());
            }
        }
        for (m, input) in ROWS.into_iter().flat_map(|m| ["int8", "int8:channel"].map(|input| (m, input))) {
            let Ok(input) = Format::parse(input) else { continue };
            let (codes, scales, input_scales, bias, out) = (0, 0, 0, Bias::None, 0);
            let integer = Integer { format, input, m, n, k, x, codes, scales, input_scales, bias, out };
            // Other formats have no such product.
            if let Ok(plan) = integer.plan(0, device) {
                made.extend(plan.programs().map(Clone::clone));
            }
        }
    }
    if matches!((format.element(), format.width()), (Element::Int { signed: true, .. }, 8)) {
        // Matrices of such codes are multiplied by themselves, too.
        let scales = Scales { address: 0, each: true };
        let (row_scales, column_scales) = (scales, scales);
        for (m, output) in ROWS.into_iter().flat_map(|m| [Output::Sum, Output::Byte(0)].map(|out| (m, out))) {
            let (x, stride, codes, width, bias, out) = (0, k, 0, 8, Bias::None, 0);
            let product = Product { m, n, k, x, stride, codes, width, row_scales, column_scales, bias, out, output };
            made.extend(Gemm::new(&product, device).map(|gemm| gemm.program().clone()));
        }
    }
    let mut found: Vec<Program> = Vec::new();
    for program in made {
        if !found.contains(&program) {
            found.push(program);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_listed_once() {
        let on = |text: &str, arch: &str| programs(Format::parse(text).unwrap(), arch.parse().unwrap());
        let count = |text: &str| on(text, "sm_80").len();
        // Limbs for 1, 2, 4, 8 and 16 rows, float32 up to 8, those of long rows, and those of more rows for each dtype.
        assert_eq!(count("mxint8"), 5 + 5 + 4 + 8 + 1 + 1 + 2);
        // Quantizing and two or three products of integers.
        assert!(count("int8:channel") > count("mxint8"));
        assert_eq!(count("fp16"), 0);
        // Those of warpgroups are there for the one architecture that has them.
        for (arch, most) in [("sm_80", 0), ("sm_90", 0), ("sm_90a", 5), ("sm_100a", 0), ("sm_120a", 0)] {
            let found = on("int8:channel", arch).into_iter().filter(|made| made.name.contains("warpgroups"));
            assert_eq!(found.count(), most, "{arch}");
            assert!(on("int8:channel", arch).iter().any(|made| made.name == "int8-gemm-bfloat16"), "{arch}");
        }
    }
}
