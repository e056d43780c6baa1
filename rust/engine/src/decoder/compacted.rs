//! The heads and neurons of each block of a model of which some were taken out.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects, clippy::cast_possible_truncation)]

use serde::Deserialize;
use serde_json::Value;

use super::names::Names;
use super::plan::{BlockPlan, Gate, Order, Plan};
use crate::error::{Error, Result, refuse};
use crate::file::shown;
use crate::sizes::{Sizes, whole};

/// The field of a configuration.
pub(super) const SIZES: &str = "octavo_sizes";

/// Sets the heads and neurons of the blocks of a plan to those of a compacted model. Shapes are those of the tensors in the
/// file, which loading checks.
///
/// # Errors
/// [`octavo_core::Error::Container`] naming the entry, for sizes that are not of this decoder or that contradict each other.
pub(super) fn cut(plan: &mut Plan, names: &Names, sizes: &Value) -> Result<()> {
    let sizes = Sizes::deserialize(sizes).map_err(|error| refuse(format!("{SIZES}: {error}")))?;
    for (name, shape) in &sizes.weights {
        let (number, part) = place(names, name).ok_or_else(|| other(name))?;
        let block = plan.blocks.get_mut(number).ok_or_else(|| other(name))?;
        cut_block(block, names, part, shape).map_err(|error| in_entry(name, &error))?.ok_or_else(|| other(name))?;
    }
    for (number, block) in plan.blocks.iter().enumerate() {
        if block.heads.checked_rem(block.kv_heads) != Some(0) {
            let (heads, kv) = (block.heads, block.kv_heads);
            return Err(refuse(format!("{SIZES}: block {number} has {heads} heads of queries and {kv} of keys")));
        }
    }
    for (name, numbers) in &sizes.numbers {
        let (number, _) = place(names, name).ok_or_else(|| other(name))?;
        let block = plan.blocks.get(number).ok_or_else(|| other(name))?;
        for (field, &value) in numbers {
            let known = match field.as_str() {
                "num_heads" | "heads" => block.heads,
                "kv_heads" => block.kv_heads,
                "num_key_value_groups" => block.heads.checked_div(block.kv_heads).unwrap_or(0),
                "split_size" => block.heads.saturating_mul(block.size),
                "intermediate_size" => block.feed.inner,
                _ => return Err(other(&format!("{name}.{field}"))),
            };
            if usize::try_from(value) != Ok(known) {
                let name = shown(&format!("{name}.{field}"));
                return Err(refuse(format!("{SIZES}: {name} is {value}, and the weights are of {known}")));
            }
        }
    }
    Ok(())
}

/// The number of a block, and the name inside it.
fn place<'a>(names: &Names, name: &'a str) -> Option<(usize, &'a str)> {
    let inside = name.strip_prefix(names.prefix).unwrap_or(name);
    let (number, part) = inside.strip_prefix(names.blocks)?.strip_prefix('.')?.split_once('.')?;
    Some((number.parse().ok()?, part))
}

/// Sets what the shape of one parameter tells; nothing where the block has no such parameter.
fn cut_block(block: &mut BlockPlan, names: &Names, part: &str, shape: &[u64]) -> Result<Option<()>> {
    let outputs = if names.transposed { shape.get(1) } else { shape.first() };
    let outputs = outputs.copied().unwrap_or(0);
    let size = block.size as u64;
    let heads = |parts: u64, most: usize| {
        let width = size.saturating_mul(parts);
        let heads = outputs.checked_div(width).filter(|_| outputs.is_multiple_of(width)).unwrap_or(0);
        whole("heads", heads, 1, most)
    };
    let (layer, kind) = part.rsplit_once('.').unwrap_or((part, ""));
    let is = |name: &str| layer == name && kind == "weight";
    match *names.projections {
        [all] if is(all) && block.order == Order::Stacked && block.heads == block.kv_heads => {
            block.heads = heads(3, block.heads)?;
            block.kv_heads = block.heads;
        }
        [query, _, _] if is(query) => block.heads = heads(1, block.heads)?,
        [_, key, _] if is(key) => block.kv_heads = heads(1, block.kv_heads)?,
        _ if is(names.up) && block.feed.gate != Gate::Together && block.feed.experts.is_none() => {
            block.feed.inner = whole("neurons", outputs, 1, block.feed.inner)?;
        }
        // Layers that are several in one are not cut.
        [all] if is(all) || is(names.up) => return Ok(None),
        // The other sides of the same heads and neurons.
        _ if names
            .projections
            .iter()
            .chain([&names.out, &names.gate, &names.up, &names.down])
            .any(|&name| name == layer) => {}
        _ => return Ok(None),
    }
    Ok(Some(()))
}

fn other(name: &str) -> Error {
    refuse(format!("{SIZES}: {} is no size of this decoder", shown(name)))
}

fn in_entry(name: &str, error: &Error) -> Error {
    refuse(format!("{SIZES}: {}: {error}", shown(name)))
}
