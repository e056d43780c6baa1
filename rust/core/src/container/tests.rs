//! Laws of the container. Hostile files are refused with a message that says why, and nothing panics.

use std::collections::BTreeMap;
use std::path::Path;

use proptest::prelude::*;

use super::{Dtype, Entry, Packing, Reader, Writer, header};
use crate::codec::{DType, Layout, Packed, ScaleRule, Sizes};
use crate::error::{Error, Result};
use crate::format::{Format, catalogue};

type Entries = Vec<(String, Entry)>;

/// Bytes that depend on the stored name, so that no part can be mistaken for another.
fn content(stored: &str, bytes: usize) -> Vec<u8> {
    let seed = stored.bytes().fold(7u8, |all, byte| all.wrapping_mul(31).wrapping_add(byte));
    (0..bytes).map(|at| seed.wrapping_add(at as u8)).collect()
}

fn fill(mut writer: Writer) -> Result<Option<Vec<u8>>> {
    let index = writer.index().clone();
    for (name, entry) in index.entries() {
        let of = |stored: &str| index.part(stored).map_or(Vec::new(), |part| content(stored, part.bytes));
        match entry {
            Entry::Plain { .. } => writer.put_plain(name, &of(name))?,
            Entry::Packed(_) => {
                let parts = ["codes", "scales", "zeros", "levels"].map(|part| of(&format!("{name}.{part}")));
                let [codes, scales, zeros, levels] = parts.each_ref().map(Vec::as_slice);
                let bitmap = if index.parts_of(name).any(|(part, _)| part.ends_with(".bitmap")) {
                    of(&format!("{name}.bitmap"))
                } else {
                    Vec::new() // a plain tensor may have that name
                };
                writer.put_sparse(name, Packed { codes, scales, zeros, levels }, &bitmap)?;
            }
        }
    }
    writer.finish()
}

fn bytes_of(entries: &Entries) -> Result<Vec<u8>> {
    let metadata = BTreeMap::from([("note".to_owned(), "käse".to_owned())]);
    Ok(fill(Writer::in_memory(entries, &metadata)?)?.unwrap())
}

fn packed(name: &str, format: &str, shape: &[usize], axis: usize) -> (String, Entry) {
    let format = Format::parse(format).unwrap();
    let packing =
        Packing { format, scale: ScaleRule::Ceil, shape: shape.to_vec(), dtype: DType::BF16, axis, nonzero: None };
    (name.to_owned(), Entry::Packed(packing))
}

/// A packed tensor whose codes are sparse.
fn sparse(name: &str, format: &str, shape: &[usize], axis: usize, nonzero: u64) -> (String, Entry) {
    match packed(name, format, shape, axis) {
        (name, Entry::Packed(packing)) => (name, Entry::Packed(Packing { nonzero: Some(nonzero), ..packing })),
        plain => plain,
    }
}

fn plain(name: &str, dtype: Dtype, shape: &[usize]) -> (String, Entry) {
    (name.to_owned(), Entry::Plain { dtype, shape: shape.to_vec() })
}

fn small() -> Entries {
    vec![
        packed("w", "nvfp4", &[2, 20], 1),
        sparse("s", "int6:g32", &[20, 6], 1, 9),
        packed("u", "uint4:g32", &[3], 0),
        plain("b", Dtype::I64, &[2]),
    ]
}

/// Every entry of a reader has the content that [`fill`] gave it.
fn assert_content(reader: &Reader) {
    for (stored, part) in reader.index().parts() {
        let mut out = vec![0; part.bytes];
        reader.read_into(stored, &mut out).unwrap();
        assert_eq!(out, content(stored, part.bytes), "{stored}");
    }
}

fn dtypes() -> impl Strategy<Value = Dtype> {
    use Dtype::*;
    prop::sample::select(vec![BOOL, U8, I8, F8_E4M3, F8_E8M0, I16, BF16, F32, C64, F64, U64])
}

