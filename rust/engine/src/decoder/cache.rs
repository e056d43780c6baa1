//! [`Cache`]: keys and values of the positions so far, in pages of [`PAGE`] positions that sequences take as they grow.
//!
//! Source: Kwon et al. 2023 (paged attention).

use std::borrow::Cow;

use octavo_core::codec;
use octavo_core::error::SettingError;
use octavo_core::format::Granularity;
use octavo_core::{Format, Layout, Options, Packed, PackedMut, Sizes, Values, ValuesMut, pool};

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

/// Keys and values of one layer of a page in a format: for keys and then values, for each head, the codes of all positions,
/// their scales, their zeros.
#[derive(Clone, Copy, Debug)]
struct PackedSlice {
    heads: usize,
    size: usize,
    /// Where it begins in the page, in bytes.
    first: usize,
    format: Format,
    /// Bytes of one position of a head: codes, scales, zeros.
    parts: [usize; 3],
}

impl PackedSlice {
    /// # Errors
    /// [`octavo_core::Error::Setting`] for a format whose positions have no bytes of their own.
    fn new(heads: usize, size: usize, first: usize, format: Format) -> Result<Self> {
        let refused = |why: String| Error::Core(SettingError::Other(format!("cache is '{format}'; {why}")).into());
        let of_all = format.granularity() == Granularity::Tensor && format.scale_type().is_some();
        if of_all || format.has_levels() {
            return Err(refused("accepted are formats whose scales belong to a head or to fewer numbers".to_owned()));
        }
        // Rows are whole bytes in every format, so that positions lie one behind the other.
        let sizes = Layout::new(&[1, size], -1, format).and_then(|layout| Sizes::new(format, &layout));
        let sizes = sizes.map_err(|error| refused(error.to_string()))?;
        let slice = Self { heads, size, first, format, parts: [sizes.codes, sizes.scales, sizes.zeros] };
        slice.encode(&vec![0.0; size]).map_err(|error| refused(error.to_string()))?;
        Ok(slice)
    }

    fn row_bytes(self) -> usize {
        self.parts.iter().sum()
    }

    /// Bytes of keys and values of a page.
    fn bytes(self) -> usize {
        2 * self.heads * self.row_bytes() * PAGE
    }

    /// Codes, scales and zeros of heads `[rows, size]`.
    fn encode(self, heads: &[f32]) -> Result<[Vec<u8>; 3]> {
        let rows = heads.len() / self.size;
        let layout = Layout::new(&[rows, self.size], -1, self.format)?;
        let [mut codes, mut scales, mut zeros] = self.parts.map(|bytes| vec![0; bytes * rows]);
        let out = PackedMut { codes: &mut codes, scales: &mut scales, zeros: &mut zeros, levels: &mut [] };
        codec::encode(Values::F32(heads), layout, self.format, &Options::default(), out)?;
        Ok([codes, scales, zeros])
    }

    /// Where the parts of a head begin: of keys (0) or values (1).
    fn starts(self, which: usize, head: usize) -> [usize; 3] {
        let start = self.first + (which * self.heads + head) * self.row_bytes() * PAGE;
        let [codes, scales, _] = self.parts;
        [start, start + codes * PAGE, start + (codes + scales) * PAGE]
    }

    /// Writes the key and the value of a position, `[heads, size]` each.
    fn write(self, page: &mut [u8], at: usize, key: &[f32], value: &[f32]) -> Result<()> {
        for (which, heads) in [key, value].into_iter().enumerate() {
            let encoded = self.encode(heads)?;
            for head in 0..self.heads {
                for ((start, part), bytes) in self.starts(which, head).into_iter().zip(&encoded).zip(self.parts) {
                    page[start + at * bytes..][..bytes].copy_from_slice(&part[head * bytes..][..bytes]);
                }
            }
        }
        Ok(())
    }

    /// The first `count` positions of a page as [`Slice`] has them; the others are 0.
    fn decode(self, page: &[u8], count: usize) -> Result<Vec<f32>> {
        let (layout, of_head) = (Layout::new(&[count, self.size], -1, self.format)?, self.size * PAGE);
        let mut out = vec![0.0; 2 * self.heads * of_head];
        let mut rows = vec![0.0; count * self.size];
        for (number, to) in out.chunks_exact_mut(of_head).enumerate() {
            let (which, head) = (number / self.heads, number % self.heads);
            let [codes, scales, zeros] = self.starts(which, head);
            let part = |start: usize, bytes: usize| &page[start..][..bytes * count];
            let packed = Packed {
                codes: part(codes, self.parts[0]),
                scales: part(scales, self.parts[1]),
                zeros: part(zeros, self.parts[2]),
                levels: &[],
            };
            codec::decode(packed, layout, self.format, ValuesMut::F32(&mut rows))?;
            if which == 1 {
                to[..rows.len()].copy_from_slice(&rows);
                continue;
            }
            for (at, row) in rows.chunks_exact(self.size).enumerate() {
                to[at..].iter_mut().step_by(PAGE).zip(row).for_each(|(to, &key)| *to = key);
            }
        }
        Ok(out)
    }
}

