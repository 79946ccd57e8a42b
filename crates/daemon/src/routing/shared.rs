//! What the rest of the daemon shares with the thread that follows the routes.

use core::time::Duration;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Instant;

use nat::Shared;

use crate::instance::lock;
use crate::routing::announcement::Pools;
use crate::routing::rib::Rib;
use crate::routing::rib::Rib6;

/// How long the thread may take to announce or withdraw the pools. A look asks all workers, and one
/// that does not answer costs 2 seconds.
const FOLLOWED_WITHIN: Duration = Duration::from_secs(8);

/// What has happened to routes. Only grow, but for `routes`.
#[derive(Debug, Default)]
pub struct RouteCounters {
    /// Routes of the kernel now.
    pub routes: AtomicU64,
    /// Routes in the tables of the workers now.
    pub installed: AtomicU64,
    /// Messages about routes taken in.
    pub changes: AtomicU64,
    /// Times that messages were lost.
    pub lost: AtomicU64,
    /// Comparisons of all routes.
    pub compared: AtomicU64,
    /// Routes that a comparison corrected, and no message of the kernel explains.
    pub corrected: AtomicU64,
    /// Routes that changed without a message of their own.
    pub reread: AtomicU64,
    /// Routes for which the tables had no room.
    pub refused: AtomicU64,
    /// Prefixes announced now.
    pub announced: AtomicU64,
}

impl RouteCounters {
    pub(super) fn add(counter: &AtomicU64, count: usize) {
        counter.fetch_add(count as u64, Ordering::Relaxed);
    }
}

/// What the rest of the daemon shares with the thread.
#[derive(Debug)]
pub struct Routing {
    /// All routes of IPv4.
    pub(crate) rib: Mutex<Rib>,
    /// All routes of IPv6.
    pub(crate) rib6: Mutex<Rib6>,
    /// Counters.
    pub counters: RouteCounters,
    pub(super) follows_kernel: bool,
    pub(super) pools: Mutex<Pools>,
    /// Complete looks at ports and pools.
    pub(super) looks: AtomicU64,
}

/// The thread that announces the pools does not follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the thread that announces the pools does not follow")]
pub(crate) struct Stuck;

impl Routing {
    /// The routes of a configuration.
    pub fn new(shared: &Shared) -> Routing {
        Routing {
            rib: Mutex::new(Rib::of(shared.settings())),
            rib6: Mutex::new(Rib6::of(shared.settings())),
            counters: RouteCounters::default(),
            follows_kernel: shared.live_routes().is_some(),
            pools: Mutex::default(),
            looks: AtomicU64::new(0),
        }
    }

    /// Whether pools are announced at all.
    pub(crate) fn announces(&self) -> bool {
        self.follows_kernel
    }

    /// The pools now.
    pub(crate) fn pools(&self) -> Pools {
        lock(&self.pools).clone()
    }

    /// Drains, or ends the drain. Returns whether that is a change. When it returns, the kernel has
    /// the routes that follow from it.
    ///
    /// # Errors
    /// The thread does not follow in time.
    pub(crate) fn drain(&self, wanted: bool) -> Result<bool, Stuck> {
        let changed = {
            let mut pools = lock(&self.pools);
            let changed = pools.drained_at.is_some() != wanted;
            if changed {
                pools.drained_at = wanted.then(Instant::now);
            }
            changed
        };
        // A look may be under way that began before.
        let enough = self.looks.load(Ordering::Acquire) + 2;
        let begun = Instant::now();
        while self.looks.load(Ordering::Acquire) < enough {
            if begun.elapsed() > FOLLOWED_WITHIN {
                return Err(Stuck);
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(changed)
    }
}