fn entries() -> impl Strategy<Value = Entries> {
    let shape = || prop::collection::vec(0usize..40, 1..4);
    let a_plain = (dtypes(), shape()).prop_map(|(dtype, shape)| plain("", dtype, &shape).1);
    let a_packed = (prop::sample::select(catalogue().to_vec()), shape(), any::<prop::sample::Index>())
        .prop_map(|(format, shape, axis)| packed("", format, &shape, axis.index(shape.len())).1);
    let a_sparse =
        (prop::sample::select(vec!["int8:g32", "mxfp4", "mxfp6e3m2", "int5"]), shape(), any::<prop::sample::Index>())
            .prop_map(|(format, shape, of)| {
                sparse("", format, &shape, 0, of.index(shape.iter().product::<usize>() + 1) as u64).1
            });
    prop::collection::btree_map("[a-z.äß\"\\\\ ]{0,9}", prop_oneof![a_plain, a_packed, a_sparse], 0..6)
        .prop_map(|all| all.into_iter().collect())
}

proptest! {
    #[test]
    fn what_is_written_is_read_back_from_file_mapping_and_memory(entries in entries()) {
        let Ok(bytes) = bytes_of(&entries) else { return Ok(()) }; // names may clash
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.safetensors");
        let metadata = BTreeMap::from([("note".to_owned(), "käse".to_owned())]);
        fill(Writer::create(&path, &entries, &metadata, false).unwrap()).unwrap();
        prop_assert_eq!(&std::fs::read(&path).unwrap(), &bytes);
        let memory = Reader::from_memory(bytes.clone()).unwrap();
        for reader in [&memory, &Reader::open(&path, false).unwrap(), &Reader::open(&path, true).unwrap()] {
            prop_assert_eq!(reader.index(), memory.index());
            prop_assert_eq!(reader.index().metadata(), &metadata);
            prop_assert_eq!(reader.index().file_bytes(), bytes.len() as u64);
            prop_assert_eq!(reader.index().entries(), &entries.iter().cloned().collect());
            assert_content(reader);
        }
    }

    #[test]
    fn the_order_of_entries_does_not_change_the_file(entries in entries()) {
        let reversed: Entries = entries.iter().rev().cloned().collect();
        prop_assert_eq!(bytes_of(&entries).ok(), bytes_of(&reversed).ok());
    }

    #[test]
    fn changed_bytes_never_panic(at in prop::collection::vec((0usize..2000, any::<u8>()), 1..4)) {
        let mut bytes = bytes_of(&small()).unwrap();
        for (at, byte) in at {
            let at = at % bytes.len();
            bytes[at] = byte;
        }
        if let Ok(reader) = Reader::from_memory(bytes) {
            for (stored, part) in reader.index().parts() {
                reader.read_into(stored, &mut vec![0; part.bytes]).unwrap();
            }
        }
    }

    #[test]
    fn any_json_header_is_refused_or_read(text in "\\{(\"[a-c]\":)?[\\[\\]{}\",:0-9a-z_]{0,60}", data in 0u64..64) {
        let _ = header::parse(text.as_bytes(), data);
    }
}

#[test]
fn every_truncation_and_extension_is_refused() {
    let bytes = bytes_of(&small()).unwrap();
    assert_content(&Reader::from_memory(bytes.clone()).unwrap());
    for length in 0..bytes.len() {
        let error = Reader::from_memory(bytes[..length].to_vec()).unwrap_err();
        assert!(matches!(error, Error::Container(_)), "{length} bytes: {error}");
    }
    let longer = [bytes, vec![0]].concat();
    assert!(Reader::from_memory(longer).unwrap_err().to_string().contains("bytes of data"));
}

