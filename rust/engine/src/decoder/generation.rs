//! [`Generation`]: texts that grow token by token, several at once.

use std::sync::Arc;

use octavo_core::Format;

use super::Decoder;
use super::cache::{Cache, PAGE, Pages};
use super::run::Place;
use super::sampling::Sampling;
use crate::error::{Result, refuse};

/// Positions of prompts that are computed in one pass.
const BLOCK: usize = 256;

/// One text.
struct Text {
    ids: Vec<u32>,
    pages: Pages,
    /// First position of the document of each position so far.
    documents: Vec<usize>,
    ended: bool,
    /// Its positions in the cache have the angles of long texts.
    is_long: bool,
}

/// Texts that one decoder continues. What comes out for one does not depend on the others.
pub struct Generation {
    decoder: Arc<Decoder>,
    sampling: Sampling,
    texts: Vec<Text>,
    cache: Cache,
    /// Without it, every token is computed from all before it.
    keeps: bool,
}

impl Generation {
    /// Begins with prompts of one id each or more. `keeps`: keys and values are kept in the cache, of `pages` pages of 64
    /// positions at most, in `format`; none: float32.
    ///
    /// # Errors
    /// [`octavo_core::Error::Setting`] for a sampling outside its ranges; [`octavo_core::Error::Container`] for an empty
    /// prompt, for ids outside the vocabulary, and for more tokens than the model has positions.
    pub fn new(
        decoder: Arc<Decoder>,
        prompts: Vec<Vec<u32>>,
        sampling: Sampling,
        keeps: bool,
        pages: usize,
        format: Option<Format>,
    ) -> Result<Self> {
        sampling.check()?;
        for (number, prompt) in prompts.iter().enumerate() {
            decoder.check(number, prompt)?;
        }
        let texts = prompts.into_iter().map(|ids| Text {
            ids,
            pages: Pages::default(),
            documents: Vec::new(),
            ended: false,
            is_long: false,
        });
        let cache = decoder.cache(pages, format)?;
        Ok(Self { sampling, texts: texts.collect(), cache, keeps, decoder })
    }

    /// Computes some positions of the prompts; the number of those that are left, without the last of each, which
    /// [`Self::advance`] computes.
    ///
    /// # Errors
    /// [`octavo_core::Error::Container`] where the cache is full; [`octavo_core::Error::Setting`] where threads cannot be
    /// started.
    pub fn feed(&mut self) -> Result<usize> {
        if self.keeps {
            self.compute(BLOCK, 1)?;
        }
        Ok(self
            .texts
            .iter()
            .filter(|text| !text.ended && self.keeps)
            .map(|text| text.ids.len() - 1 - text.pages.length)
            .sum())
    }

    /// The next token of every text, none of those that have ended.
    ///
    /// # Errors
    /// As [`Self::feed`], and where a text has as many tokens as the model has positions.
    pub fn advance(&mut self) -> Result<Vec<Option<u32>>> {
        while self.feed()? > 0 {}
        for (number, text) in self.texts.iter_mut().enumerate().filter(|(_, text)| !text.ended) {
            self.decoder.check(number, &text.ids)?;
            if !self.keeps {
                self.cache.release(&mut text.pages);
                text.documents.clear();
            }
        }
        let hidden = self.compute(usize::MAX, 0)?;
        let mut next = vec![None; self.texts.len()];
        let numbers: Vec<usize> = (0..self.texts.len()).filter(|&at| !self.texts[at].ended).collect();
        let scores = self.decoder.scores(&hidden)?;
        check_finite(&scores)?;
        for (&number, scores) in numbers.iter().zip(scores.chunks_exact(self.decoder.vocabulary())) {
            let text = &mut self.texts[number];
            let id = self.sampling.choose(scores, number as u64, text.ids.len());
            text.ids.push(id);
            next[number] = Some(id);
        }
        Ok(next)
    }

    /// Gives a text other ids, one or more. Positions stay in the cache up to the first id that differs, so that a
    /// conversation computes its new turns alone.
    ///
    /// # Errors
    /// As [`Self::new`], and for a text that is not there or has ended.
    pub fn replace(&mut self, number: usize, ids: Vec<u32>) -> Result<()> {
        self.decoder.check(number, &ids)?;
        let text = self.text(number)?;
        if text.ended {
            return Err(refuse(format!("text {number} has ended")));
        }
        let same = text.ids.iter().zip(&ids).take_while(|(before, now)| before == now).count();
        // The last position is computed anew in any case: its scores choose the next token.
        text.pages.length = text.pages.length.min(same).min(ids.len() - 1);
        text.documents.truncate(text.pages.length);
        text.ids = ids;
        Ok(())
    }

    /// Ends a text, whose pages serve the others.
    ///
    /// # Errors
    /// [`octavo_core::Error::Container`] for a text that is not there.
    pub fn end(&mut self, text: usize) -> Result<()> {
        self.text(text)?.ended = true;
        self.cache.release(&mut self.texts[text].pages);
        Ok(())
    }

