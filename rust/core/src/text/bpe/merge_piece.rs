//! Merging the bytes of a piece: of all neighbours that merge those of the lowest rank, the leftmost first, until none do.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::pair_table::{NEVER, PairTable};

/// Bytes of a piece up to which all ranks are looked through for every merge.
const SHORT: usize = 64;
/// Bits of a position in a short piece.
const PLACE_BITS: u32 = 6;
/// The key of a position where nothing merges. Keys have a sign: the least of many is found sooner than without one.
const NONE: i32 = i32::MAX;

/// What merging needs of a vocabulary.
#[derive(Clone, Debug)]
pub(super) struct Merges {
    /// The token of each byte; `u32::MAX` for a byte without one.
    pub(super) bytes: [u32; 256],
    /// The ranks of pairs.
    pub(super) pairs: PairTable,
    /// The token that the pair of a rank becomes.
    pub(super) made: Vec<u32>,
}

/// Memory that long pieces are merged in, kept between them.
#[derive(Debug, Default)]
pub(super) struct Links {
    ids: Vec<u32>,
    ranks: Vec<u32>,
    before: Vec<u32>,
    behind: Vec<u32>,
    queue: BinaryHeap<Reverse<u64>>,
}

impl Merges {
    /// Appends the tokens of a piece, which takes time in proportion to n log n.
    pub(super) fn piece(&self, piece: &[u8], links: &mut Links, out: &mut Vec<u32>) {
        match piece.len() {
            0 => {}
            1 => out.push(self.bytes[usize::from(piece[0])]),
            2..=SHORT => self.short(piece, out),
            _ => self.long(piece, links, out),
        }
    }

    /// Keys are ranks above positions, so that the least key is that of the leftmost pair of the lowest rank.
    fn short(&self, piece: &[u8], out: &mut Vec<u32>) {
        let length = piece.len();
        let (mut ids, mut keys) = ([0u32; SHORT], [NONE; SHORT]);
        for (id, &byte) in ids.iter_mut().zip(piece) {
            *id = self.bytes[usize::from(byte)];
        }
        for (at, pair) in piece.windows(2).enumerate() {
            keys[at] = key(self.pairs.rank_of_bytes(pair[0], pair[1]), at);
        }
        let mut alive = u64::MAX >> (SHORT - length);
        let looked_at = length.next_multiple_of(8).min(SHORT);
        loop {
            let least = keys[..looked_at].iter().fold(NONE, |least, &key| if key < least { key } else { least });
            if least == NONE {
                break;
            }
            let at = (least & (SHORT as i32 - 1)) as usize;
            let right = at + 1 + (alive >> (at + 1)).trailing_zeros() as usize;
            ids[at] = self.made[(least >> PLACE_BITS) as usize];
            alive &= !(1 << right);
            keys[right] = NONE;
            let behind = alive & (u64::MAX << at << 1);
            keys[at] = if behind == 0 {
                NONE
            } else {
                key(self.pairs.rank(ids[at], ids[behind.trailing_zeros() as usize]), at)
            };
            let before = alive & !(u64::MAX << at);
            if before != 0 {
                let left = 63 - before.leading_zeros() as usize;
                keys[left] = key(self.pairs.rank(ids[left], ids[at]), left);
            }
        }
        while alive != 0 {
            out.push(ids[alive.trailing_zeros() as usize]);
            alive &= alive - 1;
        }
    }

    /// A queue of pairs over a list of neighbours; entries that are out of date are passed over.
    fn long(&self, piece: &[u8], links: &mut Links, out: &mut Vec<u32>) {
        let Links { ids, ranks, before, behind, queue } = links;
        let end = piece.len();
        ids.clear();
        ids.extend(piece.iter().map(|&byte| self.bytes[usize::from(byte)]));
        ranks.clear();
        ranks.extend(piece.windows(2).map(|pair| self.pairs.rank_of_bytes(pair[0], pair[1])));
        ranks.push(NEVER);
        before.clear();
        before.extend((0..end as u32).map(|at| at.wrapping_sub(1)));
        behind.clear();
        behind.extend(1..=end as u32);
        let entry = |rank: u32, at: usize| Reverse(u64::from(rank) << 32 | at as u64);
        let mut first = std::mem::take(queue).into_vec();
        first.clear();
        first.extend(ranks.iter().enumerate().filter(|&(_, &rank)| rank != NEVER).map(|(at, &rank)| entry(rank, at)));
        *queue = first.into();
        while let Some(Reverse(top)) = queue.pop() {
            let (rank, at) = ((top >> 32) as u32, top as u32 as usize);
            if ranks[at] != rank {
                continue;
            }
            let right = behind[at] as usize;
            ids[at] = self.made[rank as usize];
            ranks[right] = NEVER;
            let next = behind[right] as usize;
            behind[at] = next as u32;
            ranks[at] = NEVER;
            if next < end {
                before[next] = at as u32;
                ranks[at] = self.pairs.rank(ids[at], ids[next]);
                if ranks[at] != NEVER {
                    queue.push(entry(ranks[at], at));
                }
            }
            if at > 0 {
                let left = before[at] as usize;
                ranks[left] = self.pairs.rank(ids[left], ids[at]);
                if ranks[left] != NEVER {
                    queue.push(entry(ranks[left], left));
                }
            }
        }
        let mut at = 0;
        while at < end {
            out.push(ids[at]);
            at = behind[at] as usize;
        }
    }
}

fn key(rank: u32, at: usize) -> i32 {
    if rank == NEVER { NONE } else { (rank << PLACE_BITS) as i32 | at as i32 }
}