#[test]
fn files_are_of_the_second_version_where_codes_are_sparse_alone() {
    let version = |entries: &Entries| {
        let bytes = bytes_of(entries).unwrap();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        ["1", "2"].into_iter().filter(|v| text.contains(&format!("\"octavo.version\":\"{v}\""))).collect::<String>()
    };
    assert_eq!(version(&small()), "2");
    assert_eq!(version(&vec![packed("w", "int8", &[4], 0), plain("w.bitmap", Dtype::U8, &[3])]), "1");
    let older = bytes_of(&small()).unwrap();
    let at = older.windows(20).position(|text| text == b"\"octavo.version\":\"2\"").unwrap();
    let mut older = older;
    older[at + 18] = b'1';
    let text = Reader::from_memory(older).unwrap_err().to_string();
    assert_eq!(text, "s: has 'nonzero', sparse codes, in a file of version 1, which has none");
}

#[test]
fn sparse_codes_that_cannot_be_are_refused() {
    for (entries, wanted) in [
        (vec![sparse("w", "nf4", &[2, 64], 1, 3)], "sparse codes of 'nf4'; accepted are formats of up to 8 bits"),
        (vec![sparse("w", "uint8:g32", &[2, 64], 1, 3)], "without zero points"),
        (vec![sparse("w", "int12", &[2, 64], 1, 3)], "up to 8 bits"),
        (vec![sparse("w", "int8", &[2, 64], 1, 129)], "129 codes that are not 0 in 128 elements"),
        (
            vec![sparse("w", "int8", &[2, 64], 1, 3), plain("w.bitmap", Dtype::U8, &[1])],
            "both are stored as 'w.bitmap'",
        ),
    ] {
        let error = bytes_of(&entries).unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
    }
}

#[test]
fn parts_take_the_bytes_that_the_codec_writes() {
    for text in catalogue() {
        for shape in [vec![], vec![0], vec![7], vec![3, 8], vec![2, 0], vec![0, 5], vec![2, 3, 33]] {
            for axis in 0..shape.len().max(1) {
                let (_, entry) = packed("", text, &shape, axis);
                let Entry::Packed(packing) = entry else { unreachable!() };
                let Ok(layout) = Layout::new(&shape, axis as isize, packing.format) else { continue };
                let sizes = Sizes::new(packing.format, &layout).unwrap();
                for part in packing.demands("").unwrap() {
                    let bytes = match part.suffix {
                        ".codes" => sizes.codes,
                        ".scales" => sizes.scales,
                        ".zeros" => sizes.zeros,
                        _ => sizes.levels,
                    };
                    let found = header::byte_length(part.dtype, &part.shape);
                    assert_eq!(found, Some(bytes as u64), "'{text}' of {shape:?} along {axis}: {}", part.suffix);
                }
            }
        }
    }
}

#[test]
fn other_readers_and_writers_of_safetensors_are_understood() {
    let ours = bytes_of(&small()).unwrap();
    let theirs = safetensors::SafeTensors::deserialize(&ours).unwrap();
    assert_eq!(theirs.tensor("w.codes").unwrap().dtype(), Dtype::F4);
    assert_eq!(theirs.tensor("w.codes").unwrap().shape(), [2, 20]);
    assert_eq!(theirs.tensor("w.scales").unwrap().data(), content("w.scales", 4));
    let data = [1u8, 2, 3, 4];
    let view = safetensors::tensor::TensorView::new(Dtype::U16, vec![2], &data).unwrap();
    let reader = Reader::from_memory(safetensors::serialize([("x", view)], None).unwrap()).unwrap();
    assert!(!reader.index().is_octavo());
    let mut out = [0; 2];
    reader.read_range("x", 1, &mut out).unwrap();
    assert_eq!(out, [2, 3]);
    assert!(matches!(reader.read_range("x", 3, &mut out), Err(Error::Shape(_))));
}

#[test]
fn large_tensors_are_read_whole_and_a_shrunken_file_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x");
    let entries = vec![plain("x", Dtype::U8, &[(9 << 20) + 1]), plain("y", Dtype::U8, &[5])];
    fill(Writer::create(&path, &entries, &BTreeMap::new(), true).unwrap()).unwrap();
    let reader = Reader::open(&path, false).unwrap();
    assert_content(&reader);
    std::fs::File::options().write(true).open(&path).unwrap().set_len(8 << 20).unwrap();
    let error = reader.read_into("x", &mut vec![0; (9 << 20) + 1]).unwrap_err();
    assert!(error.to_string().contains("x: the file has become shorter"), "{error}");
}

