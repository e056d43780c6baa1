//! Laws of the folder of compiled kernels.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod common;

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::time::{Duration, SystemTime};

use octavo_cuda::arch::{Arch, Target};
use octavo_cuda::cache::{Cache, Key};
use octavo_cuda::nvrtc::Image;
use octavo_cuda::settings::Keep;
use octavo_cuda::{Error, Program};

use common::program;

const TARGET: Target = Target::Cubin(Arch::native(90));

fn key(name: &str) -> Key {
    let mut made = program("p", &[("a.cu", "code")], &["e"]);
    made.defines.push(("NAME", name.to_owned()));
    Key::new(&made, TARGET, (13, 2))
}

fn image(bytes: usize) -> Image {
    Image { code: (0..bytes).map(|at| (at * 7) as u8).collect(), log: "ptxas: é\n".to_owned() }
}

fn open(folder: &Path) -> Cache {
    Cache::open(&Keep::Folder(folder.to_owned())).unwrap()
}

fn only_file(folder: &Path) -> std::path::PathBuf {
    let files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    files.into_iter().next().unwrap()
}

#[test]
fn what_is_kept_is_read_back_by_another_process() {
    let folder = tempfile::tempdir().unwrap();
    let inside = folder.path().join("made").join("on the way");
    let cache = open(&inside);
    assert_eq!(cache.get(&key("x")), None);
    cache.put(&key("x"), &image(5000));
    assert_eq!(open(&inside).get(&key("x")), Some(image(5000)));
    assert_eq!(open(&inside).get(&key("y")), None);
    assert_eq!(cache.size().0, 1);
    assert_eq!(fs::metadata(&inside).unwrap().permissions().mode() & 0o777, 0o700);
}

#[test]
fn everything_that_decides_the_code_is_in_the_key() {
    let plain = |files: &'static [(&'static str, &'static str)], defines: Vec<(&'static str, String)>| Program {
        defines,
        ..program("p", files, &["e"])
    };
    let base = plain(&[("a.cu", "x")], vec![("N", "1".to_owned())]);
    let keys = [
        Key::new(&base, TARGET, (13, 2)),
        Key::new(&base, TARGET, (13, 0)),
        Key::new(&base, Target::Cubin(Arch { capability: 90, specific: false }), (13, 2)),
        Key::new(&base, Target::Ptx(90), (13, 2)),
        Key::new(&plain(&[("a.cu", "y")], vec![("N", "1".to_owned())]), TARGET, (13, 2)),
        Key::new(&plain(&[("a.cu", "x")], vec![("N", "2".to_owned())]), TARGET, (13, 2)),
    ];
    let mut hex: Vec<String> = keys.iter().map(Key::hex).collect();
    hex.sort();
    hex.dedup();
    assert_eq!(hex.len(), keys.len());
    assert!(Key::new(&base.clone(), TARGET, (13, 2)) == keys[0]);
}

#[test]
fn an_entry_with_one_wrong_bit_or_length_is_no_entry() {
    let folder = tempfile::tempdir().unwrap();
    let cache = open(folder.path());
    cache.put(&key("x"), &image(64));
    let path = only_file(folder.path());
    let whole = fs::read(&path).unwrap();
    for at in 0..whole.len() {
        let mut wrong = whole.clone();
        wrong[at] ^= 1 << (at % 8);
        fs::write(&path, &wrong).unwrap();
        assert_eq!(cache.get(&key("x")), None, "byte {at}");
    }
    for length in [0, 5, 16, 47, 48, 55, whole.len() - 1] {
        fs::write(&path, &whole[..length]).unwrap();
        assert_eq!(cache.get(&key("x")), None, "length {length}");
    }
    fs::write(&path, [&whole[..], b"\0"].concat()).unwrap();
    assert_eq!(cache.get(&key("x")), None);
    cache.put(&key("x"), &image(64)); // and is replaced by a whole one
    assert_eq!(cache.get(&key("x")), Some(image(64)));
}

#[test]
fn a_folder_that_others_can_write_to_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for mode in [0o777, 0o770, 0o702] {
        fs::set_permissions(folder.path(), Permissions::from_mode(mode)).unwrap();
        let named = Cache::open(&Keep::Folder(folder.path().to_owned()));
        assert!(matches!(&named, Err(Error::Setting(text)) if text.contains("chmod 700")), "{named:?}");
        let default = Cache::open(&Keep::Default(folder.path().to_owned())).unwrap();
        assert!(default.folder().is_none());
        assert!(default.why_not.as_ref().unwrap().contains("others can write"), "{default:?}");
        default.put(&key("x"), &image(10));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    open(folder.path());
}

#[test]
fn a_link_or_file_in_place_of_the_folder_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let link = folder.path().join("link");
    symlink(folder.path(), &link).unwrap();
    assert!(matches!(Cache::open(&Keep::Folder(link)), Err(Error::Setting(_))));
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let default = Cache::open(&Keep::Default(file.join("cubin"))).unwrap();
    assert!(default.why_not.unwrap().contains("cannot be made"));
}

#[test]
fn what_cannot_be_written_is_only_read() {
    let folder = tempfile::tempdir().unwrap();
    open(folder.path()).put(&key("x"), &image(10));
    fs::set_permissions(folder.path(), Permissions::from_mode(0o500)).unwrap();
    let cache = open(folder.path());
    assert_eq!(cache.get(&key("x")), Some(image(10)));
    cache.put(&key("y"), &image(10)); // no error; kept where the user may write anywhere
    fs::set_permissions(folder.path(), Permissions::from_mode(0o700)).unwrap();
    let nowhere = Cache::open(&Keep::Default("/proc/octavo/cubin".into())).unwrap();
    nowhere.put(&key("x"), &image(10));
    assert_eq!((nowhere.get(&key("x")), nowhere.size()), (None, (0, 0)));
    let off = Cache::open(&Keep::Off("a test")).unwrap();
    assert_eq!(off.why_not.as_deref(), Some("a test"));
}

#[test]
fn writers_beside_each_other_leave_whole_entries() {
    let folder = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let cache = open(folder.path());
                for round in 0..20 {
                    cache.put(&key("x"), &image(20_000));
                    assert_eq!(cache.get(&key("x")), Some(image(20_000)), "round {round}");
                }
            });
        }
    });
    only_file(folder.path()); // no temporary files are left
}

#[test]
fn the_folder_stays_below_its_cap_and_loses_what_was_used_longest_ago() {
    let folder = tempfile::tempdir().unwrap();
    let cache = open(folder.path()).with_cap(3500);
    let start = SystemTime::now() - Duration::from_secs(1000);
    for (at, name) in ["a", "b", "c"].into_iter().enumerate() {
        cache.put(&key(name), &image(1000));
        let path = folder.path().join(format!("{}.kernel", key(name).hex()));
        fs::File::open(path).unwrap().set_modified(start + Duration::from_secs(at as u64)).unwrap();
    }
    assert!(cache.get(&key("a")).is_some()); // and so b is the oldest
    cache.put(&key("d"), &image(1000));
    let left = ["a", "b", "c", "d"].map(|name| cache.get(&key(name)).is_some());
    assert_eq!(left, [true, false, true, true]);
    assert!(cache.size().1 <= 3500);
}
