//! The signing key.

use std::fs;
use std::fs::File;
use std::io::Write;
use std::path::Path;

use ed25519_dalek::SigningKey;

use super::head::hex;
use super::head::unhex;
use crate::store::error::StoreError;

/// Reads the signing key: 64 hexadecimal digits.
pub(crate) fn read_key(path: &Path) -> Result<SigningKey, StoreError> {
    let text = fs::read_to_string(path).map_err(StoreError::io(path))?;
    let bytes = unhex(text.trim_end());
    let wrong = || StoreError::Key { path: path.to_owned(), what: "not 64 hexadecimal digits".to_owned() };
    Ok(SigningKey::from_bytes(&bytes.ok_or_else(wrong)?))
}

/// Bytes from the system's source of randomness.
pub(crate) fn random_bytes<const N: usize>(path: &Path) -> Result<[u8; N], StoreError> {
    let mut bytes = [0; N];
    let filled = rand::TryRngCore::try_fill_bytes(&mut rand::rngs::OsRng, &mut bytes);
    filled.map_err(|error| StoreError::io(path)(std::io::Error::other(error)))?;
    Ok(bytes)
}

/// Reads the key, or makes one that only its owner can read.
pub(crate) fn key_of(path: &Path, may_make: bool) -> Result<SigningKey, StoreError> {
    use std::os::unix::fs::OpenOptionsExt;
    if path.exists() || !may_make {
        return read_key(path);
    }
    let key = SigningKey::from_bytes(&random_bytes(path)?);
    let error = StoreError::io(path);
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(path).map_err(&error)?;
    file.write_all(format!("{}\n", hex(&key.to_bytes())).as_bytes()).map_err(&error)?;
    file.sync_all().map_err(&error)?;
    Ok(key)
}
