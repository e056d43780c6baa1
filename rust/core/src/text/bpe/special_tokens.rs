//! Tokens that are found in a text as they stand, before it is cut into pieces: `<|endoftext|>` and the like.

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
}

/// The added tokens, the longest first.
#[derive(Clone, Debug, Default)]
pub(super) struct AddedTokens {
    all: Vec<Added>,
    /// True for bytes that one begins with.
    first: Vec<bool>,
}

impl AddedTokens {
    /// The table of tokens, each with a content of its own.
    pub(super) fn new(mut all: Vec<Added>) -> Self {
        all.sort_by_key(|token| (std::cmp::Reverse(token.content.len()), token.id));
        let mut first = vec![false; 256];
        for byte in all.iter().filter_map(|token| token.content.bytes().next()) {
            first[usize::from(byte)] = true;
        }
        Self { all, first }
    }

    /// The tokens, the longest first.
    pub(super) fn all(&self) -> &[Added] {
        &self.all
    }

    /// Bytes of the longest token that is looked for.
    pub(super) fn longest(&self, special: Special) -> usize {
        let wanted = |token: &&Added| !token.special || special != Special::Split;
        self.all.iter().find(wanted).map_or(0, |token| token.content.len())
    }

    /// Where the first token from `at` on begins, and which it is: of several at one place the longest.
    pub(super) fn find(&self, text: &[u8], at: usize, special: Special) -> Option<(usize, &Added)> {
        if self.longest(special) == 0 {
            return None;
        }
        let wanted = |token: &&Added| !token.special || special != Special::Split;
        (at..text.len()).filter(|&at| self.first[usize::from(text[at])]).find_map(|at| {
            let here = |token: &&Added| text[at..].starts_with(token.content.as_bytes());
            self.all.iter().filter(wanted).find(here).map(|token| (at, token))
        })
    }
}
