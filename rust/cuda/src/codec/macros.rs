//! The macros that specialize the codec kernels for a format. kernels/codec/*.cu document each macro.

use octavo_core::codec::lowered::{Chooser, ExponentRule, Grid, Integers};
use octavo_core::float::{exp2, floor_log2};
use octavo_core::format::{Element, Granularity, ScaleType, Specials};
use octavo_core::{DType, Format};

/// Macros with their values.
pub(crate) type Macros = Vec<(&'static str, String)>;

/// The macros of all programs of a format and a dtype.
pub(crate) fn of(format: Format, dtype: DType) -> Macros {
    let mut all = Vec::new();
    let dtype_code = match dtype {
        DType::F32 => 0,
        DType::F16 => 1,
        DType::BF16 => 2,
    };
    put(&mut all, "DTYPE", dtype_code);
    put(&mut all, "WIDTH", i64::from(format.width()));
    put(&mut all, "NAN_CODE", i64::from(format.nan_code()));
    grid(&mut all, format);
    scale(&mut all, format);
    chooser(&mut all, format);
    put(&mut all, "SATURATES", saturates(format, dtype));
    all
}

fn put(all: &mut Macros, name: &'static str, value: i64) {
    // A literal beyond the range of int needs a suffix.
    let suffix = if i32::try_from(value).is_ok() { "" } else { "LL" };
    all.push((name, if value < 0 { format!("({value}{suffix})") } else { format!("{value}{suffix}") }));
}

fn put_real(all: &mut Macros, name: &'static str, value: f64) {
    all.push((name, format!("({value:e})")));
}

fn grid(all: &mut Macros, format: Format) {
    let grid = Grid::of(format);
    match &grid {
        Grid::Integer { lo, hi, layout } => {
            let kind = match layout {
                Integers::TwosComplement => 0,
                Integers::SignMagnitude => 1,
                Integers::Offset => 2,
            };
            put(all, "GRID", kind);
            put(all, "LOW", *lo);
            put(all, "HIGH", *hi);
        }
        Grid::Affine { lo, hi } => {
            put(all, "GRID", 6);
            put(all, "LOW", (*lo).into());
            put(all, "HIGH", (*hi).into());
        }
        Grid::Float(float) => {
            put(all, "GRID", 3);
            put(all, "MANTISSA", i64::from(float.mantissa));
            put(all, "EMIN", i64::from(float.emin));
            put(all, "TOP", i64::from(float.top_index()));
            let specials = match float.specials {
                Specials::Finite => 0,
                Specials::NanOnly => 1,
                Specials::Ieee => 2,
            };
            put(all, "SPECIALS", specials);
            put(all, "EXPLICIT_ONE", float.explicit_one.into());
        }
        Grid::Book(levels) => {
            put(all, "GRID", 4);
            let levels: Vec<String> = levels.iter().map(|level| format!("{level:e}f")).collect();
            all.push(("BOOK", levels.join(", ")));
        }
        Grid::Levels(levels) => {
            put(all, "GRID", 5);
            put(all, "LEVELS", i64::from(*levels));
        }
    }
    // The gradient of `binary:unit` passes -1 to 1, that of scaled levels everything.
    let unit = format.granularity() == Granularity::None;
    let (lowest, highest) = if matches!(grid, Grid::Levels(_)) { (-1.0, 1.0) } else { grid.range() };
    put(all, "UNBOUNDED", (matches!(grid, Grid::Levels(_)) && !unit).into());
    put_real(all, "LOWEST", lowest);
    put_real(all, "HIGHEST", highest);
}

fn scale(all: &mut Macros, format: Format) {
    let step = match format.scale_type() {
        None => 0,
        Some(ScaleType::F32) => 1,
        Some(ScaleType::F16) => 2,
        Some(ScaleType::E8M0) => 3,
        Some(ScaleType::E4M3) => 4,
        Some(ScaleType::I8) => 5,
        Some(ScaleType::Nested) => 6,
    };
    put(all, "STEP", step);
    let (groups, block) = match format.granularity() {
        Granularity::None => (0, 0),
        Granularity::Tensor => (1, 0),
        Granularity::Channel => (2, 0),
        Granularity::Block(block) => (3, block),
    };
    put(all, "GROUPS", groups);
    put(all, "BLOCK", block.into());
    put(all, "PER_GROUP", format.scales_per_group() as i64);
    put(all, "ZEROS", format.has_zeros().into());
    if let Element::KQuant(kind) = format.element() {
        put(all, "NESTED", kind.width().into());
        put(all, "SUBGROUP", kind.group() as i64);
    }
}

fn chooser(all: &mut Macros, format: Format) {
    let (mut unit, mut shift, mut qmax) = (0, 0, 1.0);
    let (mut emax, mut fits) = (0, 0);
    let kind = match Chooser::of(format) {
        Chooser::Unit(step) => {
            unit = floor_log2(step);
            0
        }
        Chooser::Fraction { .. } => 1,
        Chooser::Symmetric { qmax: largest } => {
            qmax = f64::from(largest);
            2
        }
        Chooser::Asymmetric { qmax: largest } => {
            qmax = largest;
            3
        }
        Chooser::Binary { .. } => 4,
        Chooser::Ternary => 5,
        Chooser::Exponent { default, shift: bits } => {
            shift = bits;
            match default {
                ExponentRule::Floor { emax: top } => {
                    emax = top;
                    6
                }
                ExponentRule::Fits { m } => {
                    fits = m;
                    7
                }
                ExponentRule::NearestPower => 8,
            }
        }
        // Nothing is encoded.
        Chooser::Carried => -1,
        Chooser::NvFp4 => 9,
        Chooser::FullRange { most } => {
            qmax = f64::from(most);
            10
        }
        Chooser::Affine { qmax: largest } => {
            qmax = largest;
            11
        }
    };
    put(all, "CHOOSER", kind);
    put(all, "UNIT", unit.into());
    put(all, "SHIFT", shift.into());
    put(all, "EMAX", emax.into());
    put(all, "FITS", fits.into());
    put_real(all, "QMAX", qmax);
    let unsigned = matches!(format.element(), Element::Fixed { signed: false, .. });
    put(all, "RANGE", (format.has_zeros() || unsigned || format.has_signed_scales()).into());
}

/// The least scale code at which a value may lie beyond the dtype: 0 always, 256 never.
fn saturates(format: Format, dtype: DType) -> i64 {
    let largest = f64::from(dtype.largest());
    let grid = Grid::of(format);
    let top = match grid {
        // Codes that no encoder writes are read as well.
        Grid::Integer { layout: Integers::TwosComplement, lo, .. } if lo < 0 => exp2(format.width() as i32 - 1),
        Grid::Levels(levels) => f64::from(levels),
        // The offset is another float16.
        Grid::Affine { lo, hi } => f64::from(hi.max(-lo)) + 1.0,
        _ => grid.range().1,
    };
    let beyond = |exponent: i32| top * exp2(exponent) > largest;
    match (format.scale_type(), Chooser::of(format)) {
        (None, Chooser::Unit(step)) if top * step <= largest => 256,
        (Some(ScaleType::F16), _) if top * 65_504.0 <= largest => 256,
        (Some(ScaleType::E8M0), Chooser::Exponent { shift, .. }) => {
            (0..255).find(|&code| beyond(code - 127 - shift)).map_or(256, i64::from)
        }
        _ => 0,
    }
}
