//! Texts to ids, on several threads.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::PoisonError;

use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick};

use super::merge_piece::Links;
use super::piece_cache::{self, PieceCache};
use super::special_tokens::{AddedTokens, Special};
use super::token_table::NONE;
use super::vocabulary::{Order, shown};
use super::{BytePairs, Pattern, token_table};
use crate::error::{BytePairFault, DataError, Result};
use crate::pool;

/// Bytes that one thread takes at a time, about.
const CHUNK: usize = 64 * 1024;
/// Room for tokens that a cache writes beyond those of a piece.
const SPARE: usize = 4;

/// What a thread works with: its cache outlives a call.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    cache: PieceCache,
    links: Links,
    tokens: Vec<u32>,
    /// Where ids are gathered; those before `filled` are.
    ids: Vec<u32>,
    filled: usize,
}

/// How many ids belong to which text, in order.
type Counts = Vec<(usize, u64)>;

/// The ids of some texts.
#[derive(Debug, Default)]
pub struct Encoded {
    parts: Vec<Vec<u32>>,
    /// Where the ids of each text begin, and at last the number of all.
    pub offsets: Vec<u64>,
}

impl Encoded {
    /// How many ids there are.
    pub fn len(&self) -> usize {
        self.parts.iter().map(Vec::len).sum()
    }

    /// True for no ids.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All ids in order.
    pub fn ids(&self) -> impl Iterator<Item = u32> {
        self.parts.iter().flatten().copied()
    }

    /// Writes all ids.
    ///
    /// # Errors
    /// [`crate::Error::Shape`] where `out` is not as long as there are ids, [`crate::Error::Data`] for an id that its type does not hold.
    pub fn copy_to<T: TryFrom<u32> + Copy>(&self, out: &mut [T]) -> Result<()> {
        if out.len() != self.len() {
            return Err(crate::Error::shape(format!("{} ids, room for {}", self.len(), out.len())));
        }
        let mut rest = out;
        for part in &self.parts {
            let (here, behind) = rest.split_at_mut(part.len());
            for (to, &id) in here.iter_mut().zip(part) {
                let Ok(narrow) = T::try_from(id) else {
                    let limit = (u64::from(u32::MAX) >> (32 - 8 * size_of::<T>().min(4))) as u32;
                    return Err(DataError::from(BytePairFault::Id { id: id.into(), limit }).into());
                };
                *to = narrow;
            }
            rest = behind;
        }
        Ok(())
    }
}

/// A part of a text: a range of its bytes, or an added token.
enum Item {
    Text(Range<usize>),
    Token(u32),
}

impl BytePairs {
    /// The ids of a text, of any bytes.
    ///
    /// # Errors
    /// As [`BytePairs::encode_batch`].
    pub fn encode(&self, text: &[u8], special: Special) -> Result<Vec<u32>> {
        Ok(self.encode_batch(&[text], special, false)?.ids().collect())
    }

    /// The ids of texts, one behind the other; `around`: with the tokens around each. Results do not depend on the number of threads.
    ///
    /// # Errors
    /// [`crate::Error::Data`] with the number of the text for a special token where they are refused, and for a byte that the
    /// vocabulary has no token for; [`crate::Error::Setting`] if threads cannot be started.
    pub fn encode_batch(&self, texts: &[&[u8]], special: Special, around: bool) -> Result<Encoded> {
        let mut items = Vec::new();
        for (number, text) in texts.iter().enumerate() {
            let tokens = |ids: &[u32]| ids.iter().map(|&id| (number, Item::Token(id))).collect::<Vec<_>>();
            if around {
                items.extend(tokens(&self.parts.around.0));
            }
            self.plan(number, text, special, &mut items)?;
            if around {
                items.extend(tokens(&self.parts.around.1));
            }
        }
        let size = |item: &(usize, Item)| match &item.1 {
            Item::Text(range) => range.len(),
            Item::Token(_) => 1,
        };
        let mut jobs = Vec::new();
        let (mut begin, mut bytes, mut all) = (0, 0, 0);
        for (at, item) in items.iter().enumerate() {
            if bytes > 0 && bytes + size(item) > CHUNK {
                jobs.push(begin..at);
                (begin, bytes) = (at, 0);
            }
            bytes += size(item) + 1;
            all += size(item);
        }
        jobs.push(begin..items.len());
        let done = pool::map(jobs.len(), all, |job| self.run(texts, &items[jobs[job].clone()]))?;
        let mut offsets = vec![0u64; texts.len() + 1];
        let mut parts = Vec::with_capacity(done.len());
        for part in done {
            let (ids, counts) = part?;
            for (text, count) in counts {
                offsets[text + 1] += count;
            }
            parts.push(ids);
        }
        for at in 1..offsets.len() {
            offsets[at] += offsets[at - 1];
        }
        Ok(Encoded { parts, offsets })
    }

    /// The largest place at which a text that goes on can be cut so that the ids of both parts are those of the whole; 0 if
    /// there is none yet.
    pub fn settled(&self, text: &[u8], special: Special) -> usize {
        settled(self.parts.pattern, &self.added, text, special)
    }

    /// Adds the parts of a text: added tokens, and what stands between them in chunks.
    fn plan(&self, number: usize, text: &[u8], special: Special, items: &mut Vec<(usize, Item)>) -> Result<()> {
        let mut at = 0;
        let plain = |part| chunks(self.parts.pattern, text, part, CHUNK).map(|chunk| (number, Item::Text(chunk)));
        for (begin, token) in self.added.find(text, special) {
            if token.special && special == Special::Refuse {
                let token = shown(token.content.as_bytes());
                return Err(DataError::from(BytePairFault::Special { text: number, place: begin, token }).into());
            }
            items.extend(plain(at..begin));
            items.push((number, Item::Token(token.id)));
            at = begin + token.content.len();
        }
        items.extend(plain(at..text.len()));
        Ok(())
    }

