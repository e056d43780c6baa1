//! [`Model`]: the weights of a hybrid model, packed and folded.
//!
//! Embedding, input matrix and biases of the LSTMs are one table by token; query, key and value of the self-attention
//! are one matrix, keys and values of all cross-attentions another; the scale of scores is in the queries.

use octavo_engine::{Result, refuse};

use super::lanes::{Floats, LANES, Line};
use super::products::{Matrix, Number, PANELS, Weights};
use super::shape::{Places, Shape};
use super::source::{Layer, Source};

/// A hybrid model with weights `W`.
#[derive(Debug)]
pub(super) struct Model<W: Weights> {
    pub(super) shape: Shape,
    /// The matrices, those of the decoder first, as its steps use them.
    lines: Vec<W::Line>,
    /// The encoder, forwards and backwards.
    pub(super) encoder: [Recurrent<W>; 2],
    pub(super) memory_norm: Norm,
    /// Keys and values of each block in turn, from the memory.
    pub(super) memory: Linear<W>,
    /// First hidden state and cell of the decoder.
    pub(super) bridge: Linear<W>,
    pub(super) decoder: Recurrent<W>,
    pub(super) self_norm: Norm,
    /// Query, key and value.
    pub(super) self_input: Linear<W>,
    pub(super) self_output: Linear<W>,
    pub(super) blocks: Vec<Block<W>>,
    pub(super) output_norm: Norm,
    pub(super) output: Linear<W>,
}

/// A block of the decoder, without the keys and values of its attention.
#[derive(Debug)]
pub(super) struct Block<W: Weights> {
    pub(super) cross_norm: Norm,
    pub(super) query: Linear<W>,
    pub(super) output: Linear<W>,
    pub(super) inner_norm: Norm,
    pub(super) expand: Linear<W>,
    pub(super) contract: Linear<W>,
}

/// `weights x + bias`.
#[derive(Debug)]
pub(super) struct Linear<W: Weights> {
    /// Where the matrix begins.
    first: usize,
    /// Lines of one panel.
    depth: usize,
    /// Panels of 16 outputs.
    pub(super) panels: usize,
    /// By panel.
    pub(super) bias: Vec<Line<W::Number, LANES>>,
    /// What a sum is worth, by panel; empty for sums of float32.
    pub(super) scales: Vec<Floats>,
    /// One over the step of the input's codes.
    pub(super) inverse: f32,
    /// True where these have 16 bits.
    pub(super) wide: bool,
}

/// An LSTM: what a token adds to the gates, and the matrix of the hidden state. The gates of 16 units are a block.
#[derive(Debug)]
pub(super) struct Recurrent<W: Weights> {
    /// The matrix; the bias is empty.
    pub(super) gates: Linear<W>,
    /// By token, then panel.
    pub(super) table: Vec<Line<W::Number, LANES>>,
}

/// A layer norm.
#[derive(Debug)]
pub(super) struct Norm {
    pub(super) gain: Vec<Floats>,
    pub(super) bias: Vec<Floats>,
    /// 1 where there is an element, 0 where a vector is filled up.
    pub(super) mask: Vec<Floats>,
    /// One over the elements.
    pub(super) share: f32,
}

