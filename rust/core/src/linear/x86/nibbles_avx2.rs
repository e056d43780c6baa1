//! Rows of 4-bit weights as they are packed, and inputs in the order of their nibbles, for [`super::nibble_sums_avx2`].

use super::int8_groups_avx2::{UNROLL_ROWS, WeightReader};
use super::int8_limbs_vnni::{FixedInputs, Plan};
use super::nibble_rows_avx2::{GROUP, NibbleRows, Scratch};
use super::nibble_sums_avx2::{BLOCK, EACH, Inputs, LANES, MAX_NUMBER, products};
use crate::codec::rows::Rows;
use crate::codec::zeroed;
use crate::error::Result;

/// The product of rows of 4-bit weights with the codes of rows of inputs.
pub(super) struct Nibbles<'a> {
    plan: &'a Plan,
    weights: NibbleRows<'a>,
    /// Numbers by code, as stored.
    table: [u8; 16],
    /// By row, then block.
    inputs: Vec<Inputs>,
}

impl<'a> Nibbles<'a> {
    /// True for weights that are multiplied so: codes of 4 bits whose numbers lie close together.
    pub(super) const fn takes(plan: &Plan) -> bool {
        plan.width == 4 && plan.is_bytes() && plan.most + plan.offset <= MAX_NUMBER
    }

    /// Arranges inputs of one limb, `input_group` columns of which share a scale.
    ///
    /// # Errors
    /// Where memory is short.
    pub(super) fn new(plan: &'a Plan, rows: &'a Rows<'a>, x: &FixedInputs, input_group: usize) -> Result<Self> {
        let weights = NibbleRows::new(plan, rows, input_group, BLOCK);
        let blocks = weights.blocks();
        let mut inputs = zeroed::<Inputs>(x.rows * blocks)?;
        for (row, inputs) in inputs.chunks_mut(blocks.max(1)).enumerate() {
            let plane = x.plane(row, 0).as_chunks::<BLOCK>().0;
            for ((at, to), columns) in inputs.iter_mut().enumerate().zip(plane) {
                for (pair, columns) in columns.as_chunks::<2>().0.iter().enumerate() {
                    (to.columns[0].0[pair], to.columns[1].0[pair]) = (columns[0], columns[1]);
                }
                for (lane, columns) in columns.as_chunks::<EACH>().0.iter().enumerate() {
                    to.sums.0[lane] = columns.iter().map(|&x| i32::from(x)).sum::<i32>() as f32;
                    to.scales.0[lane] = x.unit(row, at * BLOCK + lane * EACH);
                }
            }
        }
        let table = std::array::from_fn(|code| plan.unsigned[0].0[code]);
        Ok(Self { plan, weights, table, inputs })
    }
}

impl WeightReader for Nibbles<'_> {
    type Scratch = Scratch;

    fn scratch(&self) -> Result<Scratch> {
        self.weights.scratch(UNROLL_ROWS)
    }

    unsafe fn read(&self, row: usize, place: usize, to: &mut Scratch) -> bool {
        // SAFETY: as the caller promises.
        unsafe { self.weights.read(row, place, to) }
    }

    unsafe fn products<const M: usize>(
        &self,
        first: usize,
        count: usize,
        rows: [usize; M],
        from: &Scratch,
    ) -> [[f32; M]; UNROLL_ROWS] {
        let (blocks, ahead) = (self.weights.blocks(), self.weights.ahead(UNROLL_ROWS, from));
        let x = rows.map(|row| self.inputs[row * blocks..].as_ptr());
        let (table, offset) = (&self.table, self.plan.offset as f32);
        let mut all = [[0.0; M]; UNROLL_ROWS];
        for (place, all) in all.iter_mut().enumerate().take(count) {
            let w = self.weights.row(first + place, place, from);
            // SAFETY: as the caller promises; codes, scales, zero points and inputs are whole blocks.
            *all = unsafe {
                match (self.weights.group() == GROUP, self.plan.zeros) {
                    (true, false) => products::<M, false, false>(w, table, offset, x, blocks, ahead),
                    (true, true) => products::<M, false, true>(w, table, offset, x, blocks, ahead),
                    (false, false) => products::<M, true, false>(w, table, offset, x, blocks, ahead),
                    (false, true) => products::<M, true, true>(w, table, offset, x, blocks, ahead),
                }
            };
        }
        all
    }
}

const _: () = assert!(LANES * EACH == BLOCK && EACH * 2 == GROUP / 2);
