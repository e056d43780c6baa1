//! Digests of tensors: the metadata of a model folder's file state one for each, so that a tensor whose bytes were damaged,
//! or are those of another tensor, is found. FORMATS.md section 5, "Models".

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects, clippy::cast_possible_truncation)]

use std::collections::BTreeMap;

use xxhash_rust::xxh3::Xxh3;

use super::read::Reader;
use super::{refuse_tensor, shown};
use crate::error::{ContainerError, Result, TensorFault};
use crate::pool;

/// Key of the metadata: a JSON object of [`digest`]s by the names of tensors.
pub const DIGESTS: &str = "digests";
/// Bytes that are read and digested at a time: they stay in the L2 cache.
const PIECE_BYTES: usize = 1 << 18;

/// The digest of a tensor: XXH3 with 64 bits over the bytes of its parts in the order codes, scales, zeros, levels, bitmap,
/// or over those of a plain tensor; 16 hexadecimal digits. It finds accidents: whoever changes bytes on purpose changes it.
pub fn digest<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut state = Xxh3::new();
    parts.into_iter().for_each(|part| state.update(part));
    text(&state)
}

fn text(state: &Xxh3) -> String {
    format!("{:016x}", state.digest())
}

impl Reader {
    /// Compares the bytes of all tensors with the digests that the metadata state; a file without them passes. Reads the
    /// whole file, on several threads.
    ///
    /// # Errors
    /// [`crate::Error::Container`] naming the first tensor, by name, whose bytes have another digest, that has none or that
    /// is not in the file; also for metadata that are no digests. [`crate::Error::Io`] where reading fails.
    pub fn verify(&self) -> Result<()> {
        let Some(stated) = self.index().metadata().get(DIGESTS) else { return Ok(()) };
        let mut stated: BTreeMap<String, String> = serde_json::from_str(stated)
            .map_err(|error| self.at_place(ContainerError::Digests(shown(&error.to_string())).into()))?;
        let named: Vec<_> = self.index().entries().keys().map(|name| (name.as_str(), stated.remove(name))).collect();
        if let Some(name) = stated.keys().next() {
            return Err(self.at_place(refuse_tensor(name, TensorFault::Missing)));
        }
        let bytes = usize::try_from(self.index().file_bytes()).unwrap_or(usize::MAX);
        let check = |i: usize| named.get(i).map_or(Ok(()), |(name, stated)| self.check(name, stated.as_deref()));
        pool::map(named.len(), bytes, check)?.into_iter().collect::<Result<()>>().map_err(|error| self.at_place(error))
    }

    fn check(&self, name: &str, stated: Option<&str>) -> Result<()> {
        let Some(stated) = stated else { return Err(refuse_tensor(name, TensorFault::NoDigest)) };
        let mut state = Xxh3::new();
        let mut piece = vec![0; PIECE_BYTES];
        for (stored, part) in self.index().parts_of(name) {
            let mut at = 0;
            while at < part.bytes {
                let count = PIECE_BYTES.min(part.bytes.saturating_sub(at));
                let Some(piece) = piece.get_mut(..count) else { break };
                self.read_range(&stored, at, piece)?;
                state.update(piece);
                at = at.saturating_add(count);
            }
        }
        let found = text(&state);
        if found == stated {
            return Ok(());
        }
        Err(refuse_tensor(name, TensorFault::Digest { found, stated: shown(stated) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::container::{Dtype, Entry, Writer};

    /// A container of plain tensors of the given bytes; `stated`: its digests.
    fn made(tensors: &[(&str, &[u8])], stated: Option<&str>) -> Reader {
        let entries: Vec<_> = (tensors.iter())
            .map(|(name, bytes)| ((*name).to_owned(), Entry::Plain { dtype: Dtype::U8, shape: vec![bytes.len()] }))
            .collect();
        let metadata = stated.map(|text| (DIGESTS.to_owned(), text.to_owned())).into_iter().collect();
        let mut writer = Writer::in_memory(&entries, &metadata).unwrap();
        tensors.iter().for_each(|(name, bytes)| writer.put_plain(name, bytes).unwrap());
        Reader::from_memory(writer.finish().unwrap().unwrap()).unwrap()
    }

    #[test]
    fn the_digest_is_that_of_the_published_algorithm() {
        // Of xxhash 0.8: `printf "" | xxhsum -H3`, `printf abc | xxhsum -H3`.
        assert_eq!(digest([b"".as_slice()]), "2d06800538d394c2");
        assert_eq!(digest([b"abc".as_slice()]), "78af5f94892f3950");
        assert_eq!(digest([b"a".as_slice(), b"", b"bc"]), "78af5f94892f3950");
    }

    #[test]
    fn tensors_in_the_place_of_others_are_found_and_files_without_digests_pass() {
        let (long, other) = (vec![7; (PIECE_BYTES << 1) + 3], vec![8; (PIECE_BYTES << 1) + 3]);
        let right = format!(r#"{{"a":"{}","b":"{}"}}"#, digest([long.as_slice()]), digest([other.as_slice()]));
        made(&[("a", &long), ("b", &other)], Some(&right)).verify().unwrap();
        made(&[("a", &long), ("b", &other)], None).verify().unwrap();
        let only_a = format!(r#"{{"a":"{}"}}"#, digest([long.as_slice()]));
        for (tensors, stated, wanted) in [
            ([("a", &other), ("b", &long)], right.as_str(), "a: its bytes have the digest"),
            ([("a", &long), ("b", &long)], &right, "b: its bytes have the digest"),
            ([("a", &long), ("b", &other)], &only_a, "b: has no digest"),
            ([("a", &long), ("c", &other)], &right, "b: no tensor of this name"),
            ([("a", &long), ("b", &other)], "[]", "digests"),
            ([("a", &long), ("b", &other)], r#"{"a":1}"#, "digests"),
        ] {
            let tensors = tensors.map(|(name, bytes)| (name, bytes.as_slice()));
            let error = made(&tensors, Some(stated)).verify().unwrap_err().to_string();
            assert!(error.contains(wanted), "{error}");
        }
    }
}
