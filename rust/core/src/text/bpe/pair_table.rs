//! Which pairs of tokens merge, and in which order: a table of 8 bytes an entry.

/// Ids from this on are refused: an entry has 21 bits for each of the two.
pub const MOST_IDS: u32 = (1 << ID_BITS) - 1;
/// Ranks from this on are refused.
pub const MOST_MERGES: u32 = (1 << RANK_BITS) - 1;

const ID_BITS: u32 = 21;
const RANK_BITS: u32 = 22;
const EMPTY: u64 = u64::MAX;
/// The rank of what does not merge.
pub(super) const NEVER: u32 = u32::MAX;
/// An odd number near 2^64 divided by the golden ratio: its products spread over the upper bits (Knuth 1973, 6.4).
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Open addressing: left id, right id and rank in one word.
#[derive(Clone, Debug)]
pub(super) struct PairTable {
    entries: Vec<u64>,
    shift: u32,
    /// The ranks of pairs of tokens of one byte each, which every piece begins with.
    bytes: Vec<u32>,
}

impl PairTable {
    /// The table of pairs with their ranks; ids below [`MOST_IDS`], ranks below [`MOST_MERGES`]. Of equal pairs the lowest
    /// rank counts. `byte_ids`: the token of each byte.
    pub(super) fn new(pairs: &[((u32, u32), u32)], byte_ids: &[u32; 256]) -> Self {
        let slots = (pairs.len() * 2).next_power_of_two().max(16);
        let mut table = Self { entries: vec![EMPTY; slots], shift: 64 - slots.trailing_zeros(), bytes: Vec::new() };
        for &((left, right), rank) in pairs {
            let key = key(left, right);
            let mut slot = table.slot(key);
            while table.entries[slot] != EMPTY && table.entries[slot] >> RANK_BITS != key {
                slot = (slot + 1) & (slots - 1);
            }
            table.entries[slot] = table.entries[slot].min(key << RANK_BITS | u64::from(rank));
        }
        let ranks = byte_ids.iter().flat_map(|&left| byte_ids.iter().map(move |&right| (left, right)));
        table.bytes = ranks.map(|(left, right)| table.rank(left, right)).collect();
        table
    }

    fn slot(&self, key: u64) -> usize {
        (key.wrapping_mul(SPREAD) >> self.shift) as usize
    }

    /// The rank of a pair, [`NEVER`] for one that does not merge.
    #[inline]
    pub(super) fn rank(&self, left: u32, right: u32) -> u32 {
        let key = key(left, right);
        let mut slot = self.slot(key);
        loop {
            let entry = self.entries[slot];
            if entry >> RANK_BITS == key {
                return (entry & u64::from(MOST_MERGES)) as u32;
            }
            if entry == EMPTY {
                return NEVER;
            }
            slot = (slot + 1) & (self.entries.len() - 1);
        }
    }

    /// The rank of the tokens of two bytes.
    #[inline]
    pub(super) fn rank_of_bytes(&self, left: u8, right: u8) -> u32 {
        self.bytes[usize::from(left) << 8 | usize::from(right)]
    }
}

/// An id above 21 bits, which stands for a byte without a token, gives a key that no entry has.
const fn key(left: u32, right: u32) -> u64 {
    (left as u64) << ID_BITS | right as u64
}