    fn text(&mut self, number: usize) -> Result<&mut Text> {
        let count = self.texts.len();
        self.texts.get_mut(number).ok_or_else(|| refuse(format!("text {number} of {count}")))
    }

    /// Pages of the cache that no text holds.
    pub fn pages_left(&self) -> usize {
        self.cache.left()
    }

    /// Computes up to `most` positions, all of each text but its last `but`; the hidden states of the last of each.
    fn compute(&mut self, most: usize, but: usize) -> Result<Vec<f32>> {
        let (mut places, mut last) = (Vec::new(), Vec::new());
        let live: Vec<usize> = (0..self.texts.len()).filter(|&at| !self.texts[at].ended).collect();
        let switch = self.decoder.network.switch();
        for (sequence, &number) in live.iter().enumerate() {
            let text = &mut self.texts[number];
            let is_long = switch.is_some_and(|switch| text.ids.len() > switch);
            if is_long != text.is_long {
                // All positions have other angles now: they are computed anew.
                self.cache.release(&mut text.pages);
                text.documents.clear();
                text.is_long = is_long;
            }
            let done = text.pages.length;
            let count = (text.ids.len() - but - done).min(most - places.len());
            self.cache.grow(&mut text.pages, count)?;
            for position in done..done + count {
                let id = text.ids[position];
                let before = text.documents.last().copied().unwrap_or(0);
                let document = if self.decoder.plan.document == Some(id) { position } else { before };
                text.documents.push(document);
                places.push(Place { sequence, position, id, document, is_long });
            }
            text.pages.length = done + count;
            last.push(places.len().wrapping_sub(1));
        }
        if places.is_empty() {
            return Ok(Vec::new());
        }
        let sequences: Vec<&Pages> = live.iter().map(|&number| &self.texts[number].pages).collect();
        let width = self.decoder.plan.width;
        let mut hidden = vec![0.0; last.len() * width];
        let mut first = 0;
        for block in places.chunks(BLOCK) {
            let found = self.decoder.pass(block, &sequences, &mut self.cache)?;
            for (to, &place) in hidden.chunks_exact_mut(width).zip(&last) {
                if (first..first + block.len()).contains(&place) {
                    to.copy_from_slice(&found[(place - first) * width..][..width]);
                }
            }
            first += block.len();
        }
        Ok(hidden)
    }
}

fn check_finite(scores: &[f32]) -> Result<()> {
    if scores.iter().fold(true, |all, score| all & score.is_finite()) {
        return Ok(());
    }
    Err(refuse("the scores of the next token are not finite: the weights are too large for float32"))
}

impl Decoder {
    /// Refuses prompts that cannot be continued.
    fn check(&self, number: usize, ids: &[u32]) -> Result<()> {
        let vocabulary = self.vocabulary();
        if ids.is_empty() {
            return Err(refuse(format!("prompt {number} has no tokens; accepted is one or more")));
        }
        if let Some((at, id)) = ids.iter().enumerate().find(|(_, id)| **id as usize >= vocabulary) {
            return Err(refuse(format!("prompt {number}: id {id} at {at}; accepted are ids below {vocabulary}")));
        }
        match self.positions() {
            Some(positions) if ids.len() > positions => {
                let tokens = ids.len();
                Err(refuse(format!("prompt {number}: {tokens} tokens; the model has {positions} positions")))
            }
            _ => Ok(()),
        }
    }

    fn cache(&self, pages: usize, format: Option<Format>) -> Result<Cache> {
        Cache::new(self.plan.blocks.iter().map(|block| (block.kv_heads, block.size)), pages, format)
    }

    /// Bytes of the cache that one position fills, and one step reads for each position that it sees. `format`: of keys and
    /// values; none: float32.
    ///
    /// # Errors
    /// [`octavo_core::Error::Setting`] for a format that positions of a head cannot have alone.
    pub fn position_nbytes(&self, format: Option<Format>) -> Result<usize> {
        Ok(self.cache(0, format)?.position_nbytes())
    }

    /// Scores of the token after each of `ids`, `[ids, vocabulary]`, before they are normalized. `format`: of keys and
    /// values; none: float32.
    ///
    /// # Errors
    /// As [`Generation::new`] and [`Generation::feed`].
    pub fn all_scores(&self, ids: &[u32], format: Option<Format>) -> Result<Vec<f32>> {
        self.check(0, ids)?;
        let mut cache = self.cache(ids.len().div_ceil(PAGE), format)?;
        let mut pages = Pages::default();
        cache.grow(&mut pages, ids.len())?;
        let mut document = 0;
        let is_long = self.network.switch().is_some_and(|switch| ids.len() > switch);
        let places: Vec<Place> = (0..)
            .zip(ids)
            .map(|(position, &id)| {
                document = if self.plan.document == Some(id) { position } else { document };
                Place { sequence: 0, position, id, document, is_long }
            })
            .collect();
        let mut scores = Vec::new();
        for block in places.chunks(BLOCK) {
            let of_block = self.scores(&self.pass(block, &[&pages], &mut cache)?)?;
            check_finite(&of_block)?;
            scores.extend(of_block);
        }
        Ok(scores)
    }
}
