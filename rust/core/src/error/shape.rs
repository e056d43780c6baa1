//! Shapes, axes, lengths and indices that do not fit.

use std::fmt;

use crate::dtype::DType;
use crate::format::Format;

/// A shape, axis or buffer length that does not fit.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShapeError {
    /// A tensor without dimensions, and a format that groups along rows.
    #[error("'{format}' needs at least 1 dimension, got shape ()")]
    NoDimension {
        /// The format.
        format: Format,
    },
    /// An axis that the shape does not have.
    #[error("{}", Axis(*.axis, .shape))]
    Axis {
        /// The axis given; negative ones count from the end.
        axis: isize,
        /// The shape.
        shape: Vec<usize>,
    },
    /// A number of elements that overflows.
    #[error("shape {shape:?} has too many elements")]
    TooManyElements {
        /// The shape.
        shape: Vec<usize>,
    },
    /// A number of bytes that overflows.
    #[error("'{format}': {elements} elements give too many bytes")]
    TooManyBytes {
        /// The format.
        format: Format,
        /// Number of elements.
        elements: usize,
    },
    /// A row of codes whose bits overflow.
    #[error("{count} codes of {width} bits overflow the address space")]
    TooManyCodes {
        /// Number of codes.
        count: usize,
        /// Bits of a code.
        width: u32,
    },
    /// A buffer of another length than the shape and the format demand.
    #[error("'{format}': {what} holds {got}, expected {expected}")]
    Length {
        /// The format.
        format: Format,
        /// The buffer, and the unit it is counted in.
        what: &'static str,
        /// The length found.
        got: usize,
        /// The length demanded.
        expected: usize,
    },
    /// A buffer of AdamW with moments in codes, of another length than the weights demand.
    #[error("AdamW with moments in codes: {what} holds {got}, expected {expected}")]
    Moments {
        /// The buffer, and the unit it is counted in.
        what: &'static str,
        /// The length found.
        got: usize,
        /// The length demanded.
        expected: usize,
    },
    /// Values and results of different dtypes.
    #[error("out is {}, x is {}", .out.name(), .x.name())]
    Dtypes {
        /// Dtype of the results.
        out: DType,
        /// Dtype of the values.
        x: DType,
    },
    /// Codes of no bits, or of more than 32.
    #[error("{width} bits per code; accepted are 1 to 32")]
    CodeWidth {
        /// Bits of a code.
        width: u32,
    },
    /// Rows of codes and bytes that do not belong together.
    #[error(
        "{rows} rows of {columns} codes of {width} bits are {row_bytes} bytes a row; got {codes} codes and {bytes} bytes"
    )]
    PackedRows {
        /// Number of rows.
        rows: usize,
        /// Codes of a row.
        columns: usize,
        /// Bits of a code.
        width: u32,
        /// Bytes of a row.
        row_bytes: usize,
        /// Number of codes given.
        codes: usize,
        /// Number of bytes given.
        bytes: usize,
    },
    /// Inputs or outputs of a product of another length.
    #[error(
        "{m} rows times a weight of shape ({n}, {k}) take {m} x {k} inputs and {m} x {n} outputs; got {inputs} and {outputs}"
    )]
    Product {
        /// Rows of inputs.
        m: usize,
        /// Rows of weights.
        n: usize,
        /// Columns.
        k: usize,
        /// Number of inputs given.
        inputs: usize,
        /// Number of outputs given.
        outputs: usize,
    },
    /// Weights of an integer product whose parts have another length.
    #[error("'{format}' of shape ({n}, {k}) takes {} bytes of codes and {} of scales; got {} and {}", .expected.0, .expected.1, .got.0, .got.1)]
    WeightBytes {
        /// The format.
        format: Format,
        /// Rows of weights.
        n: usize,
        /// Columns.
        k: usize,
        /// Bytes of codes and of scales that the shape demands.
        expected: (usize, usize),
        /// Bytes given.
        got: (usize, usize),
    },
    /// A bias for another number of rows.
    #[error("bias holds {got} values, the weight has {rows} rows")]
    Bias {
        /// Length of the bias.
        got: usize,
        /// Rows of weights.
        rows: usize,
    },
    /// Results of a gather of another length.
    #[error("{ids} ids of a table of width {columns} give {expected} values; out holds {got}")]
    Gather {
        /// Number of ids.
        ids: usize,
        /// Width of the table.
        columns: usize,
        /// Values that they give.
        expected: usize,
        /// Length of the results.
        got: usize,
    },
    /// A group that a row does not have.
    #[error("'{format}': group {group} of {groups}")]
    Group {
        /// The format.
        format: Format,
        /// The group named.
        group: u32,
        /// Groups of a row.
        groups: usize,
    },
    /// A buffer to read a tensor into, of another length.
    #[error("{name}: {got} bytes to read into, the file has {stored}")]
    ReadLength {
        /// Name of the tensor, escaped and cut.
        name: String,
        /// Bytes of the buffer.
        got: usize,
        /// Bytes of the tensor.
        stored: usize,
    },
    /// A range that passes the end of a tensor.
    #[error("{name}: {bytes} bytes from {start} on are outside {stored}")]
    ReadRange {
        /// Name of the tensor, escaped and cut.
        name: String,
        /// Bytes to read.
        bytes: usize,
        /// The first of them.
        start: usize,
        /// Bytes of the tensor.
        stored: usize,
    },
    /// Data of another length than what was announced for the file.
    #[error("{name}: {got} bytes given, {expected} expected")]
    WriteLength {
        /// Name of the tensor, escaped and cut.
        name: String,
        /// Bytes given.
        got: usize,
        /// Bytes announced.
        expected: usize,
    },
    /// Arrays for the ids of a text of another size.
    #[error("{lines} lines of {width} ids into arrays of {lengths} lengths and {ids} ids")]
    TokenArrays {
        /// Lines of the text.
        lines: usize,
        /// Ids of a line, at most.
        width: usize,
        /// Length of the array of lengths.
        lengths: usize,
        /// Length of the array of ids.
        ids: usize,
    },
    /// An array of ids that is not so many rows.
    #[error("{rows} rows of {width} ids in an array of {ids}")]
    TokenRows {
        /// Rows of ids.
        rows: usize,
        /// Ids of a row.
        width: usize,
        /// Length of the array.
        ids: usize,
    },
    /// A part of sparse codes of another length than the matrix demands.
    #[error("sparse codes: {what} holds {got}, expected {expected}")]
    SparseLength {
        /// The part, and the unit it is counted in.
        what: &'static str,
        /// The length found.
        got: usize,
        /// The length demanded.
        expected: usize,
    },
    /// A bitmap with more or fewer bits than there are codes.
    #[error("sparse codes: the bitmap tells of {counted} codes that are not 0, expected {expected}")]
    SparseCount {
        /// Bits that are set.
        counted: u64,
        /// Codes.
        expected: u64,
    },
    /// A bit that belongs to no element.
    #[error("sparse codes: the bitmap has a bit outside the {rows} rows of {columns} columns")]
    SparseOutside {
        /// Rows of the matrix.
        rows: usize,
        /// Columns of the matrix.
        columns: usize,
    },
    /// A panel whose codes pass the end.
    #[error("sparse codes: panel {panel} has {count} codes from {start} on, of {there}")]
    SparseEnd {
        /// The panel.
        panel: usize,
        /// Its codes.
        count: u64,
        /// Codes before it.
        start: u64,
        /// All codes.
        there: u64,
    },
    /// Rows that are not there, or do not begin a panel.
    #[error("sparse codes: {count} rows from {first} on, of {rows}; the first is a multiple of 16")]
    SparseRows {
        /// The first row asked for.
        first: usize,
        /// How many.
        count: usize,
        /// Rows of the matrix.
        rows: usize,
    },
    /// A refusal of a crate on top.
    #[error("{0}")]
    Other(String),
}

/// An axis outside a shape, in words.
struct Axis<'a>(isize, &'a [usize]);

impl fmt::Display for Axis<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(axis, shape) = *self;
        if shape.is_empty() {
            return write!(f, "axis {axis} is outside shape ()");
        }
        let rank = shape.len() as isize;
        write!(f, "axis {axis} is outside shape {shape:?}: accepted are {}..{}", -rank, rank - 1)
    }
}

/// An index outside its range.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RangeError {
    /// An id that a table does not have.
    #[error("id {id} at position {position} is outside 0..{rows}")]
    Id {
        /// The id given.
        id: i64,
        /// Its position among the ids.
        position: usize,
        /// Rows of the table.
        rows: usize,
    },
    /// A refusal of a crate on top.
    #[error("{0}")]
    Other(String),
}
