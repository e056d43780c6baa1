//! [`Dense`]: a linear layer whose weight stays packed, with inputs and outputs rounded as the recipe asked.

use octavo_core::format::{Element, Granularity};
use octavo_core::linear::{self, Bias};
use octavo_core::{Format, Layout, Options, Packed, ScaleRule, Values, ValuesMut, codec};

use crate::error::{Error, Result};
use crate::packed::Weight;

/// How a layer rounds what goes in or comes out; with fixed scales, or with those of each input.
#[derive(PartialEq)]
pub(crate) struct Rounding {
    pub(crate) format: Format,
    pub(crate) rule: ScaleRule,
    /// Scales, zeros and levels of the file; empty where they are chosen from each tensor.
    pub(crate) scales: Vec<u8>,
    pub(crate) zeros: Vec<u8>,
    pub(crate) levels: Vec<u8>,
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
pub(crate) enum Added {
    /// Numbers.
    Floats(Vec<f32>),
    /// Integers in steps of the products of an integer layer.
    Integers(Vec<i32>),
}

/// `y = round(round(x) W^T + bias)`, as `octavo.nn.PackedLinear` computes it.
pub(crate) struct Dense {
    pub(crate) inputs: usize,
    pub(crate) outputs: usize,
    pub(crate) weight: Weight,
    pub(crate) bias: Added,
    pub(crate) input: Option<Rounding>,
    pub(crate) output: Option<Rounding>,
    /// Codes of inputs and weights are multiplied, as integers.
    pub(crate) integer: bool,
}

impl Dense {
    /// The outputs, `[rows, outputs]`, of `x`, `[rows, inputs]`.
    pub(crate) fn apply(&self, x: &[f32]) -> Result<Vec<f32>> {
        self.products(x, false)
    }

    /// The same, where a row's outputs depend on that row alone, however many there are; [`Self::spans_rows`] tells where
    /// the roundings do not allow it.
    pub(crate) fn apply_rows_independently(&self, x: &[f32]) -> Result<Vec<f32>> {
        self.products(x, true)
    }

    fn products(&self, x: &[f32], independently: bool) -> Result<Vec<f32>> {
        let rows = x.len() / self.inputs;
        let mut out = vec![0.0; rows * self.outputs];
        match (&self.weight, &self.input) {
            (Weight::Packed(weight), Some(input)) if self.integer => {
                let scales: Vec<f32> =
                    input.scales.as_chunks().0.iter().map(|&word| f32::from_le_bytes(word)).collect();
                let scales = (!scales.is_empty()).then_some(scales.as_slice());
                let bias = match &self.bias {
                    Added::Floats(bias) if bias.is_empty() => Bias::None,
                    Added::Floats(bias) => Bias::Float(Values::F32(bias)),
                    Added::Integers(bias) => Bias::Integer(bias),
                };
                let (x, weight) = (Values::F32(x), weight.matrix(self.outputs, self.inputs));
                linear::multiply_integer(x, rows, input.format, scales, &weight, bias, ValuesMut::F32(&mut out))?;
            }
            (Weight::Packed(weight), Some(input)) => {
                let options = Options { rule: input.rule, given: input.given(), ..Options::default() };
                let (bias, weight) = (self.floats()?, weight.matrix(self.outputs, self.inputs));
                if independently {
                    linear::multiply_rounded_rows_independently(
                        x,
                        rows,
                        input.format,
                        &options,
                        &weight,
                        bias,
                        &mut out,
                    )?;
                } else {
                    let (x, bias, out) = (Values::F32(x), bias.map(Values::F32), ValuesMut::F32(&mut out));
                    linear::multiply_rounded(x, rows, input.format, &options, &weight, bias, out)?;
                }
            }
            (Weight::Packed(weight), None) => {
                let (bias, weight) = (self.floats()?, weight.matrix(self.outputs, self.inputs));
                if independently {
                    linear::multiply_rows_independently(x, rows, &weight, bias, &mut out)?;
                } else {
                    let (x, bias, out) = (Values::F32(x), bias.map(Values::F32), ValuesMut::F32(&mut out));
                    linear::multiply(x, rows, &weight, bias, out)?;
                }
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

    /// The rounding whose scales are chosen from all rows together, if there is one.
    pub(crate) fn spans_rows(&self) -> Option<Format> {
        let spans = |rounding: &&Rounding| {
            rounding.format.granularity() == Granularity::Tensor
                && rounding.format.scale_type().is_some()
                && rounding.scales.is_empty()
        };
        self.input.iter().chain(&self.output).find(spans).map(|rounding| rounding.format)
    }

    /// Bytes of the weight that a product reads.
    pub(crate) fn nbytes(&self) -> usize {
        match &self.weight {
            Weight::Packed(held) => held.nbytes(),
            Weight::Plain(_) => self.inputs * self.outputs * size_of::<f32>(),
        }
    }

    /// The bias of a layer that is not integer; none where it has none.
    fn floats(&self) -> Result<Option<&[f32]>> {
        match &self.bias {
            Added::Floats(bias) => Ok((!bias.is_empty()).then_some(bias.as_slice())),
            Added::Integers(_) => Err(Error::Internal("an integer bias without integer products".to_owned())),
        }
    }
}

/// Whether a layer multiplies the codes of its inputs and weights: the rule of `octavo.nn.PackedLinear`.
pub(super) fn multiplies_integers(weight: Format, input: &Rounding) -> bool {
    let small = |format: Format| matches!(format.element(), Element::Int { width: 2..=8, signed: true });
    let whole = |format: Format| !matches!(format.granularity(), Granularity::Block(_));
    let fixed = !input.scales.is_empty();
    let rows = matches!(input.format.granularity(), Granularity::Channel);
    small(weight) && whole(weight) && small(input.format) && whole(input.format) && !(rows && fixed)
}
