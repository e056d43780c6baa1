//! Pre-tokenization: how a text is cut into pieces that are merged apart from each other.
//!
//! The scanners give the matches of the regular expressions below, without their backtracking. A text is any bytes; a byte
//! that belongs to no character counts as one that is neither letter, number nor white space.

use crate::error::{BytePairFault, DataError, Error, Result};

use super::character_classes::{Classes, LETTER, NEWLINE, NUMBER, OTHER, SPACE, is_white};

/// The rules by which a family of models cuts texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pattern {
    /// GPT-2, RoBERTa, GPT-3.
    Gpt2,
    /// SmolLM, StarCoder: every numeric character stands alone, then as GPT-2.
    SmolLm,
    /// GPT-4: as Llama 3, but white space at the end of a text is one piece.
    Cl100k,
    /// Llama 3.
    Llama3,
    /// Qwen 2, 2.5 and 3: as Llama 3, but every number character stands alone.
    Qwen2,
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Without the possessive quantifiers of `tiktoken`, which mean something else to `tokenizers`, as `$` does.
const CL100K: &str =
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+\z|\s*[\r\n]|\s+(?!\S)|\s";

/// Other spellings of the same expressions.
const SPELLINGS: &[(&str, Pattern)] = &[
    (GPT2, Pattern::Gpt2),
    (r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+", Pattern::Gpt2),
    (r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s", Pattern::Gpt2),
    (LLAMA3, Pattern::Llama3),
    (
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
        Pattern::Llama3,
    ),
    (QWEN2, Pattern::Qwen2),
    (CL100K, Pattern::Cl100k),
];

impl Pattern {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Gpt2, Self::SmolLm, Self::Cl100k, Self::Llama3, Self::Qwen2];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gpt2 => "gpt2",
            Self::SmolLm => "smollm",
            Self::Cl100k => "cl100k",
            Self::Llama3 => "llama3",
            Self::Qwen2 => "qwen2",
        }
    }

    /// The pattern of a name.
    ///
    /// # Errors
    /// [`crate::Error::Data`] that lists the names for another one.
    pub fn named(name: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|pattern| pattern.name() == name);
        found.ok_or_else(|| Self::unknown(name))
    }

    /// The refusal of a name or a regular expression.
    pub(super) fn unknown(found: &str) -> Error {
        let accepted = Self::ALL.map(Self::name).join(", ");
        let found = found.chars().take(200).collect();
        DataError::from(BytePairFault::Pattern { found, accepted }).into()
    }

    /// The pattern that a regular expression writes down, for those whose matches are known here.
    pub fn from_expression(expression: &str) -> Option<Self> {
        SPELLINGS.iter().find(|(text, _)| *text == expression).map(|&(_, pattern)| pattern)
    }

    /// The regular expression; that of GPT-2 for [`Pattern::SmolLm`], whose numbers are cut out before.
    pub const fn expression(self) -> &'static str {
        match self {
            Self::Gpt2 | Self::SmolLm => GPT2,
            Self::Cl100k => CL100K,
            Self::Llama3 => LLAMA3,
            Self::Qwen2 => QWEN2,
        }
    }

    /// Calls `piece` with the beginning and the end of every piece of a text, in order.
    #[inline(always)]
    pub(super) fn cut(self, text: &[u8], mut piece: impl FnMut(usize, usize)) {
        let scanner = Scanner { text, classes: Classes::get() };
        match self {
            Self::Gpt2 => scanner.run(|at| scanner.gpt2(at, false), &mut piece),
            Self::SmolLm => scanner.run(|at| scanner.gpt2(at, true), &mut piece),
            Self::Cl100k => scanner.run(|at| scanner.llama3(at, 3, true), &mut piece),
            Self::Llama3 => scanner.run(|at| scanner.llama3(at, 3, false), &mut piece),
            Self::Qwen2 => scanner.run(|at| scanner.llama3(at, 1, false), &mut piece),
        }
    }

    /// True if the pieces of a text are those of the part before `at` and those of the part from there on, whatever else
    /// the text holds.
    ///
    /// No piece has white space behind something else, but for line ends behind punctuation in the family of Llama 3; there
    /// no piece goes on behind line ends, and none depends on what stands behind them.
    pub(super) fn parts_at(self, text: &[u8], at: usize) -> bool {
        if at == 0 || at >= text.len() {
            return false;
        }
        let classes = Classes::get();
        let (before, here) = (classes.before(text, at), classes.at(text, at).0);
        let is_old = matches!(self, Self::Gpt2 | Self::SmolLm);
        match (is_white(before), here) {
            (false, SPACE) => true,
            (false, NEWLINE) => is_old || before != OTHER,
            (true, SPACE | NEWLINE) => false,
            (true, _) => !is_old && before == NEWLINE,
            (false, _) => false,
        }
    }
}

