//! Tokenizers of text: from characters to the ids that a model reads.

pub mod bpe;
pub mod characters;
pub mod wordpiece;
