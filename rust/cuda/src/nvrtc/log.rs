//! Parser of the assembler's report (`ptxas -v`): registers, spills and memory of each kernel.

/// What one kernel takes, as `ptxas -v` reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Name of the kernel.
    pub entry: String,
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes of the stack frame of a thread: local memory.
    pub stack: u32,
    /// Bytes that a thread stores for lack of registers.
    pub spill_stores: u32,
    /// Bytes that it reads back.
    pub spill_loads: u32,
    /// Bytes of static shared memory of a block.
    pub shared: u32,
}

/// Reads the lines of `ptxas -v`. Kernels that it does not report on are not in the result.
pub fn usage(log: &str) -> Vec<Usage> {
    let mut found: Vec<Usage> = Vec::new();
    for line in log.lines() {
        if let Some(rest) = line.split_once("Compiling entry function '").map(|(_, rest)| rest) {
            let entry = rest.split('\'').next().unwrap_or_default().to_owned();
            found.push(Usage { entry, ..Usage::default() });
        } else if let Some(usage) = found.last_mut() {
            for part in line.split(',') {
                let mut words = part.rsplit(':').next().unwrap_or_default().split_whitespace();
                read(usage, &mut words);
            }
        }
    }
    found
}

/// One of `N bytes stack frame`, `N bytes spill stores`, `N bytes spill loads`, `Used N registers`, `N bytes smem`.
fn read<'a>(usage: &mut Usage, words: &mut impl Iterator<Item = &'a str>) {
    let words: Vec<&str> = words.skip_while(|word| matches!(*word, "ptxas" | "." | "Used" | "used")).collect();
    let [count, rest @ ..] = words.as_slice() else { return };
    let Ok(count) = count.parse() else { return };
    match rest {
        ["registers", ..] => usage.registers = count,
        ["bytes", "stack", "frame"] => usage.stack = count,
        ["bytes", "spill", "stores"] => usage.spill_stores = count,
        ["bytes", "spill", "loads"] => usage.spill_loads = count,
        ["bytes", "smem"] => usage.shared = count,
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_the_report_are_read() {
        let log = "ptxas warning : Local memory used for function 'copy', size of stack frame: 160 bytes
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'copy' for 'sm_90a'
ptxas info    : Function properties for copy
ptxas         .     160 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 40 registers, used 0 barriers, 160 bytes cumulative stack size
ptxas info    : Compile time = 14.191 ms
ptxas info    : Compiling entry function 'scale' for 'sm_80'
ptxas info    : Function properties for scale
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, used 1 barriers, 256 bytes smem, 380 bytes cmem[0]
";
        let copy =
            Usage { entry: "copy".into(), registers: 40, stack: 160, spill_stores: 8, spill_loads: 12, shared: 0 };
        let scale = Usage { entry: "scale".into(), registers: 10, shared: 256, ..Usage::default() };
        assert_eq!(usage(log), [copy, scale]);
        assert_eq!(usage("nothing of the kind: 3 bytes\n"), []);
    }
}
