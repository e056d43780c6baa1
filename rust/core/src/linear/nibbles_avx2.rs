//! Rows of 4-bit weights as they are packed, and inputs in the order of their nibbles, for [`super::nibble_sums_avx2`].

use super::int8_groups_avx2::{Kernel, TOGETHER};
use super::int8_limbs_vnni::{self, FixedInputs, Plan, Scale, Scales, is_moderate};
use super::nibble_sums_avx2::{BLOCK, EACH, Inputs, LANES, MOST, Weights, products};
use crate::codec::rows::Rows;
use crate::codec::zeroed;
use crate::error::Result;

/// Columns that share a scale, at most. A longer stored group is several of these.
const GROUP: usize = 32;

/// The product of rows of 4-bit weights with the codes of rows of inputs.
pub(super) struct Nibbles<'a> {
    plan: &'a Plan,
    rows: &'a Rows<'a>,
    scales: Scales<'a>,
    /// What stored scales are to be multiplied with.
    raised: f32,
    /// [`GROUP`], or half of it.
    group: usize,
    /// Numbers by code, as stored.
    table: [u8; 16],
    /// By row, then block.
    inputs: Vec<Inputs>,
}

/// Some rows of weights.
pub(super) struct Scratch {
    /// Codes filled up to whole blocks; none where rows are whole blocks.
    codes: Vec<u8>,
    scales: Vec<f32>,
    zeros: Vec<f32>,
    stored_zeros: Vec<u16>,
}

impl<'a> Nibbles<'a> {
    /// True for weights that are multiplied so: codes of 4 bits whose numbers lie close together.
    pub(super) const fn takes(plan: &Plan) -> bool {
        plan.width == 4 && plan.is_bytes() && plan.most + plan.offset <= MOST
    }

    /// Arranges inputs of one limb, `input_group` columns of which share a scale.
    ///
    /// # Errors
    /// Where memory is short.
    pub(super) fn new(plan: &'a Plan, rows: &'a Rows<'a>, x: &FixedInputs, input_group: usize) -> Result<Self> {
        let scales = Scales::new(plan.scale, rows);
        let raised = crate::float::exp2(-plan.shift - scales.raised()) as f32;
        let blocks = rows.k.div_ceil(BLOCK);
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
        Ok(Self { plan, rows, scales, raised, group: plan.group.min(input_group).min(GROUP), table, inputs })
    }

    fn blocks(&self) -> usize {
        self.rows.k.div_ceil(BLOCK)
    }

    /// Groups of ours in a row.
    fn groups(&self) -> usize {
        self.blocks() * (BLOCK / self.group)
    }
}

impl Kernel for Nibbles<'_> {
    type Scratch = Scratch;

    fn scratch(&self) -> Result<Scratch> {
        let filled = if self.rows.k.is_multiple_of(BLOCK) { 0 } else { self.blocks() * BLOCK / 2 };
        let places = TOGETHER * self.groups();
        let zeros = zeroed(if self.plan.zeros { places } else { 0 })?;
        Ok(Scratch { codes: zeroed(TOGETHER * filled)?, scales: zeroed(places)?, zeros, stored_zeros: Vec::new() })
    }

    unsafe fn read(&self, row: usize, place: usize, to: &mut Scratch) -> bool {
        let (groups, each) = (self.groups(), self.plan.group / self.group);
        let scales = &mut to.scales[place * groups..][..groups];
        if self.plan.scale == Scale::Row {
            let step = self.rows.row_step(row) as f32;
            if !is_moderate(step) {
                return false;
            }
            scales.fill(step);
        // SAFETY: as the caller promises.
        } else if !unsafe { self.scales.read_each_avx2(row, each, scales) } {
            return false;
        }
        scales.iter_mut().for_each(|scale| *scale *= self.raised);
        if self.plan.zeros {
            let zeros = &mut to.zeros[place * groups..][..groups];
            int8_limbs_vnni::zeros(self.rows, row, each, zeros, &mut to.stored_zeros);
        }
        if !to.codes.is_empty() {
            let (codes, row_bytes) = self.rows.codes();
            to.codes[place * self.blocks() * BLOCK / 2..][..row_bytes]
                .copy_from_slice(&codes[row * row_bytes..][..row_bytes]);
        }
        true
    }

    unsafe fn products<const M: usize>(
        &self,
        first: usize,
        count: usize,
        rows: [usize; M],
        from: &Scratch,
    ) -> [[f32; M]; TOGETHER] {
        let ((codes, row_bytes), groups, blocks) = (self.rows.codes(), self.groups(), self.blocks());
        let x = rows.map(|row| self.inputs[row * blocks..].as_ptr());
        let mut all = [[0.0; M]; TOGETHER];
        for (place, all) in all.iter_mut().enumerate().take(count) {
            let w = Weights {
                codes: match from.codes.is_empty() {
                    true => codes[(first + place) * row_bytes..][..row_bytes].as_ptr(),
                    false => from.codes[place * blocks * BLOCK / 2..].as_ptr(),
                },
                scales: from.scales[place * groups..].as_ptr(),
                zeros: from.zeros.get(place * groups..).unwrap_or_default().as_ptr(),
            };
            let (table, offset) = (&self.table, self.plan.offset as f32);
            let ahead = if from.codes.is_empty() { TOGETHER * row_bytes } else { 0 };
            // SAFETY: as the caller promises; codes, scales, zero points and inputs are whole blocks.
            *all = unsafe {
                match (self.group == GROUP, self.plan.zeros) {
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
