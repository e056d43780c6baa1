//! The tokens of a vocabulary: bytes by id, ids by bytes.

/// The id of nothing.
pub(super) const NONE: u32 = u32::MAX;

/// The bytes of every token, and the way back.
#[derive(Clone, Debug, Default)]
pub(super) struct TokenTable {
    bytes: Vec<u8>,
    /// Where each token begins, and at last where the last one ends. Ids without a token have no bytes.
    begins: Vec<u32>,
    /// Open addressing: ids by the hash of their bytes. Of tokens with the same bytes the first is found.
    slots: Vec<u32>,
}

impl TokenTable {
    /// The table of tokens by id; those without bytes are none.
    pub(super) fn new<'a>(tokens: impl ExactSizeIterator<Item = &'a [u8]>) -> Self {
        let slots = (tokens.len() * 2).next_power_of_two().max(16);
        let mut table = Self { bytes: Vec::new(), begins: vec![0], slots: vec![NONE; slots] };
        for (id, token) in (0..).zip(tokens) {
            table.bytes.extend_from_slice(token);
            table.begins.push(table.bytes.len() as u32);
            if !token.is_empty() {
                let (slot, found) = table.find(token);
                if found == NONE {
                    table.slots[slot] = id;
                }
            }
        }
        table
    }

    /// The same tokens to be found, with other bytes by id: those of all tokens, where some are not to be found.
    pub(super) fn with_bytes_of<'a>(self, tokens: impl ExactSizeIterator<Item = &'a [u8]>) -> Self {
        let Self { bytes, begins, .. } = Self::new(tokens);
        Self { bytes, begins, slots: self.slots }
    }

    /// One more than the largest id.
    pub(super) fn len(&self) -> usize {
        self.begins.len().saturating_sub(1)
    }

    /// The bytes of a token; none for an id without one.
    #[inline]
    pub(super) fn bytes(&self, id: u32) -> &[u8] {
        match self.begins.get(id as usize..).and_then(|rest| rest.first_chunk()) {
            Some(&[begin, end]) => &self.bytes[begin as usize..end as usize],
            None => &[],
        }
    }

    /// The id of a token, [`NONE`] for other bytes.
    #[inline]
    pub(super) fn id(&self, token: &[u8]) -> u32 {
        if token.is_empty() { NONE } else { self.find(token).1 }
    }

    fn find(&self, token: &[u8]) -> (usize, u32) {
        let mask = self.slots.len() - 1;
        let mut slot = hash(token) as usize & mask;
        loop {
            let id = self.slots[slot];
            if id == NONE || self.bytes(id) == token {
                return (slot, id);
            }
            slot = (slot + 1) & mask;
        }
    }
}

/// Multiplies two words and folds the product: every bit of both reaches every bit of the result (Wang Yi's wyhash).
#[inline]
pub(super) const fn fold(a: u64, b: u64) -> u64 {
    let product = (a ^ 0xa076_1d64_78bd_642f) as u128 * (b ^ 0xe703_7ed1_a0b4_28db) as u128;
    product as u64 ^ (product >> 64) as u64
}

/// A hash of bytes.
#[inline]
pub(super) fn hash(bytes: &[u8]) -> u64 {
    let (chunks, rest) = bytes.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let state = chunks.iter().fold(0, |state, chunk| fold(state, u64::from_le_bytes(*chunk)));
    fold(state ^ bytes.len() as u64, u64::from_le_bytes(last))
}
