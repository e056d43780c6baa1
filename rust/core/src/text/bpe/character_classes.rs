//! What the patterns ask of a character: `\p{L}`, `\p{N}`, `\s`, and whether it ends a line.

use std::sync::LazyLock;

use super::unicode_ranges::{LETTERS, NUMBERS};

/// None of the others; bytes that belong to no character, too.
pub(super) const OTHER: u8 = 0;
/// `\p{L}`.
pub(super) const LETTER: u8 = 1;
/// `\p{N}`.
pub(super) const NUMBER: u8 = 2;
/// `\s` but for `[\r\n]`.
pub(super) const SPACE: u8 = 3;
/// `[\r\n]`.
pub(super) const NEWLINE: u8 = 4;

/// True for `\s`.
pub(super) const fn is_white(class: u8) -> bool {
    class >= SPACE
}

/// Code points of a block.
const BLOCK: usize = 256;

/// The class of every code point, in blocks: equal ones are stored once.
pub(super) struct Classes {
    ascii: [u8; 128],
    /// The block of each 256 code points.
    places: Vec<u8>,
    blocks: Vec<[u8; BLOCK]>,
}

static CLASSES: LazyLock<Classes> = LazyLock::new(Classes::build);

impl Classes {
    /// The one table.
    pub(super) fn get() -> &'static Self {
        &CLASSES
    }

    fn build() -> Self {
        let mut all = vec![OTHER; 0x11_0000];
        for (class, turns) in [(LETTER, LETTERS), (NUMBER, NUMBERS)] {
            let mut at = 0;
            for pair in turns.chunks_exact(2) {
                let begin = at + usize::from(pair[0]);
                at = begin + usize::from(pair[1]);
                all[begin..at].fill(class);
            }
        }
        // `char::is_whitespace` is `\s`: the property White_Space, unchanged since Unicode 6.3.
        for white in (0..0x3001u32).filter_map(char::from_u32).filter(|c| c.is_whitespace()) {
            all[white as usize] = if matches!(white, '\r' | '\n') { NEWLINE } else { SPACE };
        }
        let mut ascii = [OTHER; 128];
        ascii.copy_from_slice(&all[..128]);
        let (mut places, mut blocks) = (Vec::new(), Vec::<[u8; BLOCK]>::new());
        for (block, _) in all.as_chunks::<BLOCK>().0.iter().zip(0..) {
            let found = blocks.iter().position(|other| other == block).unwrap_or_else(|| {
                blocks.push(*block);
                blocks.len() - 1
            });
            places.push(found as u8); // Unicode 16.0 has 80 distinct blocks
        }
        Self { ascii, places, blocks }
    }

    /// The class and the length in bytes of the character at `at`, which lies in the text.
    #[inline(always)]
    pub(super) fn at(&self, text: &[u8], at: usize) -> (u8, usize) {
        let byte = text[at];
        if byte < 0x80 { (self.ascii[usize::from(byte)], 1) } else { self.wide(&text[at..]) }
    }

    /// The class of the character that ends before `at`.
    pub(super) fn before(&self, text: &[u8], at: usize) -> u8 {
        // The first byte of a character is none that continues one, so that it is found from behind as from the front.
        let found = (1..=4.min(at))
            .rev()
            .map(|back| (back, self.at(text, at - back)))
            .find(|(back, (_, length))| length == back);
        found.map_or(OTHER, |(_, (class, _))| class)
    }

    /// [`Classes::at`] for a text that begins with a byte from 0x80 on. What is no UTF-8 is a character of one byte.
    fn wide(&self, text: &[u8]) -> (u8, usize) {
        let (first, second) = (text[0], text.get(1).copied().unwrap_or(0));
        let rest =
            |at: usize| text.get(at).copied().filter(|byte| byte & 0xc0 == 0x80).map(|byte| u32::from(byte & 0x3f));
        // The second byte keeps out what is overlong, surrogates, and numbers above U+10FFFF.
        let code = match first {
            0xc2..=0xdf => rest(1).map(|b| (u32::from(first & 0x1f) << 6 | b, 2)),
            0xe0 if second < 0xa0 => None,
            0xed if second > 0x9f => None,
            0xe0..=0xef => rest(1).zip(rest(2)).map(|(b, c)| (u32::from(first & 0x0f) << 12 | b << 6 | c, 3)),
            0xf0 if second < 0x90 => None,
            0xf4 if second > 0x8f => None,
            0xf0..=0xf4 => rest(1)
                .zip(rest(2))
                .zip(rest(3))
                .map(|((b, c), d)| (u32::from(first & 0x07) << 18 | b << 12 | c << 6 | d, 4)),
            _ => None,
        };
        code.map_or((OTHER, 1), |(code, length)| (self.class(code), length))
    }

    /// The class of a code point.
    #[inline]
    pub(super) fn class(&self, code: u32) -> u8 {
        let place = self.places[code as usize / BLOCK];
        self.blocks[usize::from(place)][code as usize % BLOCK]
    }
}
