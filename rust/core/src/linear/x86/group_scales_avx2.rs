//! Scales of packed weights, one for each group of a kernel, with AVX2.

use super::int8_limbs_vnni::{Plan, Scale, Scales, is_moderate};
use crate::codec::rows::Rows;

/// Reads the scales of rows of weights.
pub(super) struct GroupScales<'a> {
    pub(super) plan: &'a Plan,
    pub(super) rows: &'a Rows<'a>,
    scales: Scales<'a>,
    /// What stored scales are to be multiplied with.
    raised: f32,
    /// Columns that share a scale. A longer stored group is several of these.
    pub(super) group: usize,
}

impl<'a> GroupScales<'a> {
    /// A reader of rows whose format has the plan, for groups of at most `group` columns.
    pub(super) fn new(plan: &'a Plan, rows: &'a Rows<'a>, group: usize) -> Self {
        let scales = Scales::new(plan.scale, rows);
        let raised = crate::float::exp2(-plan.shift - scales.raised()) as f32;
        Self { plan, rows, scales, raised, group: plan.group.min(group) }
    }

    /// Groups of ours in a stored one.
    pub(super) const fn each(&self) -> usize {
        self.plan.group / self.group
    }

    /// Writes the scales of a row to all groups that there is room for; false where one is so large or so small that weights
    /// may not be a number times it.
    ///
    /// # Safety
    /// The processor must have AVX2 and F16C; the matrix must have the row, and `to` as many groups at least.
    #[target_feature(enable = "avx2,f16c")]
    pub(super) unsafe fn read(&self, row: usize, to: &mut [f32]) -> bool {
        if self.plan.scale == Scale::Row {
            let step = self.rows.row_step(row) as f32;
            to.fill(step * self.raised);
            return is_moderate(step);
        }
        // SAFETY: as the caller promises.
        let fits = unsafe { self.scales.read_each_avx2(row, self.each(), to) };
        to.iter_mut().for_each(|scale| *scale *= self.raised);
        fits
    }
}
