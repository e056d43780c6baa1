//! The dynamic map in which `dynamic8` keeps moments: 256 levels, dense near 0, of values over the largest magnitude of
//! their block.
//!
//! The scalar reference; `lanes::dynamic_map` gives the same bits. Source: Dettmers et al., 8-bit Optimizers via Block-wise
//! Quantization (2021), section 2.2.

/// Values that share a largest magnitude; the last block of a tensor may hold fewer.
pub(crate) const BLOCK: usize = 256;
/// Upper ends of the decades, the lowest first.
pub(crate) const DECADES: [f64; 7] = [1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0];

/// A map from codes to levels. A code is the index of its level.
#[derive(Debug)]
pub(crate) struct Map {
    /// Ascending, from -1 or 0 to 1.
    pub(crate) levels: [f32; 256],
    /// Middles of neighbouring levels, rounded to float32. A value on a border belongs to the lower level.
    pub(crate) borders: [f32; 255],
    /// The code of 0, which is the number of levels below it.
    pub(crate) zero: u8,
}

/// Levels of both signs: the first moment.
pub(crate) static SIGNED: Map = Map::new(true);
/// No level is negative: the second moment.
pub(crate) static UNSIGNED: Map = Map::new(false);

/// Level `index` above 0, which is index 0. Decade `i` holds the middles of `2^i` (signed) or `2^(i + 1)` equal parts of
/// 0.1 to 1 times its upper end; the last level is 1.
const fn magnitude(index: usize, signed: bool) -> f32 {
    let (last, first_parts) = if signed { (128, 1) } else { (255, 2) };
    if index == 0 {
        return 0.0;
    }
    if index == last {
        return 1.0;
    }
    // The levels below a decade are as many as its parts, less those that the first decade lacks.
    let at = index + first_parts - 1;
    let parts = 1 << at.ilog2();
    let decade = (at.ilog2() - first_parts.ilog2()) as usize;
    (DECADES[decade] * (0.1 + 0.9 * ((at - parts) as f64 + 0.5) / parts as f64)) as f32
}

impl Map {
    const fn new(signed: bool) -> Self {
        let zero = if signed { 127 } else { 0 };
        let (mut levels, mut borders) = ([0.0; 256], [0.0; 255]);
        let mut code = 0;
        while code < 256 {
            levels[code] = if code < zero { -magnitude(zero - code, signed) } else { magnitude(code - zero, signed) };
            code += 1;
        }
        code = 0;
        while code < 255 {
            borders[code] = ((levels[code] as f64 + levels[code + 1] as f64) / 2.0) as f32;
            code += 1;
        }
        Self { levels, borders, zero: zero as u8 }
    }

    /// The code of a value over the largest magnitude of its block. NaN counts as 0.
    pub(crate) fn code(&self, unit: f32) -> u8 {
        if unit.is_nan() { self.zero } else { self.borders.partition_point(|&border| border < unit) as u8 }
    }

    /// Encodes a block and returns its largest magnitude.
    ///
    /// Where a value is infinite or NaN, so is the largest magnitude, and all codes are those of 0: the whole block decodes
    /// to NaN.
    pub(crate) fn encode(&self, values: &[f32], codes: &mut [u8]) -> f32 {
        let larger = |a: f32, b: f32| if a.is_nan() || b.is_nan() { f32::NAN } else { a.max(b) };
        let largest = values.iter().map(|value| value.abs()).fold(0.0, larger);
        for (code, value) in codes.iter_mut().zip(values) {
            *code = self.code(value / divisor(largest));
        }
        largest
    }

    /// Decodes a block whose largest magnitude is `largest`. Inlined, so that a job compiles it for its level.
    #[inline(always)]
    pub(crate) fn decode(&self, codes: &[u8], largest: f32, values: &mut [f32]) {
        for (value, &code) in values.iter_mut().zip(codes) {
            *value = self.levels[usize::from(code)] * largest;
        }
    }
}

/// Values of a block are divided by its largest magnitude, those of a block of zeros or subnormals by the smallest normal
/// number.
pub(crate) fn divisor(largest: f32) -> f32 {
    if largest < f32::MIN_POSITIVE { f32::MIN_POSITIVE } else { largest }
}
