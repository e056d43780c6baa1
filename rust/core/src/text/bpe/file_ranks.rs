//! Reading a `.tiktoken` file: lines of a token in base64 and its rank, which is its id.
#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects, clippy::cast_possible_truncation)]

use std::collections::BTreeMap;

use super::file_json::MOST_BYTES;
use super::special_tokens::Added;
use super::vocabulary::{Order, Parts, shown};
use super::{BytePairs, Pattern};
use crate::error::{BytePairFault, DataError, Result};

impl BytePairs {
    /// Reads a file of ranks. `special`: contents and ids of special tokens, which such a file does not hold.
    ///
    /// # Errors
    /// [`crate::Error::Data`] for other content, and for a file without one of the 256 bytes.
    pub fn from_ranks(text: &[u8], pattern: Pattern, special: Vec<(String, u32)>) -> Result<Self> {
        if text.len() > MOST_BYTES {
            return Err(DataError::from(BytePairFault::Bytes { bytes: text.len(), limit: MOST_BYTES }).into());
        }
        let mut tokens = BTreeMap::new();
        for (number, line) in (1..).zip(text.split(|&byte| byte == b'\n')) {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if line.is_empty() {
                continue;
            }
            let Some((token, rank)) = parse(line) else {
                let accepted = "a token in base64, a space, and its rank";
                return Err(DataError::from(BytePairFault::Line { line: number, text: shown(line), accepted }).into());
            };
            let name = shown(&token);
            if tokens.insert(rank, token).is_some() {
                return Err(DataError::from(BytePairFault::Twice { token: name, id: rank }).into());
            }
        }
        let added = special
            .into_iter()
            .map(|(content, id)| Added { content, id, special: true, normalized: false })
            .collect::<Vec<_>>();
        if let Some(both) = added.iter().find(|token| tokens.contains_key(&token.id)) {
            let token = shown(both.content.as_bytes());
            return Err(DataError::from(BytePairFault::Twice { token, id: both.id }).into());
        }
        Self::new(Parts { tokens, order: Order::Ranks, pattern, added, composed: false, around: Default::default() })
    }
}

fn parse(line: &[u8]) -> Option<(Vec<u8>, u32)> {
    let space = line.iter().position(|&byte| byte == b' ')?;
    let (token, rank) = line.split_at_checked(space)?;
    let rank = std::str::from_utf8(rank.get(1..)?).ok()?;
    let digits = rank.bytes().all(|byte| byte.is_ascii_digit());
    Some((base64(token)?, rank.parse().ok().filter(|_| digits)?))
}

/// Bytes written in base64 with padding (RFC 4648, section 4).
fn base64(text: &[u8]) -> Option<Vec<u8>> {
    let (chunks, []) = text.as_chunks::<4>() else { return None };
    let mut bytes = Vec::with_capacity(text.len());
    let last = chunks.len().checked_sub(1)?;
    for (at, chunk) in chunks.iter().enumerate() {
        let padding = if at == last { chunk.iter().rev().take_while(|&&byte| byte == b'=').count() } else { 0 };
        let kept = 4usize.checked_sub(padding).filter(|&kept| kept >= 2)?;
        let mut word = 0u32;
        for &byte in chunk.get(..kept)? {
            word = word << 6 | u32::from(digit(byte)?);
        }
        word = word.checked_shl(6u32.checked_mul(u32::try_from(padding).ok()?)?)?;
        let [_, three @ ..] = word.to_be_bytes();
        bytes.extend_from_slice(three.get(..kept.checked_sub(1)?)?);
    }
    Some(bytes)
}

const fn digit(byte: u8) -> Option<u8> {
    match byte {
        b'A'..=b'Z' => byte.checked_sub(b'A'),
        b'a'..=b'z' => byte.checked_sub(b'a' - 26),
        b'0'..=b'9' => byte.checked_add(52 - b'0'),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    }
}
