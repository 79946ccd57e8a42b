//! Which connections are open, and which one gives way to another.
//!
//! A client that has logged in keeps its connection. If all are in use, or all of its place, a new
//! one takes the place of one without a login: the oldest that waits for a request, or else the
//! newest whose request waits for an answer, because the older ones are answered first. Of all
//! places it is one of that with most of them. So a flood without a login ends its own connections,
//! and keeps out no user that can log in.

use core::cmp::Reverse;
use core::future::Future;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering;
use std::collections::BTreeMap;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;

use tokio::task::AbortHandle;

use crate::wrong_logins::Place;

/// Connections at a time, and those of one address or, on a Unix socket, of one user.
pub(crate) const CONNECTIONS_MAX: usize = 256;
pub(crate) const CONNECTIONS_OF_ONE_MAX: usize = 64;

/// What the requests of a connection have shown.
#[derive(Debug, Default)]
pub(crate) struct Standing {
    has_login: AtomicBool,
    is_asking: AtomicBool,
}

impl Standing {
    /// A request had a valid login.
    pub(crate) fn log_in(&self) {
        self.has_login.store(true, Ordering::Relaxed);
    }

    /// A request has come, which is answered when the result is dropped.
    pub(crate) fn ask(self: Arc<Standing>) -> Asking {
        self.is_asking.store(true, Ordering::Relaxed);
        Asking(self)
    }
}

/// A request that is being answered.
#[derive(Debug)]
pub(crate) struct Asking(Arc<Standing>);

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.is_asking.store(false, Ordering::Relaxed);
    }
}

#[derive(Debug)]
struct Connection {
    place: Place,
    standing: Arc<Standing>,
    task: AbortHandle,
}

#[derive(Debug, Default)]
struct Open {
    next: u64,
    /// The oldest first.
    connections: BTreeMap<u64, Connection>,
}

impl Open {
    /// The connection that gives way: one of this place, if it has as many as it may.
    fn gives_way(&self, full: Option<Place>) -> Option<u64> {
        let strangers = || {
            let own = self.connections.iter().filter(move |(_, one)| full.is_none_or(|place| place == one.place));
            own.filter(|(_, one)| !one.standing.has_login.load(Ordering::Relaxed))
        };
        let mut of_place: HashMap<Place, usize> = HashMap::new();
        strangers().for_each(|(_, one)| *of_place.entry(one.place).or_default() += 1);
        let rank = |number: u64, one: &Connection| {
            let is_asking = one.standing.is_asking.load(Ordering::Relaxed);
            let age = if is_asking { u64::MAX - number } else { number };
            (is_asking, Reverse(of_place.get(&one.place).copied()), age)
        };
        strangers().min_by_key(|(number, one)| rank(**number, one)).map(|(number, _)| *number)
    }
}

/// The open connections.
#[derive(Debug, Default)]
pub(crate) struct Connections(Mutex<Open>);

/// Removes a connection when its task has ended.
struct Ends(Arc<Connections>, u64);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.lock().connections.remove(&self.1);
    }
}

