//! Tokens: `NAME:SECRET`. The configuration has only their argon2 hashes.

use argon2::Argon2;
use argon2::PasswordHash;
use argon2::PasswordHasher;
use argon2::PasswordVerifier;
use argon2::password_hash::SaltString;
use rand::TryRngCore;
use rand::rngs::OsRng;

/// Random bytes of a secret.
const SECRET_BYTES: usize = 24;

/// A new token and its hash.
#[derive(Clone, Debug)]
pub struct Token {
    /// What the client sends.
    pub token: String,
    /// What the configuration has.
    pub hash: String,
}

impl Token {
    /// Makes a token for the user `name`.
    ///
    /// # Errors
    /// The system gives no random bytes.
    pub fn new(name: &str) -> Result<Token, String> {
        let mut bytes = [0; SECRET_BYTES + 16];
        OsRng.try_fill_bytes(&mut bytes).map_err(|error| error.to_string())?;
        let (secret, salt) = bytes.split_at(SECRET_BYTES);
        let secret: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
        let salt = SaltString::encode_b64(salt).map_err(|error| error.to_string())?;
        let hash = Argon2::default().hash_password(secret.as_bytes(), &salt).map_err(|error| error.to_string())?;
        Ok(Token { token: format!("{name}:{secret}"), hash: hash.to_string() })
    }
}

/// True if the secret of `token` is one that [`Token::new`] can have made, which cannot be guessed.
pub(crate) fn is_random(token: &str) -> bool {
    let secret = token.split_once(':').map_or("", |(_, secret)| secret);
    secret.len() == 2 * SECRET_BYTES && secret.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// True if `secret` has this hash. Takes tens of milliseconds by intent.
pub(crate) fn verify(secret: &str, hash: &str) -> bool {
    PasswordHash::new(hash).is_ok_and(|hash| Argon2::default().verify_password(secret.as_bytes(), &hash).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_fits_its_hash_and_no_other() {
        let (token, other) = (Token::new("noc").unwrap(), Token::new("noc").unwrap());
        let (name, secret) = token.token.split_once(':').unwrap();
        assert_eq!(name, "noc");
        assert!(!token.hash.contains(secret));
        assert!(verify(secret, &token.hash));
        assert!(!verify(secret, &other.hash));
        assert!(!verify("", &token.hash));
        assert!(is_random(&token.token) && !is_random(&format!("{}0", token.token)) && !is_random("noc:secret"));
    }
}
