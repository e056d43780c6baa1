//! The bytes of an entry: magic number, hash of the rest, length of the compiler's log, log, code.

use sha2::{Digest, Sha256};

use crate::nvrtc::Image;

const MARK: &[u8] = b"octavo kernel 1\n";

pub(super) fn write(image: &Image) -> Vec<u8> {
    let log = image.log.as_bytes();
    let mut body = Vec::with_capacity(8 + log.len() + image.code.len());
    body.extend_from_slice(&(log.len() as u64).to_le_bytes());
    body.extend_from_slice(log);
    body.extend_from_slice(&image.code);
    [MARK, Sha256::digest(&body).as_slice(), &body].concat()
}

/// Reads an entry back; none where a single bit differs from what was written.
pub(super) fn read(bytes: &[u8]) -> Option<Image> {
    let (hash, body) = bytes.strip_prefix(MARK)?.split_at_checked(32)?;
    if Sha256::digest(body).as_slice() != hash {
        return None;
    }
    let (length, rest) = body.split_first_chunk::<8>()?;
    let (log, code) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
    Some(Image { code: code.to_vec(), log: String::from_utf8(log.to_vec()).ok()? })
}
