//! Reads how an architecture of transformers turns queries and keys into [`RotaryPlan`]s.
//!
//! `rope_parameters` of transformers 5 has everything; before, `rope_theta` and `rope_scaling` stood apart. Source:
//! `modeling_rope_utils.py` of transformers, which changes fields in this order, too.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects, clippy::cast_possible_truncation)]

use serde_json::Value;

use super::fields::Fields;
use super::plan::{RotaryKind, RotaryPlan, Scaling};
use crate::error::{Result, refuse};

/// Pairs of numbers of a head at most.
const MOST_NUMBERS: usize = 1 << 12;

/// What an architecture takes where its configuration is silent.
#[derive(Clone, Copy)]
pub(super) struct Defaults {
    pub(super) base: f64,
    /// The share of a head that is turned; none for architectures that turn whole heads.
    pub(super) partial: Option<f64>,
    /// Names of both, where they stand outside `rope_parameters`.
    pub(super) names: [&'static str; 2],
    /// `su` and `yarn` are old names of `longrope` (Phi-3).
    pub(super) is_phi3: bool,
}

impl Defaults {
    pub(super) const USUAL: Self =
        Self { base: 10_000.0, partial: None, names: ["rope_theta", "partial_rotary_factor"], is_phi3: false };
}

/// How heads of `size` numbers are turned, and how many positions a text may have, of `positions` by the configuration.
pub(super) fn rotary(
    fields: &Fields<'_>,
    defaults: Defaults,
    size: usize,
    positions: usize,
) -> Result<(RotaryPlan, usize)> {
    let outer = Outer { fields, defaults, size, positions };
    // An empty object says nothing; a scaling of old form goes before the new one, as in transformers.
    let named = |field: &'static str| match fields.get(field) {
        Some(Value::Object(of)) if of.is_empty() => Ok(None),
        Some(_) => fields.object(field).map(Some),
        None => Ok(None),
    };
    let inner = match named("rope_scaling")? {
        Some(scaling) => Some(scaling),
        None => named("rope_parameters")?,
    };
    outer.plan(inner.as_ref())
}

/// The same where layers of each kind have parameters of their own (Gemma 3): those of `kind`.
pub(super) fn rotary_of_kind(
    fields: &Fields<'_>,
    kind: &'static str,
    defaults: Defaults,
    size: usize,
    positions: usize,
) -> Result<(RotaryPlan, usize)> {
    let outer = Outer { fields, defaults, size, positions };
    if fields.get("rope_parameters").is_some() {
        if fields.get("rope_scaling").is_some() {
            return Err(fields.refused("rope_scaling", "rope_parameters say the same; keep one of them"));
        }
        let all = fields.object("rope_parameters")?;
        return match all.get(kind) {
            Some(_) => outer.plan(Some(&all.object(kind)?)),
            None => outer.plan(None),
        };
    }
    match fields.get("rope_scaling") {
        Some(_) if kind == "full_attention" => outer.plan(Some(&fields.object("rope_scaling")?)),
        _ => outer.plan(None),
    }
}

struct Outer<'a> {
    fields: &'a Fields<'a>,
    defaults: Defaults,
    size: usize,
    positions: usize,
}