#[derive(Clone, Copy)]
struct Scanner<'a> {
    text: &'a [u8],
    classes: &'static Classes,
}

impl Scanner<'_> {
    #[inline(always)]
    fn run(&self, next: impl Fn(usize) -> usize, piece: &mut impl FnMut(usize, usize)) {
        let mut at = 0;
        while at < self.text.len() {
            let end = next(at);
            piece(at, end);
            at = end;
        }
    }

    /// Where the characters of a class end that stand at `at` and behind it.
    #[inline(always)]
    fn end_of(&self, class: u8, mut at: usize) -> usize {
        while at < self.text.len() {
            let (found, length) = self.classes.at(self.text, at);
            if found != class {
                break;
            }
            at += length;
        }
        at
    }

    /// Where white space ends that begins at `at`, where its last character begins, and where its last line end ends, 0 for none.
    #[inline]
    fn white(&self, mut at: usize) -> (usize, usize, usize) {
        let (mut last, mut line) = (at, 0);
        while at < self.text.len() {
            let (class, length) = self.classes.at(self.text, at);
            if !is_white(class) {
                break;
            }
            last = at;
            at += length;
            if class == NEWLINE {
                line = at;
            }
        }
        (at, last, line)
    }

    /// The end of the piece that begins at `at`: see [`GPT2`]. `alone`: numbers are pieces of their own, and ends of the text
    /// for those before.
    #[inline(always)]
    fn gpt2(&self, at: usize, alone: bool) -> usize {
        let text = self.text;
        let (class, length) = self.classes.at(text, at);
        if text[at] == b'\''
            && let Some(end) = self.contraction(at, false)
        {
            return end;
        }
        if !is_white(class) {
            return if alone && class == NUMBER { at + length } else { self.end_of(class, at + length) };
        }
        if text[at] == b' ' && at + 1 < text.len() {
            let (next, length) = self.classes.at(text, at + 1);
            if !is_white(next) {
                return if alone && next == NUMBER { at + 1 } else { self.end_of(next, at + 1 + length) };
            }
        }
        let (end, last, _) = self.white(at);
        let is_last = end == text.len() || (alone && self.classes.at(text, end).0 == NUMBER);
        if is_last || last == at { end } else { last }
    }

    /// The end of the piece that begins at `at`: see [`LLAMA3`], with up to `digits` numbers in a piece. `trailing`: white
    /// space at the end of the text is one piece, see [`CL100K`].
    #[inline(always)]
    fn llama3(&self, at: usize, digits: usize, trailing: bool) -> usize {
        let text = self.text;
        let (class, length) = self.classes.at(text, at);
        if text[at] == b'\''
            && let Some(end) = self.contraction(at, true)
        {
            return end;
        }
        match class {
            LETTER => return self.end_of(LETTER, at + length),
            NUMBER => {
                let mut end = at + length;
                for _ in 1..digits {
                    match text.get(end).map(|_| self.classes.at(text, end)) {
                        Some((NUMBER, length)) => end += length,
                        _ => break,
                    }
                }
                return end;
            }
            OTHER | SPACE => {
                let next = if at + length < text.len() { Some(self.classes.at(text, at + length)) } else { None };
                match next {
                    Some((LETTER, next)) => return self.end_of(LETTER, at + length + next),
                    Some((OTHER, next)) if class == OTHER || text[at] == b' ' => {
                        return self.end_of(NEWLINE, self.end_of(OTHER, at + length + next));
                    }
                    _ if class == OTHER => return self.end_of(NEWLINE, at + length),
                    _ => {}
                }
            }
            _ => {}
        }
        let (end, last, line) = self.white(at);
        if trailing && end == text.len() {
            end
        } else if line > 0 {
            line
        } else if end == text.len() || last == at {
            end
        } else {
            last
        }
    }

    /// The end of `'s`, `'t`, `'re`, `'ve`, `'m`, `'ll` or `'d` at `at`, where there is an apostrophe; `folded`: of any case.
    #[inline]
    fn contraction(&self, at: usize, folded: bool) -> Option<usize> {
        let fold = |byte: u8| if folded { byte.to_ascii_lowercase() } else { byte };
        let second = self.text.get(at + 2).copied();
        match (fold(*self.text.get(at + 1)?), second) {
            (b's' | b't' | b'm' | b'd', _) => Some(at + 2),
            (b'r' | b'v', Some(e)) if fold(e) == b'e' => Some(at + 3),
            (b'l', Some(l)) if fold(l) == b'l' => Some(at + 3),
            (0xc5, Some(0xbf)) if folded => Some(at + 3), // the long s, whose upper case is S
            _ => None,
        }
    }
}
