//! A pass over positions of some sequences: their keys and values enter the cache, and hidden states come out.

use octavo_core::pool;

use super::Decoder;
use super::attention::Query;
use super::cache::{Cache, Pages};
use super::network::Block;
use super::plan::{Norms, Order};
use super::rotary::{Turns, turn};
use crate::error::Result;

/// A position that is computed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// Which sequence of those given.
    pub(super) sequence: usize,
    pub(super) position: usize,
    pub(super) id: u32,
    /// First position of its document.
    pub(super) document: usize,
    /// The text is one of those that have other angles.
    pub(super) is_long: bool,
}

/// Queries, keys and values, `[rows, heads * size]` each.
type Projected = (Vec<f32>, Vec<f32>, Vec<f32>);

impl Decoder {
    /// The hidden states that scores are made of, `[places, width]`. Sequences have room for their places, which follow each
    /// other in order. What comes out for a place depends on its sequence up to it alone.
    pub(super) fn pass(&self, places: &[Place], sequences: &[&Pages], cache: &mut Cache) -> Result<Vec<f32>> {
        let network = &self.network;
        let mut x = self.embed(places)?;
        // Those of each rotary, for every place.
        let turns: Vec<Vec<Turns>> = network
            .rotaries
            .iter()
            .map(|rotary| places.iter().map(|place| rotary.turns(place.position, place.is_long)).collect())
            .collect();
        for (layer, block) in network.blocks.iter().enumerate() {
            let [before_attention, after_attention] = &block.attention_norms;
            let [before_feed, after_feed] = &block.feed_norms;
            let [attention_added, feed_added] = block.plan.added;
            let normed = before_attention.as_ref().map(|norm| norm.apply(&x));
            let read = normed.as_deref().unwrap_or(&x);
            let (mut queries, mut keys, values) = block.project(read)?;
            block.turn(&mut queries, &mut keys, &turns);
            let keyed = block.plan.kv_heads * block.plan.size;
            for ((place, key), value) in places.iter().zip(keys.chunks_exact(keyed)).zip(values.chunks_exact(keyed)) {
                cache.write(sequences[place.sequence], layer, place.position, key, value)?;
            }
            let mixed = block.attend(&queries, places, sequences, cache, layer)?;
            let mut mixed = block.out.apply_rows_independently(&mixed)?;
            let norms_sum = block.plan.norms == Norms::Sum;
            if let Some(norm) = after_attention.as_ref().filter(|_| !norms_sum) {
                norm.apply_in_place(&mut mixed);
            }
            // A parallel network reads the stream as attention did.
            let parallel = match block.plan.norms {
                Norms::ParallelShared => Some(block.feed.apply(read)?),
                Norms::ParallelApart => {
                    let normed = before_feed.as_ref().map(|norm| norm.apply(&x));
                    Some(block.feed.apply(normed.as_deref().unwrap_or(&x))?)
                }
                Norms::Before | Norms::After | Norms::Around | Norms::Sum => None,
            };
            add(&mut x, &mixed, attention_added);
            if let Some(norm) = after_attention.as_ref().filter(|_| norms_sum) {
                norm.apply_in_place(&mut x);
            }
            let mut fed = match parallel {
                Some(fed) => fed,
                None => {
                    let normed = before_feed.as_ref().map(|norm| norm.apply(&x));
                    block.feed.apply(normed.as_deref().unwrap_or(&x))?
                }
            };
            if let Some(norm) = after_feed.as_ref().filter(|_| !norms_sum) {
                norm.apply_in_place(&mut fed);
            }
            add(&mut x, &fed, feed_added);
            if let Some(norm) = after_feed.as_ref().filter(|_| norms_sum) {
                norm.apply_in_place(&mut x);
            }
        }
        if let Some(norm) = &network.final_norm {
            norm.apply_in_place(&mut x);
        }
        Ok(x)
    }

    /// What the first block reads, `[places, width]`.
    fn embed(&self, places: &[Place]) -> Result<Vec<f32>> {
        let (network, plan) = (&self.network, &self.plan);
        let mut x = vec![0.0; places.len() * plan.row_width];
        let ids: Vec<i64> = places.iter().map(|place| i64::from(place.id)).collect();
        network.tokens.add(&ids, &mut x)?;
        if plan.embedding_scale != 1.0 {
            x.iter_mut().for_each(|x| *x *= plan.embedding_scale);
        }
        if let Some([into, _]) = &network.row_projections {
            x = into.apply_rows_independently(&x)?;
        }
        if let Some(table) = &network.positions {
            let before = plan.position_rows_before.unwrap_or(0);
            let rows: Vec<i64> = places.iter().map(|place| (place.position + before) as i64).collect();
            table.add(&rows, &mut x)?;
        }
        if let Some(norm) = &network.embedding_norm {
            norm.apply_in_place(&mut x);
        }
        Ok(x)
    }
}

