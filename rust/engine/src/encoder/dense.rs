//! [`Dense`]: a linear layer whose weight stays packed, with inputs and outputs rounded as the recipe asked.

use octavo_core::linear::{self, Bias};
use octavo_core::{Format, Layout, Options, Packed, ScaleRule, Values, ValuesMut, codec};

use crate::error::{Error, Result};
use crate::packed::Weight;

/// How a layer rounds what goes in or comes out; with fixed scales, or with those of each input.
pub(super) struct Rounding {
    pub(super) format: Format,
    pub(super) rule: ScaleRule,
    /// Scales, zeros and levels of the file; empty where they are chosen from each tensor.
    pub(super) scales: Vec<u8>,
    pub(super) zeros: Vec<u8>,
    pub(super) levels: Vec<u8>,
}

impl Rounding {
    fn given(&self) -> Option<Packed<'_>> {
        let Self { scales, zeros, levels, .. } = self;
        (!scales.is_empty()).then_some(Packed { codes: &[], scales, zeros, levels })
    }

    /// Rounds `[rows, width]` values in their place.
    fn apply(&self, values: &mut [f32], width: usize) -> Result<()> {
        let layout = Layout::new(&[values.len() / width, width], -1, self.format)?;
        let options = Options { rule: self.rule, given: self.given(), ..Options::default() };
        Ok(codec::quantize_in_place(ValuesMut::F32(values), layout, self.format, &options)?)
    }
}

/// What a layer adds.
pub(super) enum Added {
    /// Numbers.
    Floats(Vec<f32>),
    /// Integers in steps of the products of an integer layer.
    Integers(Vec<i32>),
}

/// `y = round(round(x) W^T + bias)`, as `octavo.nn.PackedLinear` computes it.
pub(super) struct Dense {
    pub(super) inputs: usize,
    pub(super) outputs: usize,
    pub(super) weight: Weight,
    pub(super) bias: Added,
    pub(super) input: Option<Rounding>,
    pub(super) output: Option<Rounding>,
    /// Codes of inputs and weights are multiplied, as integers.
    pub(super) integer: bool,
}

impl Dense {
    /// The outputs, `[rows, outputs]`, of `x`, `[rows, inputs]`.
    pub(super) fn apply(&self, x: &[f32]) -> Result<Vec<f32>> {
        let rows = x.len() / self.inputs;
        let mut out = vec![0.0; rows * self.outputs];
        match (&self.weight, &self.input) {
            (Weight::Packed(weight), Some(input)) if self.integer => {
                let scales: Vec<f32> =
                    input.scales.as_chunks().0.iter().map(|&word| f32::from_le_bytes(word)).collect();
                let scales = (!scales.is_empty()).then_some(scales.as_slice());
                let bias = match &self.bias {
                    Added::Floats(bias) => Bias::Float(Values::F32(bias)),
                    Added::Integers(bias) => Bias::Integer(bias),
                };
                let (x, weight) = (Values::F32(x), weight.matrix(self.outputs, self.inputs));
                linear::multiply_integer(x, rows, input.format, scales, &weight, bias, ValuesMut::F32(&mut out))?;
            }
            (Weight::Packed(weight), Some(input)) => {
                let options = Options { rule: input.rule, given: input.given(), ..Options::default() };
                let (x, weight) = (Values::F32(x), weight.matrix(self.outputs, self.inputs));
                let bias = Some(Values::F32(self.floats()?));
                let out = ValuesMut::F32(&mut out);
                linear::multiply_rounded(x, rows, input.format, &options, &weight, bias, out)?;
            }
            (Weight::Packed(weight), None) => {
                let (x, weight) = (Values::F32(x), weight.matrix(self.outputs, self.inputs));
                let bias = Some(Values::F32(self.floats()?));
                linear::multiply(x, rows, &weight, bias, ValuesMut::F32(&mut out))?;
            }
            // The bias lies in the matrix.
            (Weight::Plain(matrix), None) => matrix.apply(x, &mut out),
            (Weight::Plain(matrix), Some(input)) => {
                let mut rounded = x.to_vec();
                input.apply(&mut rounded, self.inputs)?;
                matrix.apply(&rounded, &mut out);
            }
        }
        if let Some(output) = &self.output {
            output.apply(&mut out, self.outputs)?;
        }
        Ok(out)
    }

    /// The bias of a layer that is not integer.
    fn floats(&self) -> Result<&[f32]> {
        match &self.bias {
            Added::Floats(bias) => Ok(bias),
            Added::Integers(_) => Err(Error::Internal("an integer bias without integer products".to_owned())),
        }
    }
}
