//! Limits of CUDA that every launch must obey, on a device or in the emulation.

use crate::{Call, Error, Result};

/// Blocks of a grid's first dimension, and of its second and third.
const GRID: [u32; 3] = [i32::MAX as u32, 65_535, 65_535];
/// Threads of a block's dimensions.
const BLOCK: [u32; 3] = [1024, 1024, 64];

/// Refuses a call that no device can launch, or whose block has more than `threads` threads or `shared` bytes of dynamic
/// shared memory.
pub fn check(call: &Call, threads: u32, shared: u32) -> Result<()> {
    let fail = |text: String| Err(Error::Launch(format!("kernel '{}: {}': {text}", call.program.name, call.entry)));
    for (what, given, most) in [("grid", call.grid, GRID), ("block", call.block, BLOCK)] {
        if given.iter().zip(most).any(|(&given, most)| given == 0 || given > most) {
            return fail(format!("{what} {given:?}; accepted are 1 to {most:?}"));
        }
    }
    let given: u64 = call.block.iter().map(|&side| u64::from(side)).product();
    if given > u64::from(threads) {
        return fail(format!("{given} threads a block; the kernel's registers allow {threads}"));
    }
    if call.shared > shared {
        return fail(format!("{} bytes of dynamic shared memory a block; there are {shared}", call.shared));
    }
    Ok(())
}

/// Blocks that cover `total` items, `each` items a block; an error where a grid cannot have as many.
pub fn blocks(total: u64, each: u64) -> Result<u32> {
    let blocks = total.div_ceil(each.max(1));
    u32::try_from(blocks).ok().filter(|&blocks| blocks <= GRID[0]).ok_or_else(|| {
        Error::Launch(format!("{total} items, {each} a block, are {blocks} blocks; a grid has at most {}", GRID[0]))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Program;

    fn call(grid: [u32; 3], block: [u32; 3], shared: u32) -> Call {
        let program = Program { name: "p".into(), files: &[], defines: Vec::new(), entries: &["e"] };
        Call { program: program.into(), entry: "e", grid, block, shared, arguments: Vec::new(), early: false }
    }

    #[test]
    fn a_launch_stays_inside_what_devices_have() {
        assert!(check(&call([i32::MAX as u32, 65_535, 1], [1024, 1, 1], 100), 1024, 100).is_ok());
        for bad in [
            call([0, 1, 1], [1, 1, 1], 0),
            call([1 << 31, 1, 1], [1, 1, 1], 0),
            call([1, 65_536, 1], [1, 1, 1], 0),
            call([1, 1, 1], [1, 0, 1], 0),
            call([1, 1, 1], [1024, 1024, 64], 0),
            call([1, 1, 1], [32, 17, 1], 0),
            call([1, 1, 1], [1, 1, 1], 101),
        ] {
            let error = check(&bad, 512, 100).unwrap_err().to_string();
            assert!(error.starts_with("kernel 'p: e': "), "{error}");
        }
    }

    #[test]
    fn blocks_are_counted_in_64_bits() {
        assert_eq!((blocks(0, 256).unwrap(), blocks(1, 256).unwrap(), blocks(257, 256).unwrap()), (0, 1, 2));
        assert_eq!(blocks(1 << 38, 1 << 10).unwrap(), 1 << 28);
        assert!(blocks(1 << 41, 1 << 10).is_err());
        assert!(blocks(u64::MAX, 0).is_err());
    }
}