/// The pages of one sequence, and how many positions of them it has filled.
#[derive(Debug, Default)]
pub(super) struct Pages {
    pages: Vec<usize>,
    pub(super) length: usize,
}

/// One page.
#[derive(Debug)]
enum Page {
    Floats(Box<[f32]>),
    Packed(Box<[u8]>),
}

/// Where the layers lie in a page.
#[derive(Debug)]
enum Layers {
    Floats(Vec<Slice>),
    Packed(Vec<PackedSlice>),
}

/// All pages.
#[derive(Debug)]
pub(super) struct Cache {
    pages: Vec<Page>,
    free: Vec<usize>,
    /// Pages at most.
    limit: usize,
    layers: Layers,
    /// Numbers of a page, or bytes of a packed one.
    size: usize,
}

/// The pages of some sequences, of one layer, as numbers.
pub(super) struct LayerPages<'a> {
    pub(super) slice: Slice,
    sequences: Vec<Vec<Cow<'a, [f32]>>>,
}

impl LayerPages<'_> {
    /// Those of a sequence, in order.
    pub(super) fn of(&self, sequence: usize) -> Vec<&[f32]> {
        self.sequences[sequence].iter().map(AsRef::as_ref).collect()
    }
}

impl Cache {
    /// Of layers with so many heads of keys, of so many numbers each; `limit` pages at most. `format`: of keys and values;
    /// none: float32.
    ///
    /// # Errors
    /// [`octavo_core::Error::Setting`] for a format that positions of a head cannot have alone.
    pub(super) fn new(
        layers: impl Iterator<Item = (usize, usize)>,
        limit: usize,
        format: Option<Format>,
    ) -> Result<Self> {
        let mut taken = 0;
        let layers = match format {
            None => Layers::Floats(
                layers
                    .map(|(heads, size)| {
                        let slice = Slice { heads, size, first: taken };
                        taken += 2 * slice.half();
                        slice
                    })
                    .collect(),
            ),
            Some(format) => Layers::Packed(
                layers
                    .map(|(heads, size)| {
                        let slice = PackedSlice::new(heads, size, taken, format)?;
                        taken += slice.bytes();
                        Ok(slice)
                    })
                    .collect::<Result<_>>()?,
            ),
        };
        Ok(Self { pages: Vec::new(), free: Vec::new(), limit, layers, size: taken })
    }

    /// Pages that no sequence holds, those that were never made included.
    pub(super) fn left(&self) -> usize {
        self.limit - self.pages.len() + self.free.len()
    }

    /// Bytes of a position.
    pub(super) fn position_nbytes(&self) -> usize {
        let bytes = if matches!(self.layers, Layers::Floats(_)) { self.size * size_of::<f32>() } else { self.size };
        bytes / PAGE
    }

