//! The description of one codec call: grid and chooser of the format, source and target of scales.

use crate::error::{Error, FormatError, Result};
use crate::float::exp2;
use crate::format::{Element, Format, Granularity, ScaleType};
use crate::simd::Level;

use super::grid::{Grid, GroupScale};
use super::scale::{block_step, resolve_real};
use super::scale_search::{Chooser, RawScale, ScaleRule, load_scale, store_scale};
use super::{Nonfinite, Packed};

/// Elements of float32 from which results are written past the caches: 32 MiB. A store through them reads memory first.
const STREAMED: usize = 8 << 20;

/// Where the scales of a piece come from.
#[derive(Clone, Copy)]
pub(crate) enum Scales {
    /// Chosen from the values, group by group.
    Choose,
    /// Read from `scale_in` (and `zero_in`).
    Stored,
}

/// Everything a piece function needs, the values and codes aside.
///
/// What functions on groups rely on: `level` is one that this processor has. Where scales are `Stored`, `scale_in` holds one
/// for each group that they are given (one alone for `:tensor`), and `zero_in`, unless null, a zero point. `scale_out` and
/// `zero_out`, unless null, have room for those of each group, which no two threads are given. All outlive the call.
#[derive(Clone, Copy)]
pub(crate) struct Work {
    pub(crate) format: Format,
    pub(crate) grid: Grid,
    pub(crate) chooser: Chooser,
    pub(crate) width: u32,
    pub(crate) rule: ScaleRule,
    pub(crate) nonfinite: Nonfinite,
    pub(crate) level: Level,
    pub(crate) scales: Scales,
    pub(crate) scale_in: *const u8,
    pub(crate) zero_in: *const u16,
    /// Null where chosen scales are not kept (`quantize`).
    pub(crate) scale_out: *mut u8,
    pub(crate) zero_out: *mut u16,
    /// The caller gave the scales.
    pub(crate) given: bool,
    /// nvfp4's tensor scale.
    pub(crate) tensor: f32,
    /// What an infinity counts as.
    pub(crate) largest: f32,
    /// Results, float32 or codes of a byte, go past the caches, which could not hold them.
    pub(crate) stream: bool,
}

// SAFETY: what is behind the pointers is plain numbers, written for disjoint groups by different threads.
unsafe impl Send for Work {}
// SAFETY: as above.
unsafe impl Sync for Work {}

impl Work {
    pub(crate) fn new(format: Format, level: Level) -> Self {
        Self {
            format,
            grid: Grid::of(format),
            chooser: Chooser::of(format),
            width: format.width(),
            rule: ScaleRule::Floor,
            nonfinite: Nonfinite::Saturate,
            level,
            scales: Scales::Choose,
            scale_in: std::ptr::null(),
            zero_in: std::ptr::null(),
            scale_out: std::ptr::null_mut(),
            zero_out: std::ptr::null_mut(),
            given: false,
            tensor: 0.0,
            largest: f32::MAX,
            stream: false,
        }
    }

    /// Lets `elements` results at `out` go past the caches where they are many.
    pub(crate) fn stream_to<T>(&mut self, out: *const T, elements: usize) {
        self.stream = elements >= STREAMED && out.addr().is_multiple_of(64);
    }

    pub(crate) fn float16(&self) -> bool {
        self.format.scale_type() == Some(ScaleType::F16)
    }

    /// The group that begins a block of that number: a block is one, but of a K-quant several.
    pub(crate) fn first_group(&self, block: usize) -> usize {
        if let Element::KQuant(kind) = self.format.element() { block * kind.groups() } else { block }
    }

    /// Elements that share a scale inside a piece of `len` elements.
    pub(crate) fn group_len(&self, len: usize) -> usize {
        match (self.format.element(), self.format.granularity()) {
            (Element::KQuant(kind), _) => kind.group(),
            (_, Granularity::Block(block)) => block as usize,
            _ => len.max(1),
        }
    }

