//! Files on every system: bytes at a place in them, and temporary files that get the usual rights.

use std::fs::File;
use std::io;
use std::path::Path;

use tempfile::{Builder, NamedTempFile};

/// Reads all of `out` from byte `offset` on, without moving what other readers of the file see.
///
/// # Errors
/// `UnexpectedEof` where the file ends before, and what the system says.
pub(crate) fn read_exact_at(file: &File, out: &mut [u8], offset: u64) -> io::Result<()> {
    in_pieces(out.len(), offset, io::ErrorKind::UnexpectedEof, |done, offset| match out.get_mut(done..) {
        Some(rest) => read_at(file, rest, offset),
        None => Ok(0),
    })
}

/// Writes all of `data` at byte `offset`.
///
/// # Errors
/// `WriteZero` where the system takes no more, and what the system says.
pub(crate) fn write_all_at(file: &File, data: &[u8], offset: u64) -> io::Result<()> {
    in_pieces(data.len(), offset, io::ErrorKind::WriteZero, |done, offset| match data.get(done..) {
        Some(rest) => write_at(file, rest, offset),
        None => Ok(0),
    })
}

/// A temporary file in `directory`, with the rights that the system gives a new file (under the umask), not the private
/// ones of temporary files.
///
/// # Errors
/// What the system says.
pub(crate) fn temporary(builder: &mut Builder<'_, '_>, directory: &Path) -> io::Result<NamedTempFile> {
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    builder.tempfile_in(directory)
}

/// Calls `step` with the number of bytes done and their place until all are done; a step that does none is the error `end`.
fn in_pieces(
    bytes: usize,
    offset: u64,
    end: io::ErrorKind,
    mut step: impl FnMut(usize, u64) -> io::Result<usize>,
) -> io::Result<()> {
    let mut done = 0_usize;
    while done < bytes {
        match step(done, offset.saturating_add(done as u64)) {
            Ok(0) => return Err(end.into()),
            Ok(more) => done = done.saturating_add(more),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(unix)]
use std::os::unix::fs::FileExt;
#[cfg(windows)]
use std::os::windows::fs::FileExt;

#[cfg(unix)]
fn read_at(file: &File, out: &mut [u8], offset: u64) -> io::Result<usize> {
    file.read_at(out, offset)
}

#[cfg(unix)]
fn write_at(file: &File, data: &[u8], offset: u64) -> io::Result<usize> {
    file.write_at(data, offset)
}

#[cfg(windows)] // it moves the file's cursor, which nobody here uses
fn read_at(file: &File, out: &mut [u8], offset: u64) -> io::Result<usize> {
    file.seek_read(out, offset)
}

#[cfg(windows)]
fn write_at(file: &File, data: &[u8], offset: u64) -> io::Result<usize> {
    file.seek_write(data, offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_whole_wherever_they_lie_and_a_short_file_is_told() {
        let file = tempfile::tempfile().unwrap();
        write_all_at(&file, b"packed", 3).unwrap();
        write_all_at(&file, b"", 90).unwrap();
        let mut out = [1; 9];
        read_exact_at(&file, &mut out, 0).unwrap();
        assert_eq!(&out, b"\0\0\0packed");
        assert_eq!(read_exact_at(&file, &mut out, 1).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        read_exact_at(&file, &mut out[..2], 7).unwrap();
        assert_eq!(&out[..2], b"ed");
    }

    #[test]
    fn short_and_interrupted_steps_are_continued_where_they_ended() {
        let mut seen = Vec::new();
        let step = |done: usize, offset: u64| {
            seen.push((done, offset));
            if seen.len() == 2 { Err(io::ErrorKind::Interrupted.into()) } else { Ok(4.min(10 - done)) }
        };
        in_pieces(10, 100, io::ErrorKind::UnexpectedEof, step).unwrap();
        assert_eq!(seen, [(0, 100), (4, 104), (4, 104), (8, 108)]);
        let end = in_pieces(1, 0, io::ErrorKind::WriteZero, |_, _| Ok(0)).unwrap_err();
        assert_eq!(end.kind(), io::ErrorKind::WriteZero);
    }

    #[cfg(unix)]
    #[test]
    fn a_temporary_file_has_the_rights_of_any_new_file() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let mode = |file: &File| file.metadata().unwrap().permissions().mode();
        let usual = File::create(folder.path().join("usual")).unwrap();
        let file = temporary(&mut Builder::new(), folder.path()).unwrap();
        assert_eq!(mode(file.as_file()), mode(&usual));
    }
}
