//! The scalar references stand below the dispatch.

/// The definition of codecs, products and solvers, by file.
const REFERENCES: [(&str, &str); 8] = [
    ("codec/grid.rs", include_str!("../src/codec/grid.rs")),
    ("codec/scale.rs", include_str!("../src/codec/scale.rs")),
    ("codec/dynamic_map.rs", include_str!("../src/codec/dynamic_map.rs")),
    ("codec/reference.rs", include_str!("../src/codec/reference.rs")),
    ("linear/reference.rs", include_str!("../src/linear/reference.rs")),
    ("solve/reference.rs", include_str!("../src/solve/reference.rs")),
    ("sparse/reference.rs", include_str!("../src/sparse/reference.rs")),
    ("dropout_norm/reference.rs", include_str!("../src/dropout_norm/reference.rs")),
];

#[test]
fn references_call_nothing_fast() {
    for (name, text) in REFERENCES {
        for line in text.lines().map(str::trim_start).filter(|line| !line.starts_with("//")) {
            let fast = [
                "simd",
                "lanes::",
                "Level::",
                "target_feature",
                "std::arch",
                "pool::",
                "super::fit",
                "super::round",
                "wide_sums",
            ];
            for fast in fast {
                assert!(!line.contains(fast), "{name}: {line}");
            }
        }
    }
}
