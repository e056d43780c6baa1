//! Launches of `kernels/dropout_norm.cu`, the twin of `octavo_core::dropout_norm`.

use std::sync::Arc;

use octavo_core::DType;
use octavo_core::dropout_norm::Mask;

use crate::linear::{Numbers, code};
use crate::{Argument, Call, Error, Program, Result};

const FILES: &[(&str, &str)] = &[
    ("base.cu", include_str!("../kernels/base.cu")),
    ("values.cu", include_str!("../kernels/linear/values.cu")),
    ("dropout_norm.cu", include_str!("../kernels/dropout_norm.cu")),
];
/// Columns that registers hold, at most.
pub const WIDEST: usize = 8_192;
/// Columns that a warp takes at a time, and times that registers hold.
const COLUMNS: usize = 128;
const PIECES: usize = 4;

/// Rows, and what they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    /// Their number.
    pub rows: usize,
    /// Numbers of a row.
    pub width: usize,
    /// Dtype of x and its gradient.
    pub x: DType,
    /// Dtype of the branch and its gradient.
    pub branch: DType,
    /// Dtype of the rest.
    pub stream: DType,
}

/// What holds for all rows. Addresses are 0 where there is none.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct How {
    /// float32, a factor for each column.
    pub gain: u64,
    /// float32, one factor of the branch.
    pub scale: u64,
    /// int64, the key of the mask.
    pub seed: u64,
    /// Factor of the branch, that of the drop-out included.
    pub weight: f32,
    /// Chance of a 0.
    pub chance: f64,
    /// Added to the mean square.
    pub epsilon: f32,
}

/// How rows are computed.
#[derive(Clone, Debug)]
pub struct DropoutNorm {
    program: Arc<Program>,
    rows: Rows,
    threads: u32,
    /// Rows that a block has at a time, and blocks.
    teams: usize,
    blocks: u32,
}

impl DropoutNorm {
    /// The calls of a device with so many multiprocessors; an error for rows that the kernels do not take.
    pub fn new(rows: Rows, multiprocessors: u32) -> Result<Self> {
        let Rows { rows: count, width, .. } = rows;
        let too_many = count.checked_mul(width).is_none_or(|all| all > i64::MAX as usize / 4);
        if count == 0 || width == 0 || width > WIDEST || too_many {
            let text = format!("drop-out and norm of {count} rows of {width} numbers; a row has 1 to {WIDEST}");
            return Err(Error::Core(octavo_core::Error::shape(text)));
        }
        let warps = width.div_ceil(COLUMNS * PIECES).next_power_of_two();
        let threads = (32 * warps).max(256);
        let teams = threads / 32 / warps;
        let blocks = count.div_ceil(teams).min(4 * multiprocessors.max(1) as usize) as u32;
        let defines = [
            ("X", code(rows.x) as usize),
            ("BRANCH", code(rows.branch) as usize),
            ("STREAM", code(rows.stream) as usize),
            ("WIDTH", width),
            ("WARPS", warps),
            ("THREADS", threads),
        ];
        let defines = defines.map(|(name, value)| (name, value.to_string())).to_vec();
        let name = format!("dropout-norm-{}-{width}", rows.stream.name());
        let program = Arc::new(Program { name, files: FILES, defines, entries: &["forward", "backward"] });
        Ok(Self { program, rows, threads: threads as u32, teams, blocks })
    }

    /// The kernels.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Rows of float32 that [`DropoutNorm::backward`] writes for the gradients of gains, which are their sum.
    pub const fn parts(&self) -> usize {
        self.blocks as usize * self.teams
    }

    /// Writes the sums and the normed rows, of the dtype of the stream, and a float32 for each row.
    pub fn forward(&self, x: u64, branch: u64, how: &How, [stream, normed, rates]: [u64; 3]) -> Result<Call> {
        let (x, branch) =
            (Numbers { address: x, dtype: self.rows.x }, Numbers { address: branch, dtype: self.rows.branch });
        let of_stream = |address| Numbers { address, dtype: self.rows.stream };
        check(&[x, branch, of_stream(stream), of_stream(normed)], rates, how)?;
        let own = [x.address, branch.address, how.gain, how.scale, how.seed].map(Argument::Address).into_iter();
        let own = own.chain(self.numbers(how)).chain([Argument::F32(how.epsilon)]);
        Ok(self.call("forward", own.chain([stream, normed, rates].map(Argument::Address)).collect()))
    }

    /// Writes the gradients of x and of the branch. `slopes`: gradients of the sums and of the normed rows, the sums, and
    /// what [`DropoutNorm::forward`] wrote for each row. `parts`: `[parts, width]` float32, where there are gains.
    pub fn backward(&self, slopes: [u64; 4], how: &How, of_x: u64, of_branch: u64, parts: u64) -> Result<Call> {
        let of_stream = |address| Numbers { address, dtype: self.rows.stream };
        let x = Numbers { address: of_x, dtype: self.rows.x };
        let branch = Numbers { address: of_branch, dtype: self.rows.branch };
        let [first, second, third, rates] = slopes;
        check(&[x, branch, of_stream(first), of_stream(second), of_stream(third)], rates, how)?;
        if !parts.is_multiple_of(4) || (how.gain != 0) != (parts != 0) {
            return Err(refused("gradients of gains have memory where there are gains"));
        }
        let own = slopes.into_iter().chain([how.gain, how.scale, how.seed]).map(Argument::Address);
        let out = [of_x, of_branch, parts].map(Argument::Address);
        Ok(self.call("backward", own.chain(self.numbers(how)).chain(out).collect()))
    }

    /// Rows, factor and threshold.
    fn numbers(&self, how: &How) -> [Argument; 3] {
        let threshold = Mask::new(0, how.chance).map_or(0, |mask| mask.threshold.cast_signed());
        [Argument::I64(self.rows.rows as i64), Argument::F32(how.weight), Argument::I32(threshold)]
    }

    fn call(&self, entry: &'static str, arguments: Vec<Argument>) -> Call {
        let (grid, block) = ([self.blocks, 1, 1], [self.threads, 1, 1]);
        Call { program: self.program.clone(), entry, grid, block, shared: 0, arguments, early: false }
    }
}

fn check(numbers: &[Numbers], rates: u64, how: &How) -> Result<()> {
    let fits = |numbers: &Numbers| numbers.address != 0 && numbers.address.is_multiple_of(numbers.dtype.bytes() as u64);
    let words = [rates, how.gain, how.scale].iter().all(|address| address.is_multiple_of(4));
    if !numbers.iter().all(fits) || rates == 0 || !words || !how.seed.is_multiple_of(8) {
        return Err(refused("an address is none, or no multiple of the bytes of a number"));
    }
    if !(0.0..1.0).contains(&how.chance) || (how.chance > 0.0 && how.seed == 0) {
        return Err(refused("a chance from 0 to below 1 has a seed unless it is 0"));
    }
    Ok(())
}

fn refused(text: &str) -> Error {
    Error::Core(octavo_core::Error::shape(format!("drop-out and norm: {text}")))
}
