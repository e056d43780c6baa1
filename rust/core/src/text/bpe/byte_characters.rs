//! The characters by which files of GPT-2's kind write bytes: printable ones stand for themselves, the other 68 for
//! characters from U+0100 on.

/// True for bytes that stand for themselves.
const fn is_printable(byte: u8) -> bool {
    matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff)
}

/// The character of a byte.
pub(super) fn of_byte(byte: u8) -> char {
    if is_printable(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|&other| !is_printable(other)).count() as u32;
    char::from_u32(0x100 + before).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// The byte of each character below U+0144.
pub(super) struct Bytes([Option<u8>; 0x144]);

impl Bytes {
    /// The table.
    pub(super) fn new() -> Self {
        let mut table = [None; 0x144];
        for byte in 0..=u8::MAX {
            if let Some(place) = table.get_mut(of_byte(byte) as usize) {
                *place = Some(byte);
            }
        }
        Self(table)
    }

    /// The bytes that a text writes down, none where one of its characters stands for no byte.
    pub(super) fn of(&self, text: &str) -> Option<Vec<u8>> {
        text.chars().map(|character| self.0.get(character as usize).copied().flatten()).collect()
    }
}

/// The text that writes bytes down.
pub(super) fn text(bytes: &[u8], characters: &[char; 256]) -> String {
    bytes.iter().filter_map(|&byte| characters.get(usize::from(byte))).collect()
}

/// The characters of all bytes.
pub(super) fn all() -> [char; 256] {
    std::array::from_fn(|byte| of_byte(byte as u8))
}
