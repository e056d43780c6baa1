//! A spelling or more of every family, and the one nearest to an unknown text.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects, clippy::cast_possible_truncation)]

/// Spellings offered when a text is unknown, and the list that `octavo formats` shows: one or more of every family.
pub fn catalogue() -> &'static [&'static str] {
    &[
        "fp32",
        "fp16",
        "bf16",
        "fixed8.4",
        "fixed16.8",
        "ufixed8.4",
        "fixed8",
        "fixed8:channel",
        "fixed8:mse",
        "fixed4",
        "ufixed8",
        "int8",
        "int8:channel",
        "int8:g32",
        "int6:g32",
        "int4:g32",
        "int4:g128",
        "int4:channel",
        "int3:g32",
        "int2:g32",
        "int4:g32,full",
        "int5:g32,full",
        "int16",
        "uint8",
        "uint8:channel",
        "uint4:g32",
        "uint4:g32,offset",
        "uint5:g32,offset",
        "e4m3",
        "e5m2",
        "e4m3:finite",
        "e5m2:finite",
        "e3m4",
        "e3m2",
        "e2m3",
        "e2m1",
        "e4m3b11",
        "e5m10",
        "e8m7",
        "denorm8e4",
        "denorm6e3",
        "log8",
        "log4",
        "binary",
        "binary:unit",
        "binary:channel",
        "binary2:channel",
        "ternary",
        "ternary:unit",
        "ternary:channel",
        "bfp8/16",
        "bfp6/16",
        "bfp4/16",
        "bm8e4/16",
        "bm6e3/16",
        "bm4e2/16",
        "blog8/16",
        "blog4/16",
        "mxint8",
        "mxint6",
        "mxint4",
        "mxint3",
        "mxint2",
        "mxint16",
        "mxfp8e4m3",
        "mxfp8e5m2",
        "mxfp6e3m2",
        "mxfp6e2m3",
        "mxfp4",
        "nvfp4",
        "nf4",
        "nf3",
    ]
}

/// The spelling of the catalogue nearest to a text, if it is near.
pub(super) fn nearest(text: &str) -> Option<&'static str> {
    let lower = text.to_lowercase();
    let nearest = catalogue().iter().min_by_key(|candidate| (edit_distance(&lower, candidate), candidate.len()));
    nearest.copied().filter(|name| edit_distance(&lower, name) <= 3)
}

/// Levenshtein distance, one row at a time.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = i;
        let mut left = i.saturating_add(1);
        if let Some(first) = row.first_mut() {
            *first = left;
        }
        for (cell, cb) in row.iter_mut().skip(1).zip(&b) {
            let substituted = diagonal.saturating_add(usize::from(ca != *cb));
            diagonal = *cell;
            left = substituted.min(cell.saturating_add(1)).min(left.saturating_add(1));
            *cell = left;
        }
    }
    row.last().copied().unwrap_or(0)
}