    /// The ids of some parts, and how many belong to which text.
    fn run(&self, texts: &[&[u8]], items: &[(usize, Item)]) -> Result<(Vec<u32>, Counts)> {
        let idle = || self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let mut scratch = idle().pop().unwrap_or_default();
        scratch.filled = 0;
        let mut counts = Vec::with_capacity(items.len());
        let mut failed = None;
        for (text, item) in items {
            let before = scratch.filled;
            match item {
                Item::Token(id) => scratch.push(*id),
                Item::Text(range) => {
                    let plain = &texts[*text][range.clone()];
                    let plain = if self.parts.composed { composed(plain) } else { Cow::Borrowed(plain) };
                    self.ordinary(&plain, &mut scratch);
                    if !self.missing.is_empty() && scratch.ids[before..scratch.filled].contains(&NONE) {
                        failed =
                            plain.iter().copied().find(|byte| self.missing.contains(byte)).map(|byte| (*text, byte));
                    }
                }
            }
            counts.push((*text, (scratch.filled - before) as u64));
        }
        let ids = scratch.ids[..scratch.filled].to_vec();
        idle().push(scratch);
        match failed {
            Some((text, byte)) => Err(DataError::from(BytePairFault::MissingByte { text, byte }).into()),
            None => Ok((ids, counts)),
        }
    }

    /// Adds the ids of a text without added tokens.
    fn ordinary(&self, text: &[u8], scratch: &mut Scratch) {
        let room = scratch.filled + text.len() + SPARE;
        if scratch.ids.len() < room {
            scratch.ids.resize(room, 0);
        }
        let Scratch { cache, links, tokens, ids, filled } = scratch;
        self.parts.pattern.cut(text, |at, end| {
            let count = if end - at <= piece_cache::SHORT {
                let key = piece_cache::key(text, at, end);
                match cache.short(key, &mut ids[*filled..]) {
                    0 => {
                        self.piece(&text[at..end], links, tokens);
                        cache.keep_short(key, tokens);
                        ids[*filled..*filled + tokens.len()].copy_from_slice(tokens);
                        tokens.len()
                    }
                    count => count,
                }
            } else {
                self.long_piece(&text[at..end], cache, links, tokens, &mut ids[*filled..])
            };
            *filled += count;
        });
    }

    #[inline(never)]
    fn long_piece(
        &self,
        piece: &[u8],
        cache: &mut PieceCache,
        links: &mut Links,
        tokens: &mut Vec<u32>,
        out: &mut [u32],
    ) -> usize {
        let hash = piece_cache::long_hash(piece);
        let found = cache.long(piece, hash);
        if !found.is_empty() {
            out[..found.len()].copy_from_slice(found);
            return found.len();
        }
        self.piece(piece, links, tokens);
        cache.keep_long(piece, hash, tokens);
        out[..tokens.len()].copy_from_slice(tokens);
        tokens.len()
    }

    /// The tokens of a piece.
    #[inline(never)]
    fn piece(&self, piece: &[u8], links: &mut Links, tokens: &mut Vec<u32>) {
        tokens.clear();
        if matches!(self.parts.order, Order::Ranks | Order::Merges { whole: true, .. }) {
            let id = self.tokens.id(piece);
            if id != token_table::NONE {
                tokens.push(id);
                return;
            }
        }
        self.merges.piece(piece, links, tokens);
    }
}

impl Scratch {
    fn push(&mut self, id: u32) {
        if self.ids.len() <= self.filled {
            self.ids.resize(self.filled + SPARE, 0);
        }
        self.ids[self.filled] = id;
        self.filled += 1;
    }
}

/// A part of a text without added tokens in chunks of `size` bytes, or of more where there is no place to cut.
pub(super) fn chunks(
    pattern: Pattern,
    text: &[u8],
    part: Range<usize>,
    size: usize,
) -> impl Iterator<Item = Range<usize>> {
    let Range { start: mut at, end } = part;
    let text = &text[..end];
    std::iter::from_fn(move || {
        let begin = at;
        let is_last = end - begin <= size;
        let cut = || (begin + size..end).find(|&place| pattern.parts_at(text, place)).unwrap_or(end);
        at = if is_last { end } else { cut() };
        (begin < end).then_some(begin..at)
    })
}

/// [`BytePairs::settled`].
pub(super) fn settled(pattern: Pattern, added: &AddedTokens, text: &[u8], special: Special) -> usize {
    let limit = (text.len() + 1).saturating_sub(added.longest(special).max(1));
    let taken: Vec<Range<usize>> =
        added.find(text, special).map(|(begin, token)| begin..begin + token.content.len()).collect();
    let is_free = |place: usize| match taken.get(taken.partition_point(|token| token.end <= place)) {
        Some(token) => token.start >= place,
        None => true,
    };
    (1..=limit).rev().find(|&place| pattern.parts_at(text, place) && is_free(place)).unwrap_or(0)
}

/// A text in the normal form C of Unicode; bytes that are no characters stay.
fn composed(text: &[u8]) -> Cow<'_, [u8]> {
    if text.is_ascii() {
        return Cow::Borrowed(text);
    }
    let is_composed = |text: &str| is_nfc_quick(text.chars()) == IsNormalized::Yes;
    if text.utf8_chunks().all(|chunk| is_composed(chunk.valid())) {
        return Cow::Borrowed(text);
    }
    let mut all = Vec::with_capacity(text.len());
    for chunk in text.utf8_chunks() {
        all.extend(chunk.valid().nfc().collect::<String>().into_bytes());
        all.extend_from_slice(chunk.invalid());
    }
    Cow::Owned(all)
}
