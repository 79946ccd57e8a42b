//! The signed head.

use std::fs::File;
use std::path::Path;

use ed25519_dalek::Signature;
use ed25519_dalek::Signer;
use ed25519_dalek::SigningKey;
use ed25519_dalek::VerifyingKey;

use super::Catalogue;
use super::HEAD;
use crate::store::error::StoreError;
use crate::store::journal::Hash;

/// The head of the chain at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    pub(crate) store: [u8; 16],
    /// Entries of the catalogue and the hash of the last one.
    pub(crate) entries: u64,
    pub(crate) hash: Hash,
    /// Frames so far and the hash of the last one.
    pub(crate) frames: u64,
    pub(crate) frame: Hash,
    /// Lines of the record of lookups and the hash of the last one.
    pub(crate) lookups: (u64, Hash),
}

impl Head {
    pub(crate) fn signed_text(&self) -> String {
        let mut text = format!("natrix log head\nstore {}\n", hex(&self.store));
        text += &format!("entries {} {}\n", self.entries, hex(&self.hash));
        text += &format!("frames {} {}\n", self.frames, hex(&self.frame));
        if self.lookups.0 > 0 {
            text += &format!("lookups {} {}\n", self.lookups.0, hex(&self.lookups.1));
        }
        text
    }

    /// The head as text with its signature.
    pub(crate) fn text(&self, key: &SigningKey) -> String {
        let text = self.signed_text();
        let signature = key.sign(text.as_bytes());
        format!("{text}key {}\nsignature {}\n", hex(key.verifying_key().as_bytes()), hex(&signature.to_bytes()))
    }

    /// Reads a head and checks its signature by the key of the store.
    ///
    /// # Errors
    /// The file cannot be read, is no head, or is not signed by `key`.
    pub(crate) fn read(path: &Path, key: &[u8; 32]) -> Result<Head, StoreError> {
        use std::io::Read;
        let mut text = String::new();
        let file = File::open(path).map_err(StoreError::io(path))?;
        file.take(4_096).read_to_string(&mut text).map_err(StoreError::io(path))?;
        Head::signed(&text, path, key)
    }

    /// The text of the head in a store; None if it cannot be read.
    pub(crate) fn text_in(folder: &Path) -> Option<String> {
        use std::io::Read;
        let mut text = String::new();
        File::open(folder.join(HEAD)).ok()?.take(4_096).read_to_string(&mut text).ok()?;
        Some(text)
    }

    /// How many entries the catalogue of a store had by the text of its head; None if that is not
    /// its head.
    pub(super) fn entries_in(text: Option<&str>, folder: &Path, known: &Catalogue) -> Option<u64> {
        let head = Head::signed(text?, &folder.join(HEAD), &known.key).ok()?;
        (head.store == known.store).then_some(head.entries)
    }

    /// The head in `text`, which is from `path`, if it is signed by `key`.
    ///
    /// # Errors
    /// It is no head, or is not signed by `key`.
    pub(crate) fn signed(text: &str, path: &Path, key: &[u8; 32]) -> Result<Head, StoreError> {
        let (head, signature) =
            Head::parse(text).ok_or_else(|| StoreError::damaged(path, "not the head of a store"))?;
        let is_signed = head.is_signed(text, &signature, key);
        is_signed.then_some(head).ok_or_else(|| StoreError::damaged(path, "the signature of the head is wrong"))
    }

    /// True if it is what `text` has, and signed by `key`.
    pub(crate) fn is_signed(&self, text: &str, signature: &[u8; 64], key: &[u8; 32]) -> bool {
        // The line is for readers and not signed.
        let is_named = text.lines().any(|line| line.strip_prefix("key ") == Some(&hex(key)));
        let key = VerifyingKey::from_bytes(key).ok();
        key.filter(|_| is_named).is_some_and(|key| {
            key.verify_strict(self.signed_text().as_bytes(), &Signature::from_bytes(signature)).is_ok()
        })
    }

    pub(crate) fn parse(text: &str) -> Option<(Head, [u8; 64])> {
        let mut lines = text.lines().skip_while(|line| *line != "natrix log head").skip(1);
        let has_lookups = lines.clone().nth(3).is_some_and(|line| line.starts_with("lookups "));
        let mut line = |name: &str| lines.next()?.strip_prefix(name)?.strip_prefix(' ').map(str::to_owned);
        let store = unhex(&line("store")?)?;
        let pair = |text: String| -> Option<(u64, Hash)> {
            let (number, hash) = text.split_once(' ')?;
            Some((number.parse().ok()?, unhex(hash)?))
        };
        let ((entries, hash), (frames, frame)) = (pair(line("entries")?)?, pair(line("frames")?)?);
        // Without lookups there is no such line.
        let lookups = if has_lookups { pair(line("lookups")?)? } else { (0, [0; 32]) };
        line("key")?;
        Some((Head { store, entries, hash, frames, frame, lookups }, unhex(&line("signature")?)?))
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(super) fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.as_bytes();
    let mut bytes = [0; N];
    if digits.len() != 2 * N || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    for (byte, two) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = u8::from_str_radix(core::str::from_utf8(two).ok()?, 16).ok()?;
    }
    Some(bytes)
}
