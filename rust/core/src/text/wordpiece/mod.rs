//! [`WordPiece`]: the tokenizer of BERT and the encoders that came after it, read from a `tokenizer.json`.
//!
//! A text is cut at special tokens, normalized ([`normalize`]), cut into words at white space and around punctuation, and
//! each word into the longest pieces that the vocabulary has, from left to right. Sources: Devlin et al. 2019 (BERT);
//! Schuster and Nakajima 2012 (WordPiece). Ids are those of the `tokenizers` package, by which the files are written.

mod file;
mod normalize;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

use normalize::Normalizer;

/// A vocabulary of word pieces, and the rules by which a text becomes ids.
#[derive(Clone, Debug)]
pub struct WordPiece {
    vocabulary: HashMap<Box<str>, u32>,
    /// What stands before a piece that does not begin a word: `##`.
    prefix: Box<str>,
    /// The id of a word that cannot be cut into pieces.
    unknown: u32,
    /// Words of more characters than this are unknown.
    longest_word: usize,
    normalizer: Normalizer,
    /// Tokens found in a text as it is given, before it is normalized: `[MASK]` and the like.
    special: Vec<(Box<str>, u32)>,
    /// Ids before and behind the ids of a text: `[CLS]` and `[SEP]`.
    around: (Vec<u32>, Vec<u32>),
    /// One more than the largest id.
    size: usize,
}

impl WordPiece {
    /// One more than the largest id that a text can give.
    pub const fn size(&self) -> usize {
        self.size
    }

    /// The ids of the tokens before and behind those of a text.
    pub fn around(&self) -> (&[u32], &[u32]) {
        (&self.around.0, &self.around.1)
    }

    /// The ids of a text with the tokens around it, at most `limit` of them: what is too long is cut at its end.
    ///
    /// A `limit` below the number of tokens around a text leaves only those.
    pub fn encode(&self, text: &str, limit: usize) -> Vec<u32> {
        let (before, behind) = self.around();
        let room = limit.saturating_sub(before.len() + behind.len());
        let mut ids = before.to_vec();
        self.pieces(text, room, &mut ids);
        ids.truncate(before.len() + room);
        ids.extend_from_slice(behind);
        ids
    }

    /// Appends the ids of a text without the tokens around it; stops after the word with which there are `most`.
    fn pieces(&self, text: &str, most: usize, ids: &mut Vec<u32>) {
        let most = ids.len() + most;
        let mut rest = text;
        while !rest.is_empty() && ids.len() < most {
            let found = self.first_special(rest);
            let (plain, behind) = rest.split_at(found.map_or(rest.len(), |(at, _)| at));
            let normalized = self.normalizer.apply(plain);
            for word in words(&normalized) {
                self.word(word, ids);
                if ids.len() >= most {
                    return;
                }
            }
            rest = behind;
            if let Some((_, which)) = found {
                let (content, id) = &self.special[which];
                ids.push(*id);
                rest = &rest[content.len()..];
            }
        }
    }

    /// Where the first special token of a text begins, and which it is: of several at one place the longest.
    fn first_special(&self, text: &str) -> Option<(usize, usize)> {
        let places = self.special.iter().enumerate().filter_map(|(which, (content, _))| {
            let at = text.find(&**content)?;
            Some((at, std::cmp::Reverse(content.len()), which))
        });
        places.min().map(|(at, _, which)| (at, which))
    }

    /// Appends the ids of a word: the longest piece that the vocabulary has at its beginning, then at what remains. Where
    /// there is none the whole word is unknown.
    fn word(&self, word: &str, ids: &mut Vec<u32>) {
        let first = ids.len();
        if word.chars().count() > self.longest_word {
            ids.push(self.unknown);
            return;
        }
        let mut candidate = String::with_capacity(word.len() + self.prefix.len());
        let mut start = 0;
        while start < word.len() {
            candidate.clear();
            if start > 0 {
                candidate.push_str(&self.prefix);
            }
            let lead = candidate.len();
            candidate.push_str(&word[start..]);
            let piece = loop {
                match self.vocabulary.get(candidate.as_str()) {
                    Some(&id) => break Some(id),
                    None => _ = candidate.pop(),
                }
                if candidate.len() <= lead {
                    break None;
                }
            };
            let Some(id) = piece else {
                ids.truncate(first);
                ids.push(self.unknown);
                return;
            };
            ids.push(id);
            start += candidate.len() - lead;
        }
    }
}

/// The words of a normalized text: what stands between white space; each punctuation mark is a word of its own.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(char::is_whitespace).flat_map(|run| Marks { rest: run })
}

/// Cuts a run of characters before and behind every punctuation mark.
struct Marks<'a> {
    rest: &'a str,
}

impl<'a> Iterator for Marks<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let first = self.rest.chars().next()?;
        let end = if normalize::is_punctuation(first) {
            first.len_utf8()
        } else {
            self.rest.find(normalize::is_punctuation).unwrap_or(self.rest.len())
        };
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        Some(word)
    }
}
