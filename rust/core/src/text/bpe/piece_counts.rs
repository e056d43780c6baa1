//! How often each piece occurs in texts: what a vocabulary is learned from.

use super::special_tokens::{Added, AddedTokens, Special};
use super::token_table::hash;
use super::{Pattern, encode};
use crate::error::{BytePairFault, DataError, Result};
use crate::pool;

/// Bytes that one thread counts at a time.
const CHUNK: usize = 1 << 21;
/// The first bytes of saved counts.
const MAGIC: &[u8; 8] = b"octavoPC";

/// Distinct pieces with their counts.
#[derive(Clone, Debug)]
pub(super) struct Table {
    bytes: Vec<u8>,
    entries: Vec<Entry>,
    /// Open addressing: numbers of entries from 1 on, 0 for none.
    slots: Vec<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    hash: u64,
    begin: usize,
    length: usize,
    count: u64,
}

impl Default for Table {
    fn default() -> Self {
        Self { bytes: Vec::new(), entries: Vec::new(), slots: vec![0; 1 << 12] }
    }
}

impl Table {
    fn add(&mut self, piece: &[u8], count: u64) {
        let hash = hash(piece);
        let mask = self.slots.len() - 1;
        let mut slot = hash as usize & mask;
        while let Some(at) = (self.slots[slot] as usize).checked_sub(1) {
            let entry = self.entries[at];
            if entry.hash == hash && &self.bytes[entry.begin..entry.begin + entry.length] == piece {
                self.entries[at].count += count;
                return;
            }
            slot = (slot + 1) & mask;
        }
        self.entries.push(Entry { hash, begin: self.bytes.len(), length: piece.len(), count });
        self.bytes.extend_from_slice(piece);
        self.slots[slot] = self.entries.len() as u32;
        if self.entries.len() * 2 > self.slots.len() {
            self.grow();
        }
    }

    fn grow(&mut self) {
        let mask = self.slots.len() * 2 - 1;
        self.slots = vec![0; mask + 1];
        for (number, entry) in (1..).zip(&self.entries) {
            let mut slot = entry.hash as usize & mask;
            while self.slots[slot] != 0 {
                slot = (slot + 1) & mask;
            }
            self.slots[slot] = number;
        }
    }

    fn iter(&self) -> impl Iterator<Item = (&[u8], u64)> {
        self.entries.iter().map(|entry| (&self.bytes[entry.begin..entry.begin + entry.length], entry.count))
    }
}

/// Counts of the pieces of texts.
#[derive(Clone, Debug)]
pub struct PieceCounts {
    pattern: Pattern,
    special: AddedTokens,
    table: Table,
    /// Bytes counted.
    total: u64,
}

impl PieceCounts {
    /// No texts yet. `special`: tokens that are no part of the texts around them and are not counted.
    ///
    /// # Errors
    /// [`crate::Error::Data`] for an empty one, and for more bytes of them than are accepted.
    pub fn new(pattern: Pattern, special: &[String]) -> Result<Self> {
        let token =
            |(id, content): (u32, &String)| Added { content: content.clone(), id, special: true, normalized: false };
        let special = AddedTokens::new((0..).zip(special).map(token).collect())?;
        Ok(Self { pattern, special, table: Table::default(), total: 0 })
    }

    /// How texts are cut.
    pub const fn pattern(&self) -> Pattern {
        self.pattern
    }

    /// Bytes counted.
    pub const fn total(&self) -> u64 {
        self.total
    }

    /// How many distinct pieces there are.
    pub fn distinct(&self) -> usize {
        self.table.entries.len()
    }

    /// Pieces and counts in the order of their bytes.
    pub(super) fn sorted(&self) -> Vec<(&[u8], u64)> {
        let mut all: Vec<_> = self.table.iter().collect();
        all.sort_unstable();
        all
    }

    /// Counts the pieces of a text, on several threads.
    ///
    /// # Errors
    /// [`crate::Error::Setting`] if threads cannot be started; [`crate::Error::Data`] for more than 2^32 distinct pieces.
    pub fn add(&mut self, text: &[u8]) -> Result<()> {
        let mut parts = Vec::new();
        let mut at = 0;
        let plain = |part| encode::chunks(self.pattern, text, part, CHUNK).map(|chunk| &text[chunk]);
        for (begin, token) in self.special.find(text, Special::Allow) {
            parts.extend(plain(at..begin));
            at = begin + token.content.len();
        }
        parts.extend(plain(at..text.len()));
        // Texts of many short documents are counted together.
        let mut jobs: Vec<Vec<&[u8]>> = Vec::new();
        let mut room = 0usize;
        for part in parts {
            if room < part.len() || jobs.is_empty() {
                jobs.push(Vec::new());
                room = CHUNK;
            }
            room = room.saturating_sub(part.len());
            if let Some(job) = jobs.last_mut() {
                job.push(part);
            }
        }
        let tables = pool::map(jobs.len(), text.len(), |job| {
            let mut table = Table::default();
            for part in &jobs[job] {
                self.pattern.cut(part, |begin, end| table.add(&part[begin..end], 1));
            }
            table
        })?;
        for table in tables {
            for (piece, count) in table.iter() {
                self.table.add(piece, count);
            }
            if self.table.entries.len() >= u32::MAX as usize / 2 {
                let fault = BytePairFault::Field {
                    field: "texts",
                    found: format!("{} distinct pieces", self.table.entries.len()),
                    accepted: "fewer than 2^31",
                };
                return Err(DataError::from(fault).into());
            }
        }
        self.total += text.len() as u64;
        Ok(())
    }

    /// The largest place at which a text that goes on can be cut without changing what is counted; 0 if there is none yet.
    pub fn settled(&self, text: &[u8]) -> usize {
        encode::settled(self.pattern, &self.special, text, Special::Allow)
    }

    /// The counts as bytes, for [`PieceCounts::restore`].
    pub fn save(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(self.total.to_le_bytes());
        for (piece, count) in self.table.iter() {
            bytes.extend((piece.len() as u64).to_le_bytes());
            bytes.extend(count.to_le_bytes());
            bytes.extend_from_slice(piece);
        }
        bytes
    }

    /// Takes counts that [`PieceCounts::save`] gave in the place of these.
    ///
    /// # Errors
    /// [`crate::Error::Data`] for other bytes.
    pub fn restore(&mut self, bytes: &[u8]) -> Result<()> {
        let broken = || {
            let fault = BytePairFault::Field {
                field: "saved counts",
                found: format!("{} bytes that are no counts", bytes.len()),
                accepted: "those of a run that was interrupted; remove them to begin anew",
            };
            crate::Error::from(DataError::from(fault))
        };
        let rest = bytes.strip_prefix(MAGIC).ok_or_else(broken)?;
        let (total, mut rest) = rest.split_first_chunk::<8>().ok_or_else(broken)?;
        let mut table = Table::default();
        while !rest.is_empty() {
            let (length, behind) = rest.split_first_chunk::<8>().ok_or_else(broken)?;
            let (count, behind) = behind.split_first_chunk::<8>().ok_or_else(broken)?;
            let length = usize::try_from(u64::from_le_bytes(*length)).map_err(|_| broken())?;
            let (piece, behind) = behind.split_at_checked(length).ok_or_else(broken)?;
            table.add(piece, u64::from_le_bytes(*count));
            rest = behind;
        }
        (self.table, self.total) = (table, u64::from_le_bytes(*total));
        Ok(())
    }
}
