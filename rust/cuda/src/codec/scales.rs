//! Calls that choose the scales of a tensor in a pass of their own, before elements are encoded.

use std::sync::Arc;

use octavo_core::codec::lowered::Chooser;
use octavo_core::format::Granularity;
use octavo_core::{DType, Format, Layout, Nonfinite, ScaleRule, Sizes};

use super::scratch::{CHUNK, Scratch};
use super::shape::THREADS;
use super::{Buffer, Parts, programs};
use crate::{Argument, Call, Program, Result, blocks};

/// Elements of a tile of `largest`; threads that take a chunk of a sum, or a group of a row.
const TILE: usize = 1024;
const LANES: u64 = 16;
/// Blocks of `largest` at most: enough to fill any device, few enough that each has several tiles.
const LARGEST_BLOCKS: u32 = 4096;

pub(super) const fn rule_code(rule: ScaleRule) -> i32 {
    match rule {
        ScaleRule::Floor => 0,
        ScaleRule::Ceil => 1,
        ScaleRule::Mse => 2,
    }
}

pub(super) const fn policy_code(policy: Nonfinite) -> i32 {
    match policy {
        Nonfinite::Error => 0,
        Nonfinite::Saturate => 1,
        Nonfinite::Nan => 2,
    }
}

pub(super) fn call(
    program: &Arc<Program>,
    entry: &'static str,
    grid: u32,
    block: u32,
    arguments: Vec<Argument>,
) -> Call {
    Call {
        program: program.clone(),
        entry,
        grid: [grid, 1, 1],
        block: [block, 1, 1],
        shared: 0,
        arguments,
        early: false,
    }
}

fn address(value: u64) -> Argument {
    Argument::Address(value)
}

fn long(value: usize) -> Argument {
    Argument::I64(value as i64)
}

/// Which scales of a tensor to choose.
pub(super) struct Scales<'a> {
    pub(super) format: Format,
    pub(super) dtype: DType,
    pub(super) layout: &'a Layout,
    pub(super) sizes: &'a Sizes,
    pub(super) x: Buffer,
    /// Where they go.
    pub(super) parts: &'a Parts,
    pub(super) scratch: &'a Scratch,
    pub(super) rule: ScaleRule,
    pub(super) policy: Nonfinite,
}

impl Scales<'_> {
    /// nvfp4's tensor scale alone.
    pub(super) fn level(&self) -> Result<Vec<Call>> {
        match (Chooser::of(self.format), programs::scales(self.format, self.dtype)) {
            (Chooser::NvFp4, Some(program)) => self.largest(&program, 1),
            _ => Ok(Vec::new()),
        }
    }

    /// All scales, zero points and levels. `given`: keep them, but for blocks that hold NaN.
    pub(super) fn all(&self, given: bool) -> Result<Vec<Call>> {
        let Some(program) = programs::scales(self.format, self.dtype) else { return Ok(Vec::new()) };
        let chooser = Chooser::of(self.format);
        let mut calls = Vec::new();
        if let Granularity::Block(_) = self.format.granularity() {
            if !given {
                calls.extend(self.level()?);
            }
            calls.push(self.groups(&program, given)?);
        } else {
            let groups = self.sizes.groups;
            match chooser {
                Chooser::Binary { levels } => {
                    for stage in 0..levels {
                        calls.extend(self.sums(&program, stage.into())?);
                    }
                }
                Chooser::Ternary => {
                    calls.extend(self.sums(&program, 0)?);
                    calls.extend(self.sums(&program, 1)?);
                }
                _ => calls.extend(self.largest(&program, groups)?),
            }
            if matches!(chooser, Chooser::Fraction { mse: true, .. }) {
                calls.extend(self.sums(&program, 1)?);
            }
        }
        if self.sizes.zeros > 0 {
            let lines = self.sizes.zeros / self.sizes.zeros_row;
            let arguments = vec![
                address(self.scratch.zeros),
                address(self.parts.zeros.address),
                long(lines),
                long(self.sizes.groups_per_row),
                long(self.sizes.zeros_row),
            ];
            let grid = blocks(self.sizes.zeros as u64, THREADS.into())?;
            calls.push(call(&program, "pack_zeros", grid, THREADS, arguments));
        }
        Ok(calls)
    }

    fn groups(&self, program: &Arc<Program>, given: bool) -> Result<Call> {
        let arguments = vec![
            address(self.x.address),
            address(self.parts.scales.address),
            address(self.scratch.zeros),
            address(self.parts.levels.address),
            long(self.layout.rows()),
            long(self.layout.k),
            long(self.sizes.groups_per_row),
            Argument::I32(rule_code(self.rule)),
            Argument::I32(policy_code(self.policy)),
            Argument::I32(given.into()),
        ];
        let grid = blocks(self.sizes.groups as u64, u64::from(THREADS) / LANES)?;
        Ok(call(program, "choose_groups", grid, THREADS, arguments))
    }

    fn largest(&self, program: &Arc<Program>, groups: usize) -> Result<Vec<Call>> {
        let k = self.layout.len() / groups.max(1);
        let tiles = groups as u64 * k.div_ceil(TILE) as u64;
        let grid = blocks(tiles, u64::from(THREADS) / 32)?.min(LARGEST_BLOCKS);
        let found = vec![address(self.x.address), address(self.scratch.words), long(groups), long(k)];
        let chosen = vec![
            address(self.scratch.words),
            address(self.parts.scales.address),
            address(self.scratch.zeros),
            address(self.parts.levels.address),
            long(groups),
        ];
        Ok(vec![
            call(program, "largest", grid, THREADS, found),
            call(program, "choose_largest", blocks(groups as u64, THREADS.into())?, THREADS, chosen),
        ])
    }

    fn sums(&self, program: &Arc<Program>, stage: i32) -> Result<[Call; 2]> {
        let groups = self.sizes.groups;
        let k = self.layout.len() / groups.max(1);
        let chunks = k.div_ceil(CHUNK);
        let (scales, records) = (address(self.parts.scales.address), address(self.scratch.records));
        let stage = Argument::I32(stage);
        let grid = blocks(groups as u64 * chunks as u64, u64::from(THREADS) / LANES)?;
        let added = vec![address(self.x.address), scales, records, long(groups), long(k), stage];
        let chosen = vec![records, scales, long(chunks), stage];
        Ok([
            call(program, "sums", grid, THREADS, added),
            call(program, "choose_sums", blocks(groups as u64, 1)?, 32, chosen),
        ])
    }
}