impl<W: Weights> Model<W> {
    /// Packs the weights of `source`.
    pub(super) fn new<S>(shape: Shape, source: &S) -> Result<Self>
    where
        S: Source<Code = W::Code, Number = W::Number>,
    {
        let (hidden, inner) = (Shape::plain(shape.hidden), Shape::plain(shape.inner));
        let (heads, both) = (shape.heads(), shape.both());
        let scale = 1.0 / (shape.head() as f32).sqrt();
        let mut lines = Vec::new();
        let linear = |name: &str, factor: f32| source.linear(name, factor);
        let norm = |name: &str, places: &Places| Norm::new(source, name, places);
        let decoder = Recurrent::new(source, "decoder", shape.hidden, &mut lines)?;
        let queries = [
            linear("self_attention.query", scale)?,
            linear("self_attention.key", 1.0)?,
            linear("self_attention.value", 1.0)?,
        ];
        let self_input = Linear::new(&queries, &heads, &hidden, &mut lines)?;
        let self_output = Linear::new(&[linear("self_attention.output", 1.0)?], &hidden, &heads, &mut lines)?;
        let mut memory = Vec::new();
        let mut blocks = Vec::new();
        for number in 0..shape.blocks {
            let cross = |name: &str, factor: f32| linear(&format!("blocks.{number}.cross_attention.{name}"), factor);
            let inside = |name: &str| linear(&format!("blocks.{number}.feedforward.{name}"), 1.0);
            memory.extend([cross("key", 1.0)?, cross("value", 1.0)?]);
            blocks.push(Block {
                cross_norm: norm(&format!("blocks.{number}.cross_norm"), &hidden)?,
                query: Linear::new(&[cross("query", scale)?], &heads, &hidden, &mut lines)?,
                output: Linear::new(&[cross("output", 1.0)?], &hidden, &heads, &mut lines)?,
                inner_norm: norm(&format!("blocks.{number}.feedforward_norm"), &hidden)?,
                expand: Linear::new(&[inside("expand")?], &inner, &hidden, &mut lines)?,
                contract: Linear::new(&[inside("contract")?], &hidden, &inner, &mut lines)?,
            });
        }
        let output = Linear::new(&[linear("output", 1.0)?], &Shape::plain(shape.vocabulary), &hidden, &mut lines)?;
        let encoder = [
            Recurrent::new(source, "encoder.forwards", shape.encoder, &mut lines)?,
            Recurrent::new(source, "encoder.backwards", shape.encoder, &mut lines)?,
        ];
        let memory = Linear::new(&memory, &heads, &both, &mut lines)?;
        let bridge = Linear::new(&[linear("bridge", 1.0)?], &shape.states(), &both, &mut lines)?;
        Ok(Self {
            encoder,
            memory_norm: norm("memory_norm", &both)?,
            memory,
            bridge,
            decoder,
            self_norm: norm("self_norm", &hidden)?,
            self_input,
            self_output,
            blocks,
            output_norm: norm("output_norm", &hidden)?,
            output,
            lines,
            shape,
        })
    }

    /// Bytes of the matrices, tables, biases and norms as they were prepared.
    pub(super) fn nbytes(&self) -> usize {
        let Self { encoder: [ahead, back], memory, bridge, decoder, self_input, self_output, blocks, output, .. } =
            self;
        let recurrent = [ahead, back, decoder].map(|lstm| lstm.gates.nbytes() + size_of_val(lstm.table.as_slice()));
        let inside = |block: &Block<W>| {
            let Block { cross_norm, query, output, inner_norm, expand, contract } = block;
            let linears = [query, output, expand, contract].map(Linear::nbytes);
            linears.iter().sum::<usize>() + cross_norm.nbytes() + inner_norm.nbytes()
        };
        let linears = [memory, bridge, self_input, self_output, output].map(Linear::nbytes);
        let norms = [&self.memory_norm, &self.self_norm, &self.output_norm].map(Norm::nbytes);
        let parts = recurrent.iter().chain(&linears).chain(&norms).sum::<usize>();
        size_of_val(self.lines.as_slice()) + parts + blocks.iter().map(inside).sum::<usize>()
    }

    /// The weights of a layer's panels from `panel`, at most [`PANELS`] of them, and their number.
    #[inline(always)]
    pub(super) fn block(&self, linear: &Linear<W>, panel: usize) -> (&[W::Line], usize) {
        let panels = PANELS.min(linear.panels - panel);
        (&self.lines[linear.first + panel * linear.depth..][..panels * linear.depth], panels)
    }
}

