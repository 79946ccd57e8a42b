//! What follows the figures: pages that are open, and streams of notifications.
//!
//! One user may have half of the places, so that no single user with a token can take the figures
//! from the pages of all others.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;

use axum::http::StatusCode;

use crate::answer::Refused;

/// Followers at a time.
const FOLLOWERS_MAX: usize = 32;
/// Those of one user.
const OF_ONE_USER_MAX: usize = FOLLOWERS_MAX / 2;

/// The followers by user.
#[derive(Clone, Debug, Default)]
pub(crate) struct Followers(Arc<Mutex<HashMap<String, usize>>>);

impl Followers {
    /// A place for a user, kept until it is dropped. `object` is what is asked for.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn enter(&self, user: &str, object: &str) -> Result<Follower, Refused> {
        let mut places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_user = places.get(user).copied().unwrap_or(0);
        let problem = match (of_user < OF_ONE_USER_MAX, places.values().sum::<usize>() < FOLLOWERS_MAX) {
            (true, true) => {
                places.insert(user.to_owned(), of_user + 1);
                return Ok(Follower { followers: self.clone(), user: user.to_owned() });
            }
            (false, _) => "too many followers of one user",
            (true, false) => "too many followers",
        };
        Err(Refused::new(StatusCode::SERVICE_UNAVAILABLE, object, problem, "close a page, or ask /api/v1/status"))
    }
}

/// The place of a follower.
#[derive(Debug)]
pub(crate) struct Follower {
    followers: Followers,
    user: String,
}

impl Drop for Follower {
    fn drop(&mut self) {
        let mut places = self.followers.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = places.get_mut(&self.user) {
            *count -= 1;
            if *count == 0 {
                places.remove(&self.user);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_user_leaves_places_for_others() {
        let followers = Followers::default();
        let mine: Vec<Follower> = core::iter::from_fn(|| followers.enter("see", "live").ok()).collect();
        assert_eq!(mine.len(), OF_ONE_USER_MAX);
        let others: Vec<Follower> = core::iter::from_fn(|| followers.enter("noc", "live").ok()).collect();
        assert_eq!(others.len(), FOLLOWERS_MAX - OF_ONE_USER_MAX);
        assert!(followers.enter("law", "live").is_err(), "there is no place left");
        drop(mine);
        let law = followers.enter("law", "live");
        assert!(law.is_ok());
        drop((others, law));
        assert!(followers.0.lock().unwrap().is_empty());
    }
}