impl Block {
    fn project(&self, x: &[f32]) -> Result<Projected> {
        if let [query, key, value] = self.projections.as_slice() {
            return Ok((
                query.apply_rows_independently(x)?,
                key.apply_rows_independently(x)?,
                value.apply_rows_independently(x)?,
            ));
        }
        let (size, kv_heads) = (self.plan.size, self.plan.kv_heads);
        let (seen, keyed) = (self.plan.heads * size, kv_heads * size);
        let (mut queries, mut keys, mut values) = (Vec::new(), Vec::new(), Vec::new());
        // Stacked rows are one group.
        let groups = if self.plan.order == Order::Grouped { kv_heads } else { 1 };
        let (seen, keyed) = (seen / groups, keyed / groups);
        for projection in &self.projections {
            for group in projection.apply_rows_independently(x)?.chunks_exact(seen + 2 * keyed) {
                queries.extend_from_slice(&group[..seen]);
                keys.extend_from_slice(&group[seen..seen + keyed]);
                values.extend_from_slice(&group[seen + keyed..]);
            }
        }
        Ok((queries, keys, values))
    }

    /// Norms and turns the heads of queries and keys where the plan says so.
    fn turn(&self, queries: &mut [f32], keys: &mut [f32], turns: &[Vec<Turns>]) {
        let size = self.plan.size;
        for (which, (heads, of)) in [(self.plan.heads, queries), (self.plan.kv_heads, keys)].into_iter().enumerate() {
            self.head_norms.apply(which, of);
            if let Some(rotary) = self.rotary {
                for (row, turns) in of.chunks_exact_mut(heads * size).zip(&turns[rotary]) {
                    turn(row, size, turns);
                }
            }
        }
    }

    /// What each place sees, `[places, heads * size]`.
    fn attend(
        &self,
        queries: &[f32],
        places: &[Place],
        sequences: &[&Pages],
        cache: &Cache,
        layer: usize,
    ) -> Result<Vec<f32>> {
        let plan = &self.plan;
        let (seen, size) = (plan.heads * plan.size, plan.size);
        let first = |place: &Place| {
            plan.window.map_or(0, |window| (place.position + 1).saturating_sub(window)).max(place.document)
        };
        // What the places of each sequence see together.
        let mut ranges = vec![(usize::MAX, 0); sequences.len()];
        for place in places {
            let (start, end) = &mut ranges[place.sequence];
            (*start, *end) = ((*start).min(first(place)), (*end).max(place.position + 1));
        }
        let cached = cache.of(sequences, layer, &ranges)?;
        let pages: Vec<Vec<&[f32]>> = (0..sequences.len()).map(|sequence| cached.of(sequence)).collect();
        let mut out = vec![0.0; queries.len()];
        let query = |row: usize| {
            let place = places[row];
            let (first, end) = (first(&place), place.position + 1);
            let (query, pages) = (&queries[row * seen..][..seen], pages[place.sequence].as_slice());
            let share = plan.heads / plan.kv_heads;
            let (scale, cap) = (plan.scale, plan.score_cap);
            let (slopes, sinks) = (self.slopes.as_slice(), self.sinks.as_slice());
            Query { query, share, scale, cap, slopes, sinks, pages, layer: cached.slice, first, end }
        };
        let work: usize = places.iter().map(|place| (place.position + 1) * seen * 2 * size_of::<f32>()).sum();
        let heads = out.chunks_exact_mut(size).enumerate().collect();
        pool::consume(heads, work, |(at, out): (usize, &mut [f32])| {
            query(at / plan.heads).attend(at % plan.heads, out);
        })?;
        Ok(out)
    }
}

fn add(x: &mut [f32], more: &[f32], factor: f32) {
    if factor == 1.0 {
        x.iter_mut().zip(more).for_each(|(x, more)| *x += more);
    } else {
        x.iter_mut().zip(more).for_each(|(x, more)| *x += factor * more);
    }
}
