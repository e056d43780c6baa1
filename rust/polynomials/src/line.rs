//! Encodes a line to ids and decodes ids to a line; the errors of a line.

use octavo_core::text::characters::{CharTokenizer, PAD, SPECIALS};

/// Characters of the vocabulary that a message shows.
const MOST_SHOWN: usize = 64;

/// What is wrong with one line; it affects no other line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LineError {
    /// Nothing to expand.
    #[error("empty line; accepted are 1 to {limit} characters")]
    Empty {
        /// Most characters of a line.
        limit: usize,
    },
    /// More characters than the model takes.
    #[error("{length} characters; accepted are 1 to {limit}")]
    TooLong {
        /// Characters of the line.
        length: usize,
        /// Most characters of a line.
        limit: usize,
    },
    /// A character that the model does not know.
    #[error("column {column}: character {character:?} is not in the vocabulary; allowed are {allowed}")]
    Unknown {
        /// Position of the character, counted from 1.
        column: usize,
        /// The character.
        character: char,
        /// The vocabulary.
        allowed: String,
    },
    /// Bytes that are no text.
    #[error("column {column}: broken UTF-8 at byte 0x{byte:02x}")]
    BrokenUtf8 {
        /// Position of the first wrong byte, in characters, counted from 1.
        column: usize,
        /// The byte.
        byte: u8,
    },
}

/// The characters of a model as lines hold them.
#[derive(Debug)]
pub(crate) struct Alphabet {
    /// Ascending: number i has the id `SPECIALS + i`.
    characters: Vec<char>,
    /// The id of each ASCII character; [`PAD`] for those that have none.
    ascii: [u8; 128],
    /// Most characters of a line.
    limit: usize,
}

impl Alphabet {
    pub(crate) fn new(tokenizer: &CharTokenizer, limit: usize) -> Self {
        let characters = tokenizer.characters().to_vec();
        let mut ascii = [PAD; 128];
        for (at, &character) in characters.iter().enumerate() {
            if let Some(id) = ascii.get_mut(character as usize) {
                *id = (SPECIALS + at) as u8;
            }
        }
        Self { characters, ascii, limit }
    }

    /// Most characters of a line.
    pub(crate) const fn limit(&self) -> usize {
        self.limit
    }

    /// Appends the ids of a line.
    pub(crate) fn encode(&self, line: &str, ids: &mut Vec<u8>) -> Result<(), LineError> {
        let start = ids.len();
        for character in line.chars().take(self.limit) {
            match self.id(character) {
                Some(id) => ids.push(id),
                None => {
                    let column = ids.len() - start + 1;
                    ids.truncate(start);
                    // Both may be wrong; that the line is too long is what is said first.
                    self.check_length(line.chars().count())?;
                    return Err(LineError::Unknown { column, character, allowed: self.shown() });
                }
            }
        }
        let length = if ids.len() - start < self.limit { ids.len() - start } else { line.chars().count() };
        self.check_length(length).inspect_err(|_| ids.truncate(start))
    }

    /// Checks the number of characters of a line.
    pub(crate) fn check_length(&self, length: usize) -> Result<(), LineError> {
        let limit = self.limit;
        match length {
            0 => Err(LineError::Empty { limit }),
            _ if length > limit => Err(LineError::TooLong { length, limit }),
            _ => Ok(()),
        }
    }

    /// True for a character of the vocabulary.
    pub(crate) fn knows(&self, character: char) -> bool {
        self.id(character).is_some()
    }

    /// The text of ids; special ones are skipped.
    pub(crate) fn decode(&self, ids: &[u8], text: &mut String) {
        let characters = ids.iter().filter_map(|&id| self.characters.get(usize::from(id).checked_sub(SPECIALS)?));
        text.extend(characters);
    }

    fn id(&self, character: char) -> Option<u8> {
        match self.ascii.get(character as usize) {
            Some(&id) => (id != PAD).then_some(id),
            None => self.characters.binary_search(&character).ok().map(|at| (SPECIALS + at) as u8),
        }
    }

    /// The vocabulary for messages, cut where it is long.
    fn shown(&self) -> String {
        let text: String = self.characters.iter().take(MOST_SHOWN).collect();
        let more = self.characters.len().saturating_sub(MOST_SHOWN);
        if more == 0 { format!("{text:?}") } else { format!("{text:?} and {more} more") }
    }
}

/// Text from bytes, with the place of the first that is wrong.
pub(crate) fn utf8(line: &[u8]) -> Result<&str, LineError> {
    std::str::from_utf8(line).map_err(|error| {
        let (good, bad) = line.split_at(error.valid_up_to());
        let column = 1 + characters(good);
        LineError::BrokenUtf8 { column, byte: bad.first().copied().unwrap_or_default() }
    })
}

/// Characters of a UTF-8 text: bytes that begin one.
pub(crate) fn characters(bytes: &[u8]) -> usize {
    bytes.iter().filter(|&&byte| byte & 0xc0 != 0x80).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_ids_and_back_or_say_what_is_wrong() {
        let alphabet = Alphabet::new(&CharTokenizer::from_characters("abé").unwrap(), 4);
        let mut ids = vec![9];
        alphabet.encode("aéb", &mut ids).unwrap();
        assert_eq!(ids, [9, 3, 5, 4]);
        let mut text = String::new();
        alphabet.decode(&[0, 1, 3, 5, 4, 2, 200], &mut text);
        assert_eq!(text, "aéb");
        for (line, message) in [
            ("", "empty line; accepted are 1 to 4 characters"),
            ("ababa", "5 characters; accepted are 1 to 4"),
            ("axaba", "5 characters; accepted are 1 to 4"),
            ("éx", "column 2: character 'x' is not in the vocabulary; allowed are \"abé\""),
            ("aa\n", "column 3: character '\\n' is not in the vocabulary; allowed are \"abé\""),
        ] {
            assert_eq!(alphabet.encode(line, &mut ids).unwrap_err().to_string(), message);
            assert_eq!(ids.len(), 4, "{line}");
        }
        assert_eq!(utf8(b"\xc3\xa9a\xffb").unwrap_err().to_string(), "column 3: broken UTF-8 at byte 0xff");
    }
}
