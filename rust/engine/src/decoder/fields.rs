//! [`Fields`]: the fields of a configuration, with refusals that name them.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects, clippy::cast_possible_truncation)]

use serde_json::{Map, Value};

use crate::error::{ModelFault, Result, refuse};
use crate::file::shown;
use crate::layers::Activation;
use crate::sizes::whole;

/// The fields of an object, for messages with the name of the object before theirs.
pub(super) struct Fields<'a> {
    pub(super) of: &'a Map<String, Value>,
    pub(super) name: &'static str,
}

impl<'a> Fields<'a> {
    fn place(&self, field: &str) -> String {
        if self.name.is_empty() { field.to_owned() } else { format!("{}: {field}", self.name) }
    }

    pub(super) fn refused(&self, field: &str, accepted: &str) -> crate::Error {
        let value = match self.of.get(field) {
            None => "missing".to_owned(),
            Some(Value::String(text)) => format!("'{}'", shown(text)),
            Some(value) => shown(&value.to_string()),
        };
        refuse(format!("{} is {value}; {accepted}", self.place(field)))
    }

    pub(super) fn get(&self, field: &str) -> Option<&'a Value> {
        self.of.get(field).filter(|value| !value.is_null())
    }

    /// A text; none where the field is missing.
    pub(super) fn text(&self, field: &str) -> Result<Option<&'a str>> {
        match self.get(field) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(self.refused(field, "accepted is a text")),
        }
    }

    pub(super) fn flag(&self, field: &str, default: bool) -> Result<bool> {
        match self.get(field) {
            None => Ok(default),
            Some(Value::Bool(value)) => Ok(*value),
            Some(_) => Err(self.refused(field, "accepted are true and false")),
        }
    }

    pub(super) fn number(&self, field: &str, default: f64) -> Result<f32> {
        let value = self.exact(field, default)?;
        #[expect(clippy::cast_possible_truncation, reason = "to the precision of the network")]
        Some(value as f32).filter(|value| value.is_finite()).ok_or_else(|| self.refused(field, "accepted is a number"))
    }

    /// A number in the precision of the file.
    pub(super) fn exact(&self, field: &str, default: f64) -> Result<f64> {
        let value = self.get(field).map_or(Some(default), Value::as_f64);
        value.filter(|value| value.is_finite()).ok_or_else(|| self.refused(field, "accepted is a number"))
    }

    pub(super) fn size(&self, field: &'static str, default: Option<u64>, least: usize, most: usize) -> Result<usize> {
        let value = match self.get(field) {
            None => default,
            Some(value) => value.as_u64(),
        };
        whole(field, value.ok_or_else(|| self.refused(field, "accepted is a whole number"))?, least, most)
    }

    pub(super) fn object(&self, field: &'static str) -> Result<Fields<'a>> {
        match self.get(field) {
            Some(Value::Object(of)) => Ok(Fields { of, name: field }),
            _ => Err(self.refused(field, "accepted is an object")),
        }
    }

    /// Refuses another value than `wanted` of a field that may be left out.
    pub(super) fn only(&self, field: &str, wanted: &Value, runs: &str) -> Result<()> {
        match self.get(field) {
            None => Ok(()),
            Some(value) if value == wanted => Ok(()),
            Some(_) => Err(self.refused(field, &format!("the native decoder runs {runs}"))),
        }
    }

    /// A field that is `default` where it is missing, and none where it is null.
    pub(super) fn optional<T>(
        &self,
        field: &str,
        default: Option<T>,
        read: impl FnOnce() -> Result<T>,
    ) -> Result<Option<T>> {
        match self.of.get(field) {
            None => Ok(default),
            Some(Value::Null) => Ok(None),
            Some(_) => read().map(Some),
        }
    }

    /// Refuses a field that says something, where the native decoder runs `runs`.
    pub(super) fn absent(&self, field: &str, runs: &str) -> Result<()> {
        match self.get(field) {
            None => Ok(()),
            Some(_) => Err(self.refused(field, &format!("the native decoder runs {runs}"))),
        }
    }

    /// The object without some fields.
    pub(super) fn without(&self, fields: &[&str]) -> Without {
        let rest = self.of.iter().filter(|(field, _)| !fields.contains(&field.as_str()));
        Without(rest.map(|(field, value)| (field.clone(), value.clone())).collect())
    }

    /// Whole numbers between two bounds.
    pub(super) fn sizes(&self, field: &str, least: usize, most: usize) -> Result<Vec<usize>> {
        let refused = || self.refused(field, &format!("accepted are whole numbers from {least} to {most}"));
        let Some(Value::Array(values)) = self.get(field) else { return Err(refused()) };
        let size = |value: &Value| value.as_u64().and_then(|value| usize::try_from(value).ok());
        let sizes = values.iter().map(|value| size(value).filter(|size| (least..=most).contains(size)));
        sizes.collect::<Option<_>>().ok_or_else(refused)
    }

    /// Texts, as many as `count`.
    pub(super) fn texts(&self, field: &str, count: usize) -> Result<Vec<&'a str>> {
        let refused = || self.refused(field, &format!("accepted are {count} texts"));
        let Some(Value::Array(values)) = self.get(field) else { return Err(refused()) };
        let texts: Option<Vec<&str>> = values.iter().map(Value::as_str).collect();
        texts.filter(|texts| texts.len() == count).ok_or_else(refused)
    }

    /// Numbers, as many as `count`.
    pub(super) fn numbers(&self, field: &str, count: usize) -> Result<Vec<f32>> {
        let refused = || self.refused(field, &format!("accepted are {count} numbers"));
        let Some(Value::Array(values)) = self.get(field) else { return Err(refused()) };
        #[expect(clippy::cast_possible_truncation, reason = "to the precision of the network")]
        let number = |value: &Value| value.as_f64().map(|value| value as f32).filter(|value| value.is_finite());
        let numbers: Vec<f32> = values.iter().filter_map(number).collect();
        if numbers.len() == count && values.len() == count { Ok(numbers) } else { Err(refused()) }
    }

    pub(super) fn activation(&self, field: &str, default: &str) -> Result<Activation> {
        match self.text(field)?.unwrap_or(default) {
            "gelu" => Ok(Activation::Gelu),
            "gelu_new" | "gelu_pytorch_tanh" => Ok(Activation::GeluTanh),
            "relu" => Ok(Activation::Relu),
            "relu2" => Ok(Activation::SquaredRelu),
            "silu" | "swish" => Ok(Activation::Silu),
            _ => Err(self.refused(field, "the native decoder runs gelu, gelu_new, relu, relu2 and silu")),
        }
    }

    /// What is added to a variance.
    pub(super) fn epsilon(&self, field: &str, default: f64) -> Result<f32> {
        let value = self.number(field, default)?;
        if (0.0..=1.0).contains(&value) {
            Ok(value)
        } else {
            Err(self.refused(field, "accepted is a number from 0 to 1"))
        }
    }
}

/// An object of which some fields were taken.
pub(super) struct Without(Map<String, Value>);

impl Without {
    pub(super) fn fields(&self) -> Fields<'_> {
        Fields { of: &self.0, name: "" }
    }
}

/// `whole / value` where the value divides it; `field` and `other` name both.
pub(super) fn divided(field: &'static str, value: usize, other: &'static str, whole: usize) -> Result<usize> {
    let quotient = whole.checked_div(value).filter(|_| whole.is_multiple_of(value));
    quotient.ok_or_else(|| refuse(ModelFault::Divisor { field, value, other, whole }))
}
