//! [`Shape`]: a configuration in vectors, and where every element of a matrix goes when its rows and columns are filled
//! up to whole vectors.

use std::ops::Range;

use crate::config::Config;

use super::lanes::{LANES, lines};

/// Heads that one vector of scores holds.
pub(super) const HEADS: usize = 4;

/// Sizes of a hybrid model; `_lines` are vectors of 16 elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) vocabulary: usize,
    pub(super) blocks: usize,
    pub(super) max_source: usize,
    pub(super) max_target: usize,
    /// Units of the encoder, each way.
    pub(super) encoder: usize,
    pub(super) encoder_lines: usize,
    pub(super) hidden: usize,
    pub(super) hidden_lines: usize,
    pub(super) inner: usize,
    pub(super) inner_lines: usize,
    /// Groups of [`HEADS`] heads; the last may hold heads of zeros.
    pub(super) head_groups: usize,
    /// Vectors of one head.
    pub(super) head_lines: usize,
    /// Vectors of all heads side by side.
    pub(super) attention_lines: usize,
    heads: usize,
}

/// For every place of a padded row or column the index that goes there, or none.
pub(super) type Places = Vec<Option<usize>>;

impl Shape {
    /// The sizes of a configuration.
    pub(super) fn new(config: &Config) -> Self {
        let head_lines = lines(config.hidden / config.heads);
        let head_groups = config.heads.div_ceil(HEADS);
        Self {
            vocabulary: config.vocabulary,
            blocks: config.layers,
            max_source: config.max_source,
            max_target: config.max_target,
            encoder: config.encoder,
            encoder_lines: lines(config.encoder),
            hidden: config.hidden,
            hidden_lines: lines(config.hidden),
            inner: config.feedforward,
            inner_lines: lines(config.feedforward),
            head_groups,
            head_lines,
            attention_lines: head_groups * HEADS * head_lines,
            heads: config.heads,
        }
    }

    /// Elements of one head.
    pub(super) fn head(&self) -> usize {
        self.hidden / self.heads
    }

    /// Vectors of one position's memory: both directions of the encoder.
    pub(super) fn memory_lines(&self) -> usize {
        2 * self.encoder_lines
    }

    /// `width` elements in a row.
    pub(super) fn plain(width: usize) -> Places {
        filled(0..width)
    }

    /// Both directions of the encoder, each filled up.
    pub(super) fn both(&self) -> Places {
        let mut places = filled(0..self.encoder);
        places.extend(filled(self.encoder..2 * self.encoder));
        places
    }

    /// The decoder's first hidden state and cell, each filled up.
    pub(super) fn states(&self) -> Places {
        let mut places = filled(0..self.hidden);
        places.extend(filled(self.hidden..2 * self.hidden));
        places
    }

    /// Heads, each filled up, and heads of zeros.
    pub(super) fn heads(&self) -> Places {
        let head = self.head();
        let mut places: Places = (0..self.heads).flat_map(|at| filled(at * head..(at + 1) * head)).collect();
        places.resize(self.attention_lines * LANES, None);
        places
    }

    /// The gates i, f, g, o of 16 units, then those of the next 16.
    pub(super) fn gates(units: usize) -> Places {
        let mut places = Places::new();
        for first in (0..units).step_by(LANES) {
            for gate in 0..4 {
                places.extend(filled(gate * units + first..gate * units + units.min(first + LANES)));
            }
        }
        places
    }
}

/// The indices of a range, then none up to whole vectors.
fn filled(range: Range<usize>) -> Places {
    let whole = lines(range.len()) * LANES;
    let mut places: Places = range.map(Some).collect();
    places.resize(whole, None);
    places
}