    /// The pages of sequences, of one layer. `ranges`: the first position that each sequence needs, and the end of those.
    ///
    /// # Errors
    /// [`octavo_core::Error::Setting`] where threads cannot be started.
    pub(super) fn of<'a>(
        &'a self,
        sequences: &[&Pages],
        layer: usize,
        ranges: &[(usize, usize)],
    ) -> Result<LayerPages<'a>> {
        match &self.layers {
            Layers::Floats(slices) => {
                let page = |&page: &usize| match &self.pages[page] {
                    Page::Floats(page) => Cow::Borrowed(&**page),
                    Page::Packed(_) => Cow::Borrowed(&[][..]),
                };
                let sequences = sequences.iter().map(|pages| pages.pages.iter().map(page).collect()).collect();
                Ok(LayerPages { slice: slices[layer], sequences })
            }
            Layers::Packed(slices) => {
                let slice = slices[layer];
                let wanted: Vec<(usize, usize)> = (sequences.iter().zip(ranges))
                    .flat_map(|(pages, &(first, end))| {
                        pages.pages.iter().enumerate().map(move |(number, &page)| {
                            let filled = end.saturating_sub(number * PAGE).min(PAGE);
                            (page, if (number + 1) * PAGE > first { filled } else { 0 })
                        })
                    })
                    .collect();
                let bytes = wanted.len() * slice.heads * slice.size * PAGE * size_of::<f32>() * 2;
                let decoded = pool::map(wanted.len(), bytes, |at| {
                    pool::alone(|| match (wanted[at], &self.pages[wanted[at].0]) {
                        ((_, count), Page::Packed(page)) if count > 0 => slice.decode(page, count),
                        _ => Ok(Vec::new()),
                    })
                })?;
                let mut decoded = decoded.into_iter();
                let mut pages_of = |pages: &&Pages| -> Result<Vec<Cow<'a, [f32]>>> {
                    decoded.by_ref().take(pages.pages.len()).map(|page| page.map(Cow::Owned)).collect()
                };
                let sequences = sequences.iter().map(&mut pages_of).collect::<Result<_>>()?;
                let slice = Slice { heads: slice.heads, size: slice.size, first: 0 };
                Ok(LayerPages { slice, sequences })
            }
        }
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
                    let page = match self.layers {
                        Layers::Floats(_) => Page::Floats(zeros(self.size)?),
                        Layers::Packed(_) => Page::Packed(zeros(self.size)?),
                    };
                    self.pages.push(page);
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
    ///
    /// # Errors
    /// [`octavo_core::Error::Container`] for numbers that are not finite in a packed cache.
    pub(super) fn write(
        &mut self,
        pages: &Pages,
        layer: usize,
        position: usize,
        key: &[f32],
        value: &[f32],
    ) -> Result<()> {
        let page = &mut self.pages[pages.pages[position / PAGE]];
        match (&self.layers, page) {
            (Layers::Floats(slices), Page::Floats(page)) => slices[layer].write(page, position % PAGE, key, value),
            (Layers::Packed(slices), Page::Packed(page)) => {
                let written = slices[layer].write(page, position % PAGE, key, value);
                written.map_err(|error| refuse(format!("keys and values of layer {layer}: {error}")))?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Takes the pages of a sequence back.
    pub(super) fn release(&mut self, pages: &mut Pages) {
        self.free.append(&mut pages.pages);
        pages.length = 0;
    }
}

/// `count` zeros.
fn zeros<T: Default + Clone>(count: usize) -> Result<Box<[T]>> {
    let mut page = Vec::new();
    let bytes = count.saturating_mul(size_of::<T>());
    page.try_reserve_exact(count).map_err(|_| Error::Core(octavo_core::Error::OutOfMemory(bytes)))?;
    page.resize(count, T::default());
    Ok(page.into_boxed_slice())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cache in a format is one of float32 whose keys and values were rounded.
    #[test]
    fn packed_pages_hold_rounded_numbers() {
        let noise = |i: usize| ((i as u32).wrapping_mul(0x9e37_79b9) >> 8) as f32 / 8_388_608.0 - 1.0;
        let row = |seed: usize, count: usize| (0..count).map(|i| noise(seed * 977 + i)).collect::<Vec<f32>>();
        for text in ["fp16", "bf16", "mxint8", "mxfp8e4m3", "mxfp4", "nf4", "int8:channel", "int4:g32", "uint4:g16"] {
            let format = Format::parse(text).unwrap();
            let shapes = [(2, 32), (3, 64)];
            let mut plain = Cache::new(shapes.into_iter(), 4, None).unwrap();
            let mut packed = Cache::new(shapes.into_iter(), 4, Some(format)).unwrap();
            let (mut one, mut other) = (Pages::default(), Pages::default());
            let count = PAGE + 9;
            plain.grow(&mut one, count).unwrap();
            packed.grow(&mut other, count).unwrap();
            for at in 0..count {
                for (layer, (heads, size)) in shapes.into_iter().enumerate() {
                    let [key, value] = [at, at + 500].map(|seed| row(seed * 2 + layer, heads * size));
                    packed.write(&other, layer, at, &key, &value).unwrap();
                    let rounded = |mut numbers: Vec<f32>| {
                        let layout = Layout::new(&[heads, size], -1, format).unwrap();
                        let out = ValuesMut::F32(&mut numbers);
                        codec::quantize_in_place(out, layout, format, &Options::default()).unwrap();
                        numbers
                    };
                    plain.write(&one, layer, at, &rounded(key), &rounded(value)).unwrap();
                }
            }
            for (layer, (heads, _)) in shapes.into_iter().enumerate() {
                let wanted = plain.of(&[&one], layer, &[(0, count)]).unwrap();
                let read = packed.of(&[&other], layer, &[(0, count)]).unwrap();
                for head in 0..heads {
                    for (wanted_page, found_page) in wanted.of(0).into_iter().zip(read.of(0)) {
                        let keys = wanted.slice.keys(wanted_page, head);
                        assert_eq!(keys, read.slice.keys(found_page, head), "{text} {layer} {head}");
                        let values = wanted.slice.values(wanted_page, head);
                        assert_eq!(values, read.slice.values(found_page, head), "{text} {layer} {head}");
                    }
                }
                // Pages before the first position that is needed are left out.
                assert!(packed.of(&[&other], layer, &[(PAGE, count)]).unwrap().of(0)[0].is_empty());
            }
            assert!(packed.position_nbytes() < plain.position_nbytes());
        }
    }

    #[test]
    fn formats_whose_positions_have_no_bytes_of_their_own_are_refused() {
        for (text, size, why) in [("int8:tensor", 32, "scales belong to a head"), ("q4_k", 64, "q4_k")] {
            let error = Cache::new([(1, size)].into_iter(), 1, Some(Format::parse(text).unwrap())).unwrap_err();
            assert!(error.to_string().contains(why), "{text}: {error}");
        }
    }
}
