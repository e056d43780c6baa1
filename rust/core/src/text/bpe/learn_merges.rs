//! Learning a vocabulary: the most frequent pair of neighbours becomes a token, again and again.
//!
//! Of pairs of one count that of the smaller ids comes first, as in the trainer of the package `tokenizers`, so that both
//! find the same merges.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

use super::byte_characters;
use super::pair_table::MOST_IDS;
use super::piece_counts::PieceCounts;
use super::special_tokens::Added;
use super::token_table::fold;
use super::vocabulary::{Order, Parts};
use super::{BytePairs, Pattern};
use crate::error::{BytePairFault, DataError, Result};

/// Left id above right id.
type Pair = u64;

const fn pair(left: u32, right: u32) -> Pair {
    (left as u64) << 32 | right as u64
}

/// The hash of one number.
#[derive(Default)]
struct Folded(u64);

impl Hasher for Folded {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(byte.into());
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = fold(self.0, number);
    }
}

/// How often a pair occurs, and the words that it has been seen in.
#[derive(Debug, Default)]
struct Seen {
    count: i64,
    words: Vec<u32>,
    /// True while the pair is among those that the merge at hand has made.
    is_new: bool,
}

/// Pieces as tokens, and the pairs in them.
#[derive(Debug)]
pub struct Learner {
    pattern: Pattern,
    special: Vec<String>,
    /// Tokens beside special ones that there shall be.
    size: usize,
    least: i64,
    tokens: Vec<Vec<u8>>,
    ids: HashMap<Vec<u8>, u32>,
    merges: Vec<(u32, u32, u32)>,
    /// The tokens of all words; each word keeps the room that it had at first.
    symbols: Vec<u32>,
    begins: Vec<usize>,
    lengths: Vec<u32>,
    counts: Vec<i64>,
    places: HashMap<Pair, u32, BuildHasherDefault<Folded>>,
    pairs: Vec<Seen>,
    queue: BinaryHeap<(i64, Reverse<Pair>)>,
}

impl Learner {
    /// Begins with a token for each byte. `size`: tokens that there shall be, `special` ones included, whose ids are the last.
    /// Pairs that occur fewer than `least` times do not merge.
    ///
    /// # Errors
    /// [`crate::Error::Data`] for a size that is not above 256 and the special tokens, or beyond the limit.
    pub fn new(counts: &PieceCounts, size: usize, special: &[String], least: u64) -> Result<Self> {
        if size < 256 + special.len() || size >= MOST_IDS as usize {
            let found = format!("{size} with {} special tokens", special.len());
            let accepted = "from 256 and the special tokens up to 2097150";
            return Err(DataError::from(BytePairFault::Field { field: "size", found, accepted }).into());
        }
        // Ids of bytes in the order of their characters, as GPT-2 has them.
        let mut bytes: Vec<u8> = (0..=u8::MAX).collect();
        bytes.sort_by_key(|&byte| byte_characters::of_byte(byte));
        let mut byte_ids = [0; 256];
        for (id, &byte) in (0..).zip(&bytes) {
            byte_ids[usize::from(byte)] = id;
        }
        let tokens: Vec<Vec<u8>> = bytes.into_iter().map(|byte| vec![byte]).collect();
        let mut learner = Self {
            pattern: counts.pattern(),
            special: special.to_vec(),
            size: size - special.len(),
            least: i64::try_from(least.max(1)).unwrap_or(i64::MAX),
            ids: (0..).zip(&tokens).map(|(id, token)| (token.clone(), id)).collect(),
            tokens,
            merges: Vec::new(),
            symbols: Vec::new(),
            begins: Vec::new(),
            lengths: Vec::new(),
            counts: Vec::new(),
            places: HashMap::default(),
            pairs: Vec::new(),
            queue: BinaryHeap::new(),
        };
        let words = counts.sorted();
        for (word, &(piece, count)) in (0..).zip(words.iter().filter(|(piece, _)| piece.len() > 1)) {
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            learner.begins.push(learner.symbols.len());
            learner.lengths.push(piece.len() as u32);
            learner.counts.push(count);
            learner.symbols.extend(piece.iter().map(|&byte| byte_ids[usize::from(byte)]));
            for two in piece.windows(2) {
                let found = pair(byte_ids[usize::from(two[0])], byte_ids[usize::from(two[1])]);
                learner.seen(found).more(word, count);
            }
        }
        let all: Vec<Pair> = learner.places.keys().copied().collect();
        let entries = all.into_iter().map(|pair| (learner.seen(pair).count, Reverse(pair))).collect::<Vec<_>>();
        learner.queue = entries.into();
        Ok(learner)
    }

    /// Merges made.
    pub fn merged(&self) -> usize {
        self.merges.len()
    }