impl Connections {
    fn lock(&self) -> MutexGuard<'_, Open> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves a new connection from this place in a task of its own. Beyond the limits `serve` is
    /// dropped, and with it the connection.
    pub(crate) fn spawn<F: Future<Output = ()> + Send + 'static>(
        self: &Arc<Connections>,
        place: Place,
        serve: impl FnOnce(Arc<Standing>) -> F,
    ) {
        let mut open = self.lock();
        let here = open.connections.values().filter(|one| one.place == place).count();
        let is_full = here >= CONNECTIONS_OF_ONE_MAX;
        if is_full || open.connections.len() >= CONNECTIONS_MAX {
            let gives_way = open.gives_way(is_full.then_some(place));
            let Some(ended) = gives_way.and_then(|number| open.connections.remove(&number)) else { return };
            ended.task.abort();
        }
        let number = open.next;
        open.next += 1;
        let standing = Arc::new(Standing::default());
        let (served, ends) = (serve(Arc::clone(&standing)), Ends(Arc::clone(self), number));
        let task = tokio::spawn(async move {
            let _ends = ends;
            served.await;
        });
        open.connections.insert(number, Connection { place, standing, task: task.abort_handle() });
    }

    /// How many are open.
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.lock().connections.len()
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;

    /// Connections that last until they give way.
    #[derive(Default)]
    struct Bed {
        all: Arc<Connections>,
        opened: Vec<(u32, Arc<Standing>, mpsc::Receiver<()>)>,
    }

    impl Bed {
        /// False if it is refused.
        fn open(&mut self, place: u32) -> bool {
            let (open, closed) = mpsc::channel(1);
            let mut standing = None;
            self.all.spawn(Place::User(place), |own| {
                standing = Some(own);
                async move {
                    let _open = open;
                    core::future::pending::<()>().await;
                }
            });
            let is_served = standing.is_some();
            self.opened.extend(standing.map(|standing| (place, standing, closed)));
            is_served
        }

        /// How many of a place are left.
        async fn left(&mut self, place: u32) -> usize {
            // Tasks that were ended go when they have their turn.
            for _ in 0..200 {
                tokio::task::yield_now().await;
            }
            let is_open = |closed: &mut mpsc::Receiver<()>| closed.try_recv() == Err(mpsc::error::TryRecvError::Empty);
            self.opened
                .iter_mut()
                .filter(|(of, ..)| *of == place)
                .filter_map(|(.., end)| is_open(end).then_some(()))
                .count()
        }
    }

    #[tokio::test]
    async fn strangers_displace_each_other_and_nobody_with_a_login() {
        let mut bed = Bed::default();
        for place in 0..4 {
            assert!((0..100).all(|_| bed.open(place)), "each displaces one of its own place");
            assert_eq!(bed.left(place).await, CONNECTIONS_OF_ONE_MAX);
        }
        assert_eq!(bed.all.count(), CONNECTIONS_MAX);
        assert!(bed.open(9), "a fifth place");
        bed.opened.last().unwrap().1.log_in();
        // Each displaces one of those places that have most.
        assert!((10..200).all(|place| bed.open(place)));
        assert_eq!((bed.all.count(), bed.left(9).await), (CONNECTIONS_MAX, 1));
        for place in 0..4 {
            assert!(bed.left(place).await <= 17, "{place}");
        }
        for place in 10..200 {
            assert_eq!(bed.left(place).await, 1, "{place} has no more than others");
        }
        // However many come: it stays.
        assert!((1_000..3_000).all(|place| bed.open(place)));
        assert_eq!((bed.all.count(), bed.left(9).await), (CONNECTIONS_MAX, 1));
    }

    #[tokio::test]
    async fn a_connection_whose_request_is_answered_goes_last() {
        let mut bed = Bed::default();
        assert!(bed.open(0));
        let asking = Arc::clone(&bed.opened[0].1).ask();
        assert!((1..300).all(|place| bed.open(place)));
        assert_eq!((bed.left(0).await, bed.left(1).await), (1, 0));
        drop(asking);
        assert!(bed.open(300));
        assert_eq!(bed.left(0).await, 0, "the oldest that waits");
    }

    #[tokio::test]
    async fn of_those_that_ask_the_newest_gives_way() {
        let mut bed = Bed::default();
        assert!((0..CONNECTIONS_MAX as u32).all(|place| bed.open(place)));
        let _asking: Vec<Asking> = bed.opened.iter().map(|(_, standing, _)| Arc::clone(standing).ask()).collect();
        assert!(bed.open(1_000));
        assert_eq!((bed.left(0).await, bed.left(255).await), (1, 0), "the older is answered before");
    }

    #[tokio::test]
    async fn an_operator_comes_in_beside_strangers_of_the_same_place() {
        let mut bed = Bed::default();
        assert!((0..CONNECTIONS_OF_ONE_MAX).all(|_| bed.open(1)));
        assert!(bed.open(1));
        bed.opened.last().unwrap().1.log_in();
        assert!((0..200).all(|_| bed.open(1)));
        assert_eq!((bed.all.count(), bed.left(1).await), (CONNECTIONS_OF_ONE_MAX, CONNECTIONS_OF_ONE_MAX));
        let operator = &mut bed.opened[CONNECTIONS_OF_ONE_MAX].2;
        assert_eq!(operator.try_recv(), Err(mpsc::error::TryRecvError::Empty), "it is still open");
    }

    #[tokio::test]
    async fn all_with_logins_refuse_a_further_connection() {
        let mut bed = Bed::default();
        for place in 0..4 {
            assert!((0..CONNECTIONS_OF_ONE_MAX).all(|_| bed.open(place)));
        }
        bed.opened.iter().for_each(|(_, standing, _)| standing.log_in());
        assert!(!bed.open(9) && !bed.open(0));
        bed.opened.clear();
        assert_eq!(bed.all.count(), CONNECTIONS_MAX);
    }
}