impl Outer<'_> {
    fn plan(&self, inner: Option<&Fields<'_>>) -> Result<(RotaryPlan, usize)> {
        let [base, partial] = self.defaults.names;
        let base = self.fields.number(base, self.defaults.base)?;
        let partial = self.fields.exact(partial, self.defaults.partial.unwrap_or(1.0))?;
        let Some(inner) = inner else {
            return Ok((self.of(base, partial, Scaling::None)?, self.positions));
        };
        let base = inner.number("rope_theta", f64::from(base))?;
        let partial = inner.exact("partial_rotary_factor", partial)?;
        let plain = self.of(base, partial, Scaling::None)?;
        let (scaling, positions) = self.scaling(inner, plain.turned)?;
        Ok((RotaryPlan { scaling, ..plain }, positions))
    }

    fn of(&self, base: f32, partial: f64, scaling: Scaling) -> Result<RotaryPlan> {
        if base <= 0.0 {
            return Err(refuse(format!("rope_theta is {base}; accepted is a number above 0")));
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "as Python's int()")]
        let turned = (self.size as f64 * partial) as usize;
        if self.defaults.partial.is_none() && partial != 1.0 {
            return Err(self.fields.refused("partial_rotary_factor", "the native decoder turns whole heads of it"));
        }
        if !(0.0..=1.0).contains(&partial) || turned < 2 || !turned.is_multiple_of(2) || turned > MOST_NUMBERS {
            let accepted = format!("accepted is a share that leaves an even part of {} numbers", self.size);
            return Err(self.fields.refused("partial_rotary_factor", &accepted));
        }
        Ok(RotaryPlan { base, kind: RotaryKind::Counter, turned, scaling })
    }

    /// The scaling of `turned` numbers, and the positions that it allows.
    fn scaling(&self, inner: &Fields<'_>, turned: usize) -> Result<(Scaling, usize)> {
        let name = inner.text("rope_type")?.or(inner.text("type")?).unwrap_or("default");
        let name = if self.defaults.is_phi3 && matches!(name, "su" | "yarn") { "longrope" } else { name };
        let above_0 = |field: &str| {
            let value =
                inner.number(field, f64::NAN).map_err(|_| inner.refused(field, "accepted is a number above 0"))?;
            if value > 0.0 { Ok(value) } else { Err(inner.refused(field, "accepted is a number above 0")) }
        };
        let most = 1 << 24;
        let original = || {
            let field = "original_max_position_embeddings";
            match self.fields.get(field) {
                Some(_) => self.fields.size(field, None, 1, most),
                None => inner.size(field, Some(self.positions as u64), 1, most),
            }
        };
        // Configurations have the positions of training or all of them.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a bound, cut at the largest")]
        let all =
            |factor: f32, of: usize| ((of as f64 * f64::from(factor)) as usize).clamp(self.positions, most.max(of));
        Ok(match name {
            "default" => (Scaling::None, self.positions),
            "linear" => (Scaling::Linear { factor: above_0("factor")? }, self.positions),
            "dynamic" => {
                let (factor, positions) = (above_0("factor")?, self.positions);
                (Scaling::Dynamic { factor, positions }, all(factor, positions))
            }
            "llama3" => {
                let (factor, positions) = (above_0("factor")?, original()?);
                let (low, high) = (above_0("low_freq_factor")?, above_0("high_freq_factor")?);
                if high <= low {
                    return Err(inner.refused("high_freq_factor", "accepted is a number above low_freq_factor"));
                }
                (Scaling::Llama3 { factor, low, high, positions }, self.positions)
            }
            "yarn" => {
                let positions = original()?;
                let factor = match inner.get("factor") {
                    Some(_) => above_0("factor")?,
                    None => self.positions as f32 / positions as f32,
                };
                let attention = attention_of_yarn(inner, factor)?;
                let other_than_0 = |field: &str, default: f64| {
                    let value = inner.number(field, default)?;
                    Ok::<f64, crate::Error>(if value == 0.0 { default } else { f64::from(value) })
                };
                let (fast, slow) = (other_than_0("beta_fast", 32.0)?, other_than_0("beta_slow", 1.0)?);
                let truncate = inner.flag("truncate", true)?;
                (Scaling::Yarn { factor, fast, slow, positions, truncate, attention }, all(factor, positions))
            }
            "longrope" => {
                let positions = original()?;
                let pairs = turned.div_euclid(2);
                let (short, long) = (inner.numbers("short_factor", pairs)?, inner.numbers("long_factor", pairs)?);
                let factor = match inner.get("factor") {
                    Some(_) => above_0("factor")?,
                    None => self.positions as f32 / positions as f32,
                };
                let attention = match inner.get("attention_factor") {
                    Some(_) => above_0("attention_factor")?,
                    None if factor <= 1.0 => 1.0,
                    #[expect(clippy::cast_possible_truncation, reason = "to the precision of the network")]
                    None => (1.0 + f64::from(factor).ln() / (positions as f64).ln()).sqrt() as f32,
                };
                (Scaling::Long { short, long, positions, attention }, self.positions)
            }
            _ => {
                let accepted =
                    "the native decoder runs default, linear, dynamic, llama3, yarn and longrope rotary positions";
                let field = if inner.get("rope_type").is_some() { "rope_type" } else { "type" };
                return Err(inner.refused(field, accepted));
            }
        })
    }
}

/// The factor of cosines and sines under YaRN: that of the configuration, or by the factor of angles.
fn attention_of_yarn(inner: &Fields<'_>, factor: f32) -> Result<f32> {
    if inner.get("attention_factor").is_some() {
        return inner.number("attention_factor", 1.0);
    }
    let of = |share: f64| if factor <= 1.0 { 1.0 } else { 0.1 * share * f64::from(factor).ln() + 1.0 };
    let (share, all) = (f64::from(inner.number("mscale", 0.0)?), f64::from(inner.number("mscale_all_dim", 0.0)?));
    #[expect(clippy::cast_possible_truncation, reason = "to the precision of the network")]
    Ok(if share != 0.0 && all != 0.0 { (of(share) / of(all)) as f32 } else { of(1.0) as f32 })
}
