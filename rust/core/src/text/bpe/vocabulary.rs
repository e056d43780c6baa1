//! A tokenizer of the parts that files hold: tokens, the order of merges, the pattern, added tokens.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use super::merge_piece::Merges;
use super::pair_table::{MOST_IDS, MOST_MERGES, PairTable};
use super::special_tokens::{Added, AddedTokens};
use super::token_table::{NONE, TokenTable};
use super::{BytePairs, Pattern, decode};
use crate::error::{BytePairFault, DataError, Result};

/// What decides which pairs merge, and which first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// The pairs of ids that merge, the first before all others, and the token that each becomes.
    Merges {
        /// Left id, right id, id of both together.
        merges: Vec<(u32, u32, u32)>,
        /// True where a piece that is a token becomes this token, even if no merges lead to it.
        whole: bool,
    },
    /// Any two tokens merge that are a token together; the smaller this token's id, the sooner. A piece that is a token
    /// becomes this token.
    Ranks,
}

/// What a tokenizer is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parts {
    /// The bytes of each token by id, added ones excepted.
    pub tokens: BTreeMap<u32, Vec<u8>>,
    /// Which pairs merge.
    pub order: Order,
    /// How texts are cut into pieces.
    pub pattern: Pattern,
    /// Tokens found in a text before it is cut.
    pub added: Vec<Added>,
    /// True where texts are brought to the normal form C of Unicode first.
    pub composed: bool,
    /// Ids of added tokens before and behind those of a text, where they are asked for.
    pub around: (Vec<u32>, Vec<u32>),
}

fn refuse<T>(fault: BytePairFault) -> Result<T> {
    Err(DataError::from(fault).into())
}

impl BytePairs {
    /// A tokenizer of its parts.
    ///
    /// # Errors
    /// [`crate::Error::Data`] for no tokens, for ids or ranks beyond the limits, for two tokens of one id, for empty tokens,
    /// for merges of ids that are no tokens or do not become what they say, for too many bytes of added tokens, and for an order
    /// of ranks without all bytes.
    pub fn new(mut parts: Parts) -> Result<Self> {
        parts.added.sort_by_key(|token| token.id);
        check(&parts)?;
        let added = AddedTokens::new(parts.added.clone())?;
        let largest = parts.tokens.keys().copied().chain(parts.added.iter().map(|token| token.id)).max();
        let mut found: Vec<&[u8]> = vec![&[]; largest.map_or(0, |id| id as usize + 1)];
        for (&id, token) in &parts.tokens {
            found[id as usize] = token;
        }
        // Pieces are looked up among the tokens of the model alone, ids among all.
        let model = TokenTable::new(found.iter().copied());
        let mut bytes = [NONE; 256];
        for (byte, id) in (0..=u8::MAX).zip(&mut bytes) {
            *id = model.id(&[byte]);
        }
        let missing: Vec<u8> = (0..=u8::MAX).filter(|&byte| bytes[usize::from(byte)] == NONE).collect();
        let (pairs, made) = match &parts.order {
            Order::Merges { merges, .. } => listed(merges),
            Order::Ranks => match missing.first() {
                Some(&byte) => return refuse(BytePairFault::NoByte { byte }),
                None => (joined(&parts.tokens, &model), (0..found.len() as u32).collect()),
            },
        };
        let merges = Merges { bytes, pairs: PairTable::new(&pairs, &bytes), made };
        let mut tokens = model;
        if !parts.added.is_empty() {
            for token in &parts.added {
                found[token.id as usize] = token.content.as_bytes();
            }
            tokens = tokens.with_bytes_of(found.iter().copied());
        }
        let short = decode::short_tokens(&tokens);
        let lengths = decode::lengths(&short);
        Ok(Self { parts, tokens, merges, added, short, lengths, missing, idle: Mutex::default() })
    }
}

fn check(parts: &Parts) -> Result<()> {
    if parts.tokens.is_empty() {
        return refuse(BytePairFault::NoTokens);
    }
    let ids = parts.tokens.keys().copied().chain(parts.added.iter().map(|token| token.id));
    if let Some(id) = ids.filter(|&id| id >= MOST_IDS).max() {
        return refuse(BytePairFault::Id { id: id.into(), limit: MOST_IDS });
    }
    if let Some((&id, _)) = parts.tokens.iter().find(|(_, token)| token.is_empty()) {
        return refuse(BytePairFault::Empty { id });
    }
    let (mut ids, mut contents) = (BTreeSet::new(), BTreeSet::new());
    for token in &parts.added {
        if !ids.insert(token.id) || !contents.insert(&token.content) {
            return refuse(BytePairFault::Twice { token: shown(token.content.as_bytes()), id: token.id });
        }
    }
    for &id in parts.around.0.iter().chain(&parts.around.1) {
        if !ids.contains(&id) && !parts.tokens.contains_key(&id) {
            return refuse(BytePairFault::NoToken { id });
        }
    }
    let Order::Merges { merges, .. } = &parts.order else { return Ok(()) };
    if merges.len() >= MOST_MERGES as usize {
        return refuse(BytePairFault::Merges { count: merges.len(), limit: MOST_MERGES });
    }
    for (rank, &(left, right, both)) in merges.iter().enumerate() {
        let part = |id: u32| match parts.tokens.get(&id) {
            Some(token) => Ok(token.as_slice()),
            None => refuse(BytePairFault::NoToken { id }),
        };
        let (first, second, whole) = (part(left)?, part(right)?, part(both)?);
        if whole.strip_prefix(first) != Some(second) {
            return refuse(BytePairFault::Merge { rank, left: shown(first), right: shown(second) });
        }
    }
    Ok(())
}

/// Pairs with their ranks, and the tokens that they become.
type Pairs = (Vec<((u32, u32), u32)>, Vec<u32>);

fn listed(merges: &[(u32, u32, u32)]) -> Pairs {
    let pairs = (0..).zip(merges).map(|(rank, &(left, right, _))| ((left, right), rank)).collect();
    (pairs, merges.iter().map(|&(.., both)| both).collect())
}

/// All pairs of tokens that are a token together; their rank is its id.
fn joined(tokens: &BTreeMap<u32, Vec<u8>>, table: &TokenTable) -> Vec<((u32, u32), u32)> {
    let mut pairs = Vec::with_capacity(tokens.len() * 4);
    for (&id, token) in tokens {
        for at in 1..token.len() {
            let (left, right) = (table.id(&token[..at]), table.id(&token[at..]));
            if left != NONE && right != NONE {
                pairs.push(((left, right), id));
            }
        }
    }
    pairs
}

/// A token for messages: text, cut.
pub(super) fn shown(token: &[u8]) -> String {
    let text: String = String::from_utf8_lossy(token).chars().take(40).collect();
    format!("{text:?}")
}
