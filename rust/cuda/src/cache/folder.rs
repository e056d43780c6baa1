//! Checks that a folder may hold code that will run: only its owner can write to it.

use std::path::Path;

/// Why a folder is not used.
pub(super) enum Refusal {
    /// Others could put code there.
    #[cfg_attr(not(unix), expect(dead_code, reason = "nobody is asked there"))]
    Unsafe(String),
    /// It is not there and cannot be made.
    Unusable(String),
}

/// Makes the folder, for its owner alone, and checks that nobody else can write to it.
#[cfg(unix)]
pub(super) fn prepare(folder: &Path) -> Result<(), Refusal> {
    use std::fs::{self, DirBuilder};
    use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
    let shown = folder.display();
    if let Err(error) = DirBuilder::new().recursive(true).mode(0o700).create(folder) {
        return Err(Refusal::Unusable(format!("{shown} cannot be made: {error}")));
    }
    let facts = fs::symlink_metadata(folder).map_err(|error| Refusal::Unusable(format!("{shown}: {error}")))?;
    if !facts.is_dir() {
        return Err(Refusal::Unsafe(format!("{shown} is not a folder itself")));
    }
    if facts.uid() != user() && facts.uid() != 0 {
        return Err(Refusal::Unsafe(format!(
            "{shown} belongs to user {}, this process to user {}",
            facts.uid(),
            user()
        )));
    }
    if facts.mode() & 0o022 != 0 {
        return Err(Refusal::Unsafe(format!("others can write to {shown} (mode {:03o})", facts.mode() & 0o777)));
    }
    Ok(()) // a read-only folder is no error: its entries can be read
}

/// Elsewhere nobody can be asked who may write there, so nothing is kept.
#[cfg(not(unix))]
pub(super) fn prepare(folder: &Path) -> Result<(), Refusal> {
    let shown = folder.display();
    Err(Refusal::Unusable(format!("{shown}: this system does not tell who can write to a folder")))
}

/// The user that this process acts for.
#[cfg(unix)]
fn user() -> u32 {
    unsafe extern "C" {
        safe fn geteuid() -> u32;
    }
    geteuid()
}