impl<W: Weights> Linear<W> {
    /// Bytes besides the matrix.
    fn nbytes(&self) -> usize {
        size_of_val(self.bias.as_slice()) + size_of_val(self.scales.as_slice())
    }

    /// Packs layers that read the same input, one below the other.
    fn new(
        layers: &[Layer<W::Code, W::Number>],
        rows: &Places,
        columns: &Places,
        lines: &mut Vec<W::Line>,
    ) -> Result<Self> {
        let mut codes = Vec::new();
        let mut bias = Vec::new();
        let mut scales = Vec::new();
        for layer in layers {
            if layer.inverse.to_bits() != layers[0].inverse.to_bits() || layer.wide != layers[0].wide {
                return Err(refuse(format!("{}: its input codes differ from those of {}", layer.name, layers[0].name)));
            }
            for &place in rows {
                let row: Vec<W::Code> = match place {
                    Some(row) => columns.iter().map(|column| layer.code(row, *column)).collect(),
                    None => vec![W::Code::default(); columns.len()],
                };
                let correction = if layer.wide { W::correction_wide(&row) } else { W::correction(&row) };
                bias.push(place.map_or(W::Number::default(), |row| layer.bias[row]).plus(correction));
                if !layer.scales.is_empty() {
                    scales.push(place.map_or(0.0, |row| layer.scales[row]));
                }
                codes.extend(row);
            }
        }
        let matrix = Matrix { columns: columns.len(), codes };
        let (first, panels) = (lines.len(), matrix.panels());
        for panel in (0..panels).step_by(PANELS) {
            W::pack(&matrix, panel..panels.min(panel + PANELS), lines);
        }
        Ok(Self {
            first,
            depth: W::depth(matrix.columns),
            panels,
            bias: in_lines(&bias),
            scales: in_lines(&scales),
            inverse: layers[0].inverse,
            wide: layers[0].wide,
        })
    }
}

impl<W: Weights> Recurrent<W> {
    fn new<S>(source: &S, name: &str, units: usize, lines: &mut Vec<W::Line>) -> Result<Self>
    where
        S: Source<Code = W::Code, Number = W::Number>,
    {
        let (layer, table) = source.lstm(name)?;
        let places = Shape::gates(units);
        let mut gates = Linear::new(&[layer], &places, &Shape::plain(units), lines)?;
        // The bias holds nothing but the corrections of the sums, which go into the table.
        let correction = std::mem::take(&mut gates.bias);
        let mut by_token = Vec::new();
        for token in table.chunks(4 * units) {
            let padded: Vec<W::Number> =
                places.iter().map(|place| place.map_or(W::Number::default(), |row| token[row])).collect();
            by_token.extend(
                in_lines(&padded)
                    .iter()
                    .zip(&correction)
                    .map(|(added, correction)| Line(std::array::from_fn(|i| added.0[i].plus(correction.0[i])))),
            );
        }
        Ok(Self { gates, table: by_token })
    }
}

impl Norm {
    fn nbytes(&self) -> usize {
        [&self.gain, &self.bias, &self.mask].map(|lines| size_of_val(lines.as_slice())).iter().sum()
    }

    fn new(source: &impl Source, name: &str, places: &Places) -> Result<Self> {
        let (gain, bias) = source.norm(name)?;
        let padded =
            |values: &[f32]| -> Vec<f32> { places.iter().map(|place| place.map_or(0.0, |i| values[i])).collect() };
        let mask = padded(&vec![1.0; gain.len()]);
        Ok(Self {
            gain: in_lines(&padded(&gain)),
            bias: in_lines(&padded(&bias)),
            mask: in_lines(&mask),
            share: 1.0 / gain.len() as f32,
        })
    }
}

/// Values in lines; there are whole lines of them.
fn in_lines<T: Copy>(values: &[T]) -> Vec<Line<T, LANES>> {
    values.as_chunks().0.iter().map(|&line| Line(line)).collect()
}
