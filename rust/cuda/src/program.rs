//! [`Program`] (source and macros) and [`Call`] (kernel, grid, arguments): what operations produce, and what is compiled
//! and launched.

use std::fmt::Write as _;
use std::sync::Arc;

/// CUDA C++ and the macros that specialize it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Program {
    /// Names the program in errors and files: `decode-mxint8-bfloat16`.
    pub name: String,
    /// Texts of the source, in order, by file name: `("base.cu", include_str!("../kernels/base.cu"))`.
    pub files: &'static [(&'static str, &'static str)],
    /// Macros and their values.
    pub defines: Vec<(&'static str, String)>,
    /// Names of its `extern "C" __global__` functions.
    pub entries: &'static [&'static str],
}

impl Program {
    /// The whole source: macros, then the files. Lines keep the numbers they have in their files.
    pub fn source(&self) -> String {
        let mut source = String::new();
        for (name, value) in &self.defines {
            let _ = writeln!(source, "#define {name} {value}");
        }
        for (file, text) in self.files {
            let _ = writeln!(source, "#line 1 \"{file}\"\n{text}");
        }
        source
    }
}

/// A matrix of bytes as the tensor memory accelerator of devices from compute capability 9.0 on copies it: in boxes of
/// rows of 128 bytes, eight of which lie in shared memory with piece `c` of 16 bytes of row `r` at `c ^ (r & 7)`. What a
/// box has beyond the matrix is zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorMap {
    /// Where it begins, a multiple of 16.
    pub address: u64,
    /// Its rows, at most 2^32.
    pub rows: u64,
    /// Bytes of a row that belong to it, at most 2^32.
    pub columns: u64,
    /// Bytes from one row to the next, a multiple of 16 below 2^40.
    pub pitch: u64,
    /// Rows of a box, at most 256.
    pub box_rows: u32,
}

impl TensorMap {
    /// Bytes of a row of a box.
    pub const BOX_COLUMNS: u32 = 128;
}

/// An argument of a kernel, passed by value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Argument {
    /// An address on the device, `0` for none.
    Address(u64),
    /// `int`.
    I32(i32),
    /// `long long`.
    I64(i64),
    /// `float`.
    F32(f32),
    /// `const __grid_constant__ TensorMap`.
    Map(TensorMap),
}

/// One launch of a kernel.
#[derive(Clone, Debug)]
pub struct Call {
    /// The program, shared by all its calls.
    pub program: Arc<Program>,
    /// Which of its kernels.
    pub entry: &'static str,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub shared: u32,
    /// In the order of the kernel's parameters.
    pub arguments: Vec<Argument>,
    /// May begin before the call ahead of it in the same list has ended: the kernel waits for it (`wait_for_predecessor`)
    /// before it reads what that one wrote, and before it writes. Devices from sm_90 on do so.
    pub early: bool,
}
