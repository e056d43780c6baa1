//! [`Cache`]: keys and values of the positions so far, in pages of [`PAGE`] positions that sequences take as they grow.
//!
//! Source: Kwon et al. 2023 (paged attention).

use crate::error::{Error, Result, refuse};

/// Positions of a page.
pub(super) const PAGE: usize = 64;

/// Keys and values of one layer of a page: keys `[heads, size, PAGE]`, so that the scores of all positions are computed side
/// by side; values `[heads, PAGE, size]`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slice {
    pub(super) heads: usize,
    pub(super) size: usize,
    /// Where it begins in the page.
    pub(super) first: usize,
}

impl Slice {
    const fn half(self) -> usize {
        self.heads * self.size * PAGE
    }

    /// The keys of a head in a page.
    pub(super) fn keys(self, page: &[f32], head: usize) -> &[f32] {
        &page[self.first + head * self.size * PAGE..][..self.size * PAGE]
    }

    /// The values of a head in a page.
    pub(super) fn values(self, page: &[f32], head: usize) -> &[f32] {
        &page[self.first + self.half() + head * self.size * PAGE..][..self.size * PAGE]
    }

    /// Writes the key and the value of a position, `[heads, size]` each.
    fn write(self, page: &mut [f32], at: usize, key: &[f32], value: &[f32]) {
        let page = &mut page[self.first..][..2 * self.half()];
        let (keys, values) = page.split_at_mut(self.half());
        for (to, &key) in keys[at..].iter_mut().step_by(PAGE).zip(key) {
            *to = key;
        }
        for (head, value) in value.chunks_exact(self.size).enumerate() {
            values[(head * PAGE + at) * self.size..][..self.size].copy_from_slice(value);
        }
    }
}

/// The pages of one sequence, and how many positions of them it has filled.
#[derive(Debug, Default)]
pub(super) struct Pages {
    pages: Vec<usize>,
    pub(super) length: usize,
}

/// All pages.
#[derive(Debug)]
pub(super) struct Cache {
    pages: Vec<Box<[f32]>>,
    free: Vec<usize>,
    /// Pages at most.
    limit: usize,
    layers: Vec<Slice>,
    /// Numbers of a page.
    numbers: usize,
}

impl Cache {
    /// Of layers with so many heads of keys, of so many numbers each; `limit` pages at most.
    pub(super) fn new(layers: impl Iterator<Item = (usize, usize)>, limit: usize) -> Self {
        let mut numbers = 0;
        let layers = layers.map(|(heads, size)| {
            let slice = Slice { heads, size, first: numbers };
            numbers += 2 * slice.half();
            slice
        });
        let layers = layers.collect();
        Self { pages: Vec::new(), free: Vec::new(), limit, layers, numbers }
    }

    pub(super) fn layer(&self, layer: usize) -> Slice {
        self.layers[layer]
    }

    /// Pages that no sequence holds, those that were never made included.
    pub(super) fn left(&self) -> usize {
        self.limit - self.pages.len() + self.free.len()
    }

    /// The pages of a sequence, in order.
    pub(super) fn of(&self, pages: &Pages) -> Vec<&[f32]> {
        pages.pages.iter().map(|&page| &*self.pages[page]).collect()
    }

    /// Makes room for `more` positions.
    ///
    /// # Errors
    /// Where all pages are held, or memory is short.
    pub(super) fn grow(&mut self, pages: &mut Pages, more: usize) -> Result<()> {
        while pages.pages.len() * PAGE < pages.length + more {
            let page = match self.free.pop() {
                Some(page) => page,
                None if self.pages.len() < self.limit => {
                    let mut page = Vec::new();
                    let bytes = self.numbers.saturating_mul(size_of::<f32>());
                    page.try_reserve_exact(self.numbers)
                        .map_err(|_| Error::Core(octavo_core::Error::OutOfMemory(bytes)))?;
                    page.resize(self.numbers, 0.0);
                    self.pages.push(page.into_boxed_slice());
                    self.pages.len() - 1
                }
                None => {
                    let (limit, positions) = (self.limit, self.limit * PAGE);
                    return Err(refuse(format!(
                        "the cache of {limit} pages, {positions} positions, is full; end a text, or generate fewer at once"
                    )));
                }
            };
            pages.pages.push(page);
        }
        Ok(())
    }

    /// Writes key and value of a position of a sequence that has room for it.
    pub(super) fn write(&mut self, pages: &Pages, layer: usize, position: usize, key: &[f32], value: &[f32]) {
        let page = pages.pages[position / PAGE];
        self.layers[layer].write(&mut self.pages[page], position % PAGE, key, value);
    }

    /// Takes the pages of a sequence back.
    pub(super) fn release(&mut self, pages: &mut Pages) {
        self.free.append(&mut pages.pages);
        pages.length = 0;
    }
}