fn names(directory: &Path) -> Vec<String> {
    let mut all: Vec<_> =
        std::fs::read_dir(directory).unwrap().map(|at| at.unwrap().file_name().into_string().unwrap()).collect();
    all.sort();
    all
}

#[test]
fn a_file_appears_complete_or_not_at_all() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x");
    let create = |overwrite| Writer::create(&path, &small(), &BTreeMap::new(), overwrite);
    let mut writer = create(true).unwrap();
    writer.put_plain("b", &[0; 16]).unwrap();
    assert!(matches!(writer.put_plain("b", &[0; 15]), Err(Error::Shape(_))));
    assert!(writer.put_plain("b", &[0; 16]).unwrap_err().to_string().contains("given twice"));
    assert!(writer.put_plain("w", &[]).unwrap_err().to_string().contains("not announced as a plain"));
    assert!(!path.exists());
    assert!(writer.finish().unwrap_err().to_string().contains("never given"));
    assert_eq!(names(directory.path()), [""; 0]);

    std::fs::write(&path, b"old").unwrap();
    drop(create(true).unwrap());
    assert_eq!(std::fs::read(&path).unwrap(), b"old");
    let refused =
        |error: Error| matches!(error, Error::Io { source, .. } if source.kind() == std::io::ErrorKind::AlreadyExists);
    assert!(refused(create(false).unwrap_err()));
    std::fs::remove_file(&path).unwrap();
    let late = create(false).unwrap();
    std::fs::write(&path, b"somebody else").unwrap();
    assert!(refused(fill(late).unwrap_err()));
    assert_eq!(std::fs::read(&path).unwrap(), b"somebody else");
    fill(create(true).unwrap()).unwrap();
    assert_content(&Reader::open(&path, true).unwrap());
    assert_eq!(names(directory.path()), ["x"]);
}

#[test]
fn names_that_clash_are_refused_before_anything_is_written() {
    let codes = || plain("w.codes", Dtype::U8, &[1]);
    for (entries, wanted) in [
        (vec![packed("w", "int8", &[4], 0), codes()], "both are stored as 'w.codes'"),
        (vec![codes(), packed("w", "int8", &[4], 0)], "both are stored as 'w.codes'"),
        (
            vec![packed("w", "int8", &[4], 0), plain("w.zeros", Dtype::U8, &[1])],
            "'int8' has no zeros, the file has zeros",
        ),
        (vec![packed("w", "int8", &[4], 0), plain("w", Dtype::U8, &[1])], "is stored both packed and plain"),
        (vec![plain("w", Dtype::U8, &[1]), plain("w", Dtype::U8, &[1])], "both are stored as 'w'"),
        (vec![packed("w", "int8", &[4], 0), packed("w", "int8", &[4], 0)], "is given twice"),
        (vec![plain("__metadata__", Dtype::U8, &[1])], "safetensors reserves"),
        (vec![plain(&"n".repeat(1025), Dtype::U8, &[1])], "accepted are up to 1024"),
        (vec![plain("w", Dtype::F4, &[3])], "does not fill whole bytes"),
        (vec![plain("w", Dtype::U8, &[1; 9])], "more than 8 dimensions"),
        (vec![packed("w", "mxint8", &[], 0)], "needs at least 1 dimension"),
    ] {
        let error = bytes_of(&entries).unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
    }
    let reserved = BTreeMap::from([("octavo.x".to_owned(), String::new())]);
    assert!(Writer::in_memory(&[], &reserved).unwrap_err().to_string().contains("are reserved"));
    let (unrelated, plainly) = (plain("v.codes", Dtype::U8, &[1]), plain("v.scales", Dtype::U8, &[1]));
    assert!(bytes_of(&vec![packed("w", "int8", &[4], 0), unrelated, plainly]).is_ok());
}
