//! Reading `vocab.bpe` (or `merges.txt`) with `encoder.json` (or `vocab.json`), the files of GPT-2.
#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects, clippy::cast_possible_truncation)]

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::file_json::MOST_BYTES;
use super::special_tokens::Added;
use super::vocabulary::{Order, Parts, shown};
use super::{BytePairs, Pattern, byte_characters};
use crate::error::{BytePairFault, DataError, Result};

impl BytePairs {
    /// Reads the two files of a vocabulary of merges: lines of two tokens, and an object with the id of each token. Tokens
    /// that are no byte and that no merge makes are special ones.
    ///
    /// # Errors
    /// [`crate::Error::Data`] for files of other content.
    pub fn from_merges(merges: &[u8], vocabulary: &[u8], pattern: Pattern) -> Result<Self> {
        for bytes in [merges.len(), vocabulary.len()] {
            if bytes > MOST_BYTES {
                return Err(DataError::from(BytePairFault::Bytes { bytes, limit: MOST_BYTES }).into());
            }
        }
        let ids: BTreeMap<String, u32> = serde_json::from_slice(vocabulary).map_err(DataError::Json)?;
        let accepted = "two tokens and a space between them";
        let mut pairs = Vec::new();
        for (number, line) in (1..).zip(merges.split(|&byte| byte == b'\n')) {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if line.is_empty() || (number == 1 && line.starts_with(b"#version")) {
                continue;
            }
            let pair = std::str::from_utf8(line).ok().and_then(|line| line.split_once(' '));
            match pair.filter(|(left, right)| !left.is_empty() && !right.is_empty() && !right.contains(' ')) {
                Some((left, right)) => pairs.push((left.to_owned(), right.to_owned())),
                None => {
                    return Err(
                        DataError::from(BytePairFault::Line { line: number, text: shown(line), accepted }).into()
                    );
                }
            }
        }
        let (tokens, order) = resolved(ids, &pairs, false, &BTreeSet::new())?;
        let made: BTreeSet<u32> = match &order {
            Order::Merges { merges, .. } => merges.iter().map(|&(.., both)| both).collect(),
            Order::Ranks => BTreeSet::new(),
        };
        let (mut kept, mut added) = (BTreeMap::new(), Vec::new());
        for (id, token) in tokens {
            match String::from_utf8(token) {
                Ok(content) if content.chars().count() > 1 && !made.contains(&id) => {
                    added.push(Added { content, id, special: true, normalized: false });
                }
                Ok(content) => _ = kept.insert(id, content.into_bytes()),
                Err(other) => _ = kept.insert(id, other.into_bytes()),
            }
        }
        Self::new(Parts { tokens: kept, order, pattern, added, composed: false, around: Default::default() })
    }
}

/// The bytes of tokens that are written in characters, and merges by id. Ids of `added` tokens are left out.
pub(super) fn resolved(
    ids: BTreeMap<String, u32>,
    pairs: &[(String, String)],
    whole: bool,
    added: &BTreeSet<u32>,
) -> Result<(BTreeMap<u32, Vec<u8>>, Order)> {
    let characters = byte_characters::Bytes::new();
    let mut merges = Vec::with_capacity(pairs.len());
    let found: HashMap<&str, u32> = ids.iter().map(|(token, &id)| (token.as_str(), id)).collect();
    let mut both = String::new();
    for (rank, (left, right)) in pairs.iter().enumerate() {
        both.clear();
        both.push_str(left);
        both.push_str(right);
        let id = |token: &str| found.get(token).copied();
        match (id(left), id(right), id(&both)) {
            (Some(left), Some(right), Some(both)) => merges.push((left, right, both)),
            _ => {
                let (left, right) = (shown(left.as_bytes()), shown(right.as_bytes()));
                return Err(DataError::from(BytePairFault::Merge { rank, left, right }).into());
            }
        }
    }
    let mut tokens = BTreeMap::new();
    for (token, id) in ids {
        let bytes = characters.of(&token).unwrap_or_else(|| token.clone().into_bytes());
        if !added.contains(&id) && tokens.insert(id, bytes).is_some() {
            return Err(DataError::from(BytePairFault::Twice { token: shown(token.as_bytes()), id }).into());
        }
    }
    Ok((tokens, Order::Merges { merges, whole }))
}