    /// The arithmetic form of a stored scale.
    pub(crate) fn resolve(&self, raw: &RawScale) -> GroupScale {
        let mut scale = GroupScale::step(1.0);
        match self.chooser {
            Chooser::Unit(step) => {
                scale.step = step;
                scale.levels = [1.0; 4];
            }
            Chooser::Fraction { .. } => scale.step = exp2(-i32::from(raw.bits[0] as u8 as i8)),
            Chooser::Symmetric { .. } => scale.step = resolve_real(raw.bits[0], self.float16()),
            Chooser::Asymmetric { .. } => {
                scale.step = resolve_real(raw.bits[0], self.float16());
                scale.zero = i32::from(raw.zero);
            }
            Chooser::FullRange { .. } => scale.step = resolve_real(raw.bits[0], true),
            Chooser::Affine { .. } => {
                scale.step = resolve_real(raw.bits[0], true);
                scale.offset = resolve_real(raw.bits[1], true) + 0.0; // zero has no sign
            }
            Chooser::Carried => {
                scale.step = f64::from(f32::from_bits(raw.bits[0]));
                scale.offset = f64::from(f32::from_bits(raw.bits[1])) + 0.0;
            }
            Chooser::Binary { .. } => scale.levels = raw.bits.map(f32::from_bits),
            Chooser::Ternary => scale.step = f64::from(f32::from_bits(raw.bits[0])),
            Chooser::Exponent { .. } | Chooser::NvFp4 => {
                scale.step = block_step(&self.chooser, raw.bits[0] as u8, self.tensor);
            }
        }
        scale
    }

    /// Reads the stored scale of a group.
    pub(crate) fn load(&self, group: usize) -> RawScale {
        let Some(kind) = self.format.scale_type() else { return RawScale::default() };
        if let Element::KQuant(nested) = self.format.element() {
            let (block, group, bytes) = (group / nested.groups(), group % nested.groups(), nested.scale_bytes());
            // SAFETY: scales are there for the group, and so those of its block.
            let stored = unsafe { std::slice::from_raw_parts(self.scale_in.add(block * bytes), bytes) };
            let (step, offset) = super::kquants::group(nested, stored, group);
            return RawScale { bits: [step.to_bits(), offset.to_bits(), 0, 0], zero: 0 };
        }
        let group = if self.format.granularity() == Granularity::Tensor { 0 } else { group };
        // SAFETY: scales and zero points are there for the group, as the type says; they are stored, or nobody asks.
        unsafe {
            RawScale {
                bits: load_scale(self.scale_in, kind, self.format.scales_per_group(), group),
                zero: if self.zero_in.is_null() { 0 } else { *self.zero_in.add(group) },
            }
        }
    }

    /// Stores a chosen scale, where the caller keeps scales.
    pub(crate) fn store(&self, group: usize, raw: &RawScale) {
        let Some(kind) = self.format.scale_type() else { return };
        // SAFETY: there is room for the group's, as the type says, and no other thread has the group.
        unsafe {
            if !self.scale_out.is_null() {
                store_scale(self.scale_out, kind, self.format.scales_per_group(), group, &raw.bits);
            }
            if !self.zero_out.is_null() {
                *self.zero_out.add(group) = raw.zero;
            }
        }
    }

    /// The scale of a group: chosen by `choose` and kept, or read.
    pub(crate) fn group_scale(&self, group: usize, choose: impl FnOnce() -> RawScale) -> GroupScale {
        let raw = match self.scales {
            Scales::Stored => self.load(group),
            Scales::Choose => {
                let raw = choose();
                self.store(group, &raw);
                raw
            }
        };
        self.resolve(&raw)
    }
}

/// Refuses given scales that are NaN or infinite, or negative where they have no sign.
pub(crate) fn check_given(format: Format, given: &Packed<'_>) -> Result<()> {
    let wrong = |position: usize, value: f32| FormatError::GivenScale { format, value, position };
    let check = |position: usize, value: f32| {
        if value.is_finite() && (value >= 0.0 || format.has_signed_scales()) {
            Ok(())
        } else {
            Err(Error::from(wrong(position, value)))
        }
    };
    match format.scale_type() {
        Some(ScaleType::F32) => {
            for (i, bytes) in given.scales.as_chunks::<4>().0.iter().enumerate() {
                check(i, f32::from_le_bytes(*bytes))?;
            }
        }
        Some(ScaleType::F16) => {
            for (i, bytes) in given.scales.as_chunks::<2>().0.iter().enumerate() {
                check(i, half::f16::from_le_bytes(*bytes).to_f32())?;
            }
        }
        Some(ScaleType::E8M0) => {
            if let Some(i) = given.scales.iter().position(|&code| code == 255) {
                return Err(FormatError::GivenScaleNan { format, position: i }.into());
            }
        }
        Some(ScaleType::E4M3) => {
            if let Some(i) = given.scales.iter().position(|&code| code > 126) {
                return Err(FormatError::GivenScaleCode { format, code: given.scales[i], position: i }.into());
            }
        }
        Some(ScaleType::I8 | ScaleType::Nested) | None => {}
    }
    if let Some(bytes) = given.levels.first_chunk::<4>() {
        check(0, f32::from_le_bytes(*bytes))?;
    }
    Ok(())
}
