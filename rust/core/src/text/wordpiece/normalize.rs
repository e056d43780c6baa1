//! The normalization of BERT: control characters, Chinese characters, accents, case.

use std::borrow::Cow;

use unicode_categories::UnicodeCategories;
use unicode_normalization::UnicodeNormalization;

/// Which steps are taken, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Normalizer {
    /// Control characters and U+FFFD are dropped; white space of any kind becomes a space.
    pub(super) clean: bool,
    /// Chinese characters become words of their own.
    pub(super) chinese: bool,
    /// Canonical decomposition, without the marks that it splits off.
    pub(super) strip_accents: bool,
    /// Lower case.
    pub(super) lowercase: bool,
}

impl Normalizer {
    pub(super) fn apply<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let mut text = Cow::Borrowed(text);
        if self.clean {
            text = text.chars().filter(|&c| !is_control(c)).map(|c| if is_space(c) { ' ' } else { c }).collect();
        }
        if self.chinese && text.chars().any(is_chinese) {
            text = text.chars().fold(String::with_capacity(text.len() * 2), spaced).into();
        }
        if self.strip_accents && !text.is_ascii() {
            text = text.nfd().filter(|c| !c.is_mark_nonspacing()).collect();
        }
        if self.lowercase {
            text = text.chars().flat_map(char::to_lowercase).collect();
        }
        text
    }
}

fn spaced(mut text: String, character: char) -> String {
    if is_chinese(character) {
        text.extend([' ', character, ' ']);
    } else {
        text.push(character);
    }
    text
}

const fn is_tab_or_line_end(character: char) -> bool {
    matches!(character, '\t' | '\n' | '\r')
}

fn is_control(character: char) -> bool {
    matches!(character, '\0' | '\u{fffd}') || (!is_tab_or_line_end(character) && character.is_other())
}

fn is_space(character: char) -> bool {
    is_tab_or_line_end(character) || character.is_whitespace()
}

/// True for ASCII signs that are neither letter, digit nor white space, and the punctuation of Unicode.
pub(super) fn is_punctuation(character: char) -> bool {
    character.is_ascii_punctuation() || (!character.is_ascii() && character.is_punctuation())
}

/// The blocks of Chinese characters, not those of Japanese or Korean ones, which are written with spaces or syllables.
const fn is_chinese(character: char) -> bool {
    matches!(
        character as u32,
        0x4e00..=0x9fff
            | 0x3400..=0x4dbf
            | 0x20000..=0x2a6df
            | 0x2a700..=0x2b73f
            | 0x2b740..=0x2b81f
            | 0x2b920..=0x2ceaf
            | 0xf900..=0xfaff
            | 0x2f800..=0x2fa1f
    )
}
