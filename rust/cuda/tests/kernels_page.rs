//! `docs/kernels.md` is what the tables of kernels give.

#![cfg(target_arch = "x86_64")]

#[path = "../examples/kernels.rs"]
#[allow(dead_code, reason = "a test writes no file")]
mod kernels;

#[test]
fn the_page_of_kernels_is_current() {
    let page = kernels::page().expect("the formats of the catalogue");
    let current = include_str!("../../../docs/kernels.md");
    let differs = page.lines().zip(current.lines()).find(|(wanted, line)| wanted != line);
    assert!(page == current, "cargo run -p octavo-cuda --example kernels writes another page: {differs:?}");
}
