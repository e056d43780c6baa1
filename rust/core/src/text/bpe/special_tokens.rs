//! Tokens that are found in a text as they stand, before it is cut into pieces: `<|endoftext|>` and the like.
//!
//! One automaton looks for all of them at once (Aho and Corasick 1975), so that encoding takes as long with thousands of
//! tokens as with one.

use aho_corasick::{AhoCorasick, AhoCorasickKind, Input, MatchKind};

use crate::error::{BytePairFault, DataError, Result};

/// Most bytes of all added tokens together. An automaton takes about 50 bytes of memory for each.
const MOST_BYTES: usize = 1 << 22;

/// What becomes of special tokens in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// Each becomes its id.
    Allow,
    /// A text with one is an error: text of strangers should hold none.
    Refuse,
    /// They are text as any other.
    Split,
}

/// A token that is found as it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Added {
    /// Its text.
    pub content: String,
    /// Its id.
    pub id: u32,
    /// True for one that steers a model. Others, which a vocabulary was extended by, are always found.
    pub special: bool,
    /// True for one that is looked for only in what tokens without this mark leave of a text.
    pub normalized: bool,
}

/// The added tokens of a vocabulary.
#[derive(Clone, Debug, Default)]
pub(super) struct AddedTokens {
    /// In the order of their contents.
    all: Vec<Added>,
    /// All of them: those that are looked for first, and those that are looked for between these.
    every: [Finder; 2],
    /// Those that are not special.
    ordinary: [Finder; 2],
}

impl AddedTokens {
    /// The table of tokens, each with a content of its own.
    ///
    /// # Errors
    /// [`crate::Error::Data`] for an empty content, and for more bytes of contents than are accepted.
    pub(super) fn new(mut all: Vec<Added>) -> Result<Self> {
        let bytes = all.iter().map(|token| token.content.len()).sum();
        if bytes > MOST_BYTES {
            return Err(DataError::from(BytePairFault::AddedBytes { bytes, limit: MOST_BYTES }).into());
        }
        if let Some(empty) = all.iter().find(|token| token.content.is_empty()) {
            return Err(DataError::from(BytePairFault::Empty { id: empty.id }).into());
        }
        all.sort_by(|one, other| one.content.cmp(&other.content));
        let finder = |normalized: bool, ordinary: bool| {
            Finder::new(&all, |token| token.normalized == normalized && !(ordinary && token.special))
        };
        let every = [finder(false, false)?, finder(true, false)?];
        let ordinary = [finder(false, true)?, finder(true, true)?];
        Ok(Self { all, every, ordinary })
    }

    /// The id of the token of these bytes.
    pub(super) fn id(&self, content: &[u8]) -> Option<u32> {
        let at = self.all.binary_search_by(|token| token.content.as_bytes().cmp(content)).ok()?;
        Some(self.all[at].id)
    }

    /// Bytes of the longest token that is looked for.
    pub(super) fn longest(&self, special: Special) -> usize {
        self.finders(special).iter().map(|finder| finder.longest).max().unwrap_or(0)
    }

    /// Where tokens begin in a text, and which they are, in order: from left to right, of several at one place the longest.
    pub(super) fn find<'a>(&'a self, text: &'a [u8], special: Special) -> impl Iterator<Item = (usize, &'a Added)> {
        let [first, between] = self.finders(special);
        let mut at = 0;
        let mut next = first.find(text, at);
        std::iter::from_fn(move || {
            let end = next.map_or(text.len(), |(begin, _)| begin);
            let found = between.find(&text[..end], at).or_else(|| next.take());
            let (begin, token) = found.map(|(begin, token)| (begin, &self.all[token]))?;
            at = begin + token.content.len();
            if begin == end {
                next = first.find(text, at);
            }
            Some((begin, token))
        })
    }

    const fn finders(&self, special: Special) -> &[Finder; 2] {
        match special {
            Special::Split => &self.ordinary,
            Special::Allow | Special::Refuse => &self.every,
        }
    }
}

/// An automaton for some of the tokens, none for no tokens.
#[derive(Clone, Debug, Default)]
struct Finder {
    automaton: Option<AhoCorasick>,
    /// Places in the table of what the automaton numbers from 0.
    tokens: Vec<usize>,
    /// Bytes of the longest of them.
    longest: usize,
}

impl Finder {
    fn new(all: &[Added], wanted: impl Fn(&Added) -> bool) -> Result<Self> {
        let tokens: Vec<usize> = (0..all.len()).filter(|&at| wanted(&all[at])).collect();
        if tokens.is_empty() {
            return Ok(Self::default());
        }
        let contents = tokens.iter().map(|&at| &all[at].content);
        let longest = contents.clone().map(String::len).max().unwrap_or(0);
        // The automaton of tables would take up to 1 KB for a byte of a token.
        let kind = Some(AhoCorasickKind::ContiguousNFA);
        let automaton = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).kind(kind).build(contents);
        let automaton = automaton.map_err(|error| crate::Error::data(format!("added tokens: {error}")))?;
        Ok(Self { automaton: Some(automaton), tokens, longest })
    }

    /// Where the first token from `at` on begins, and its place in the table.
    fn find(&self, text: &[u8], at: usize) -> Option<(usize, usize)> {
        let found = self.automaton.as_ref()?.find(Input::new(text).range(at..))?;
        Some((found.start(), self.tokens[found.pattern().as_usize()]))
    }
}
