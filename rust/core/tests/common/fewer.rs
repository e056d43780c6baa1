//! How many cases long tests take: all of them, or a share where every instruction is emulated.

#![allow(dead_code, reason = "a test counts its cases or numbers them")]

/// `all`, or one in N where the variable `OCTAVO_FEWER_CASES` is N; at least one. CONTRIBUTING.md says what N leaves.
pub(crate) fn fewer(all: usize) -> usize {
    all.div_ceil(share())
}

/// True where a case is among the [`fewer`] of `all` that have their turn; each turn takes one at least.
pub(crate) fn takes(case: usize, all: usize, turn: usize) -> bool {
    (case + turn) % all < fewer(all)
}

fn share() -> usize {
    std::env::var("OCTAVO_FEWER_CASES").map_or(1, |text| text.parse().expect("OCTAVO_FEWER_CASES: a number from 1 on"))
}