    /// Merges that there will be, if there are pairs enough.
    pub fn wanted(&self) -> usize {
        self.size - 256
    }

    /// Makes up to `most` merges; false at the end, where the vocabulary is full or no pair is frequent enough.
    pub fn advance(&mut self, most: usize) -> bool {
        for _ in 0..most {
            if self.tokens.len() >= self.size {
                return false;
            }
            let Some(found) = self.most_frequent() else { return false };
            self.merge(found);
        }
        true
    }

    /// The most frequent pair, by counts as they are now.
    fn most_frequent(&mut self) -> Option<Pair> {
        while let Some((count, Reverse(found))) = self.queue.pop() {
            let now = self.seen(found).count;
            if now == count {
                return (count >= self.least).then_some(found);
            }
            if now > 0 {
                self.queue.push((now, Reverse(found)));
            }
        }
        None
    }

    fn seen(&mut self, found: Pair) -> &mut Seen {
        let next = self.pairs.len() as u32;
        let place = *self.places.entry(found).or_insert(next);
        if place == next {
            self.pairs.push(Seen::default());
        }
        &mut self.pairs[place as usize]
    }

    /// Joins a pair in all words.
    fn merge(&mut self, found: Pair) {
        let (left, right) = ((found >> 32) as u32, found as u32);
        let both = [self.tokens[left as usize].as_slice(), &self.tokens[right as usize]].concat();
        let next = self.tokens.len() as u32;
        // Other pairs may have made the same token before.
        let id = *self.ids.entry(both.clone()).or_insert(next);
        if id == next {
            self.tokens.push(both);
        }
        self.merges.push((left, right, id));
        let seen = self.seen(found);
        seen.count = 0;
        let words = std::mem::take(&mut seen.words);
        let mut made = Vec::new();
        for word in words {
            self.merge_in(word, (left, right, id), &mut made);
        }
        for new in made {
            let seen = self.seen(new);
            seen.is_new = false;
            let count = seen.count;
            if count > 0 {
                self.queue.push((count, Reverse(new)));
            }
        }
    }

    /// Joins a pair in one word, from left to right; pairs that became more go to `made`.
    fn merge_in(&mut self, word: u32, (left, right, id): (u32, u32, u32), made: &mut Vec<Pair>) {
        let (begin, length) = (self.begins[word as usize], self.lengths[word as usize] as usize);
        let count = self.counts[word as usize];
        let merged = pair(left, right);
        // `to` symbols are done; those from `at` on are to come.
        let (mut at, mut to) = (0, 0);
        while at < length {
            let symbol = self.symbols[begin + at];
            if symbol != left || at + 1 >= length || self.symbols[begin + at + 1] != right {
                self.symbols[begin + to] = symbol;
                (at, to) = (at + 1, to + 1);
                continue;
            }
            if to > 0 {
                let before = self.symbols[begin + to - 1];
                self.fewer(pair(before, left), merged, count);
                self.more(pair(before, id), word, count, made);
            }
            if at + 2 < length {
                let behind = self.symbols[begin + at + 2];
                self.fewer(pair(right, behind), merged, count);
                self.more(pair(id, behind), word, count, made);
            }
            self.symbols[begin + to] = id;
            (at, to) = (at + 2, to + 1);
        }
        self.lengths[word as usize] = to as u32;
    }

    /// The pair that is merged is gone as a whole: its count is 0 already.
    fn fewer(&mut self, found: Pair, merged: Pair, count: i64) {
        if found != merged {
            self.seen(found).count -= count;
        }
    }

    fn more(&mut self, found: Pair, word: u32, count: i64, made: &mut Vec<Pair>) {
        let seen = self.seen(found);
        seen.more(word, count);
        if !seen.is_new {
            seen.is_new = true;
            made.push(found);
        }
    }

    /// The tokenizer.
    ///
    /// # Errors
    /// [`crate::Error::Data`] for special tokens that are empty or there twice.
    pub fn finish(&self) -> Result<BytePairs> {
        let added = (self.tokens.len() as u32..).zip(&self.special);
        let added = added
            .map(|(id, content)| Added { content: content.clone(), id, special: true, normalized: false })
            .collect();
        BytePairs::new(Parts {
            tokens: (0..).zip(&self.tokens).map(|(id, token)| (id, token.clone())).collect::<BTreeMap<_, _>>(),
            order: Order::Merges { merges: self.merges.clone(), whole: false },
            pattern: self.pattern,
            added,
            composed: false,
            around: Default::default(),
        })
    }
}

impl Seen {
    fn more(&mut self, word: u32, count: i64) {
        self.count = self.count.saturating_add(count);
        if self.words.last() != Some(&word) {
            self.words.push(word);
        }
    }
}
