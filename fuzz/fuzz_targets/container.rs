//! Any bytes as a container, and as the header of one: refused or read, and what is read can be written again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use octavo_core::container::{Entry, Index, Packing, Reader, Writer};
use octavo_core::{Error, sparse};

fuzz_target!(|data: &[u8]| {
    match Reader::from_memory(data.to_vec()) {
        Ok(reader) => {
            let mut covered = 0;
            for (stored, part) in reader.index().parts() {
                let mut out = vec![0; part.bytes];
                reader.read_into(stored, &mut out).expect("a checked part is there");
                covered += part.bytes as u64;
            }
            assert!(covered < reader.index().file_bytes());
            expand(&reader);
            assert_eq!(reader.index().file_bytes(), data.len() as u64);
            rewrite(reader.index());
        }
        Err(Error::Container(_)) => {}
        Err(error) => panic!("another error: {error}"),
    }
    // Without the length in front, mutations of the header are not refused for their length alone.
    if let Some((&data_bytes, header)) = data.split_first() {
        match Index::parse(header, data_bytes.into()) {
            Ok(index) => rewrite(&index),
            Err(Error::Container(_)) => {}
            Err(error) => panic!("another error: {error}"),
        }
    }
});

/// Sparse codes are refused or expanded.
fn expand(reader: &Reader) {
    for (name, entry) in reader.index().entries() {
        let Entry::Packed(packing @ Packing { nonzero: Some(nonzero), .. }) = entry else { continue };
        let bytes = |suffix: &str| {
            let part = reader.index().part(&format!("{name}{suffix}")).expect("a checked part is there");
            let mut out = vec![0; part.bytes];
            reader.read_into(&format!("{name}{suffix}"), &mut out).expect("a checked part is there");
            out
        };
        let bitmap: Vec<u64> = bytes(".bitmap").as_chunks().0.iter().map(|&word| u64::from_le_bytes(word)).collect();
        let matrix = packing.matrix().expect("a checked shape");
        match sparse::expanded(&bytes(".codes"), &bitmap, *nonzero, packing.format.width(), matrix) {
            Ok(_) | Err(Error::Shape(_)) => {}
            Err(error) => panic!("another error: {error}"),
        }
    }
}

/// A file with the same entries has the same index, but for the places of its bytes.
fn rewrite(index: &Index) {
    let entries: Vec<(String, Entry)> =
        index.entries().iter().map(|(name, entry)| (name.clone(), entry.clone())).collect();
    let writer = Writer::in_memory(&entries, index.metadata()).expect("what was read can be written");
    assert_eq!(writer.index().entries(), index.entries());
    assert_eq!(writer.index().metadata(), index.metadata());
    assert!(writer.index().is_octavo());
    for (stored, part) in index.parts() {
        let again = writer.index().part(stored).expect("every part is written again");
        assert_eq!((again.dtype, &again.shape, again.bytes), (part.dtype, &part.shape, part.bytes));
    }
}
