//! A cache of the tokens of frequent pieces. Texts repeat their words: most pieces are found here.

use super::token_table::{fold, hash};

/// Entries of each table, a power of two: 2^15 of 32 bytes fit the second and third level of a processor's cache.
const ENTRIES: usize = 1 << 15;
/// Bytes of a piece that is its own key.
pub(super) const SHORT: usize = 15;
/// Longest piece that is kept.
const LONG: usize = 256;
/// Ids that an entry holds itself.
const INLINE: usize = 3;
/// Ids and bytes of longer entries after which the cache starts anew.
const ROOM: usize = 1 << 20;

/// A piece of up to 15 bytes and its tokens.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(32))]
struct Short {
    /// The bytes, zeros, and the number of bytes in the last byte, which is 0 in an entry that is free.
    key: (u64, u64),
    count: u32,
    /// The tokens, or where they begin among `ids`.
    ids: [u32; INLINE],
}

/// A longer piece: where its bytes and tokens are.
#[derive(Clone, Copy, Debug, Default)]
struct Long {
    hash: u64,
    bytes: u32,
    length: u32,
    ids: u32,
    count: u32,
}

/// The key of a short piece.
pub(super) type Key = (u64, u64);

#[derive(Debug)]
pub(super) struct PieceCache {
    short: Vec<Short>,
    long: Vec<Long>,
    ids: Vec<u32>,
    bytes: Vec<u8>,
}

impl Default for PieceCache {
    fn default() -> Self {
        let (short, long) = (vec![Short::default(); ENTRIES], vec![Long::default(); ENTRIES / 4]);
        Self { short, long, ids: Vec::new(), bytes: Vec::new() }
    }
}

/// The key of the piece of up to [`SHORT`] bytes between `at` and `end`.
#[inline(always)]
pub(super) fn key(text: &[u8], at: usize, end: usize) -> Key {
    let length = end - at;
    let value = match text.get(at..at + 16).and_then(|bytes| bytes.first_chunk::<16>()) {
        Some(bytes) => u128::from_le_bytes(*bytes) & !(u128::MAX << (8 * length)),
        None => {
            let mut bytes = [0; 16];
            bytes[..length].copy_from_slice(&text[at..end]);
            u128::from_le_bytes(bytes)
        }
    };
    (value as u64, (value >> 64) as u64 | (length as u64) << 56)
}

#[inline(always)]
const fn slot(key: Key) -> usize {
    fold(key.0, key.1) as usize % ENTRIES
}

impl PieceCache {
    /// Writes the tokens of a short piece to the beginning of `out`, which has room for one a byte and [`INLINE`] more;
    /// returns how many, 0 for a piece that is not here.
    #[inline(always)]
    pub(super) fn short(&self, key: Key, out: &mut [u32]) -> usize {
        let entry = &self.short[slot(key)];
        if entry.key != key {
            return 0;
        }
        let count = entry.count as usize;
        if count <= INLINE {
            out[..INLINE].copy_from_slice(&entry.ids);
        } else {
            let begin = entry.ids[0] as usize;
            out[..count].copy_from_slice(&self.ids[begin..begin + count]);
        }
        count
    }

    /// Keeps the tokens of a short piece.
    pub(super) fn keep_short(&mut self, key: Key, ids: &[u32]) {
        let mut kept = [0; INLINE];
        if ids.len() <= INLINE {
            kept[..ids.len()].copy_from_slice(ids);
        } else {
            kept[0] = self.add(ids);
        }
        self.short[slot(key)] = Short { key, count: ids.len() as u32, ids: kept };
    }

    /// The tokens of a longer piece, none for one that is not here.
    #[inline]
    pub(super) fn long(&self, piece: &[u8], hash: u64) -> &[u32] {
        let entry = &self.long[hash as usize % self.long.len()];
        let (bytes, ids) = (entry.bytes as usize, entry.ids as usize);
        if entry.hash == hash && &self.bytes[bytes..bytes + entry.length as usize] == piece {
            &self.ids[ids..ids + entry.count as usize]
        } else {
            &[]
        }
    }

    /// Keeps the tokens of a longer piece; very long ones do not come again.
    pub(super) fn keep_long(&mut self, piece: &[u8], hash: u64, tokens: &[u32]) {
        if piece.len() > LONG {
            return;
        }
        let ids = self.add(tokens);
        let bytes = self.bytes.len() as u32;
        self.bytes.extend_from_slice(piece);
        let (length, count) = (piece.len() as u32, tokens.len() as u32);
        let place = hash as usize % self.long.len();
        self.long[place] = Long { hash, bytes, length, ids, count };
    }

    fn add(&mut self, ids: &[u32]) -> u32 {
        if self.ids.len() + ids.len() > ROOM || self.bytes.len() > ROOM {
            self.short.fill(Short::default());
            self.long.fill(Long::default());
            self.ids.clear();
            self.bytes.clear();
        }
        self.ids.extend_from_slice(ids);
        (self.ids.len() - ids.len()) as u32
    }
}

/// The hash of a longer piece, never 0.
#[inline]
pub(super) fn long_hash(piece: &[u8]) -> u64 {
    hash(piece) | 1 << 63
}
