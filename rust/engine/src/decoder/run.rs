//! A pass over positions of some sequences: their keys and values enter the cache, and hidden states come out.

use octavo_core::pool;

use super::Decoder;
use super::attention::Query;
use super::cache::{Cache, Pages};
use super::network::{Block, RootMeanSquare};
use super::rotary::turn;
use crate::error::Result;
use crate::functions::at_level;
use crate::layers::activate;

/// Added to the mean squares of heads by the networks of `octavo.lab.language.gpt`.
const HEAD_EPSILON: f32 = 1e-6;

/// A position that is computed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// Which sequence of those given.
    pub(super) sequence: usize,
    pub(super) position: usize,
    pub(super) id: u32,
    /// First position of its document.
    pub(super) document: usize,
}

/// Cosines and sines of a position, for each rotary of the network.
type Turns = Vec<(Vec<f32>, Vec<f32>)>;

impl Decoder {
    /// The hidden states that the head reads, `[places, width]`. Sequences have room for their places, which follow each
    /// other in order. What comes out for a place depends on its sequence up to it alone.
    pub(super) fn pass(&self, places: &[Place], sequences: &[&Pages], cache: &mut Cache) -> Result<Vec<f32>> {
        let (network, width) = (&self.network, self.plan.width);
        let mut x = vec![0.0; places.len() * width];
        let ids: Vec<i64> = places.iter().map(|place| i64::from(place.id)).collect();
        network.tokens.add(&ids, &mut x)?;
        if let Some(table) = &network.positions {
            let positions: Vec<i64> = places.iter().map(|place| place.position as i64).collect();
            table.add(&positions, &mut x)?;
        }
        if let Some(norm) = &network.embedding_norm {
            x = norm.apply(&x);
        }
        let turns: Vec<Turns> = places
            .iter()
            .map(|place| network.rotaries.iter().map(|rotary| rotary.turns(place.position)).collect())
            .collect();
        for (layer, block) in network.blocks.iter().enumerate() {
            let normed = block.attention_norm.apply(&x);
            let (mut queries, mut keys, values) = block.project(&normed)?;
            block.turn(&mut queries, &mut keys, &turns);
            let held = block.plan.kv_heads * block.plan.size;
            for ((place, key), value) in places.iter().zip(keys.chunks_exact(held)).zip(values.chunks_exact(held)) {
                cache.write(sequences[place.sequence], layer, place.position, key, value);
            }
            let mixed = block.attend(&queries, places, sequences, cache, layer)?;
            add(&mut x, &block.out.apply_rows_independently(&mixed)?, block.plan.added);
            let normed = block.feed_norm.apply(&x);
            let mut inner = block.up.apply_rows_independently(&normed)?;
            match &block.gate {
                Some(gate) => {
                    let mut gates = gate.apply_rows_independently(&normed)?;
                    activate(&mut gates, block.activation())?;
                    inner.iter_mut().zip(gates).for_each(|(x, gate)| *x *= gate);
                }
                None => activate(&mut inner, block.activation())?,
            }
            add(&mut x, &block.down.apply_rows_independently(&inner)?, 1.0);
        }
        Ok(network.final_norm.apply(&x))
    }
}

impl Block {
    /// Queries, keys and values, `[rows, heads * size]` each.
    fn project(&self, x: &[f32]) -> Result<(Vec<f32>, Vec<f32>, Vec<f32>)> {
        if let [query, key, value] = self.projections.as_slice() {
            return Ok((
                query.apply_rows_independently(x)?,
                key.apply_rows_independently(x)?,
                value.apply_rows_independently(x)?,
            ));
        }
        let (seen, held) = (self.plan.heads * self.plan.size, self.plan.kv_heads * self.plan.size);
        let (mut queries, mut keys, mut values) = (Vec::new(), Vec::new(), Vec::new());
        for projection in &self.projections {
            for row in projection.apply_rows_independently(x)?.chunks_exact(seen + 2 * held) {
                queries.extend_from_slice(&row[..seen]);
                keys.extend_from_slice(&row[seen..seen + held]);
                values.extend_from_slice(&row[seen + held..]);
            }
        }
        Ok((queries, keys, values))
    }

    /// Norms and turns the heads of queries and keys where the plan says so.
    fn turn(&self, queries: &mut [f32], keys: &mut [f32], turns: &[Turns]) {
        let size = self.plan.size;
        for (heads, of) in [(self.plan.heads, queries), (self.plan.kv_heads, keys)] {
            if self.plan.norms_heads {
                at_level(RootMeanSquare { values: of, width: size, epsilon: HEAD_EPSILON, gain: None });
            }
            if let Some(rotary) = self.rotary {
                for (row, turns) in of.chunks_exact_mut(heads * size).zip(turns) {
                    turn(row, &turns[rotary]);
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
        let pages: Vec<Vec<&[f32]>> = sequences.iter().map(|pages| cache.of(pages)).collect();
        let mut out = vec![0.0; queries.len()];
        let query = |row: usize| {
            let place = places[row];
            let end = place.position + 1;
            let first = plan.window.map_or(0, |window| end.saturating_sub(window)).max(place.document);
            let (query, pages) = (&queries[row * seen..][..seen], pages[place.sequence].as_slice());
            let share = plan.heads / plan.kv_heads;
            Query { query, share, scale: plan.scale, pages, layer: cache.layer(layer), first, end }
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
