//! What each subscriber has of the table.

use super::places::Places;
use super::queue::Queue;
use crate::random::KeyedHash;
use crate::state::table::BucketTable;
use mem::ArenaError;

#[derive(Clone, Copy, Debug)]
pub(super) struct Owner {
    subscriber: u32,
    pub(super) sessions: u32,
    /// Directions with held data.
    pub(super) held: u16,
    pub(super) client_count: u16,
    /// See [`super::Spare`].
    pub(super) asked: Queue,
    pub(super) strangers: Queue,
    pub(super) clients: Queue,
}

impl Owner {
    /// A flood over UDP leaves half of `share` to TCP clients, and the reverse.
    pub(super) fn first_of_outside(&self, share: u32) -> Option<u32> {
        let (some, others) = match u32::from(self.client_count) > share / 2 {
            true => (&self.clients, &self.strangers),
            false => (&self.strangers, &self.clients),
        };
        some.first().or(others.first())
    }
}

pub(super) struct Owners {
    records: Places<Owner>,
    by_subscriber: BucketTable,
}

fn hash_of(hash: &KeyedHash, subscriber: u32) -> u64 {
    hash.hash(subscriber.into(), 0x6f77)
}

impl Owners {
    pub(super) fn reserved(max: usize) -> Result<Owners, ArenaError> {
        Ok(Owners { records: Places::reserved(max)?, by_subscriber: BucketTable::reserved(max)? })
    }

    pub(super) fn bytes_for(count: u32, max: u32) -> u64 {
        Places::<Owner>::bytes_for(count) + BucketTable::need(max as usize).bytes()
    }

    fn place_of(&self, hash: &KeyedHash, subscriber: u32) -> Option<u32> {
        let is_it = |place: u32| self.records.list[place as usize].subscriber == subscriber;
        self.by_subscriber.find(hash_of(hash, subscriber), is_it)
    }

    pub(super) fn find(&self, hash: &KeyedHash, subscriber: u32) -> Option<&Owner> {
        self.records.list.get(self.place_of(hash, subscriber)? as usize)
    }

    pub(super) fn get_mut(&mut self, place: u32) -> &mut Owner {
        &mut self.records.list[place as usize]
    }

    pub(super) fn enter(&mut self, hash: &KeyedHash, subscriber: u32) -> Option<u32> {
        if let Some(place) = self.place_of(hash, subscriber) {
            self.get_mut(place).sessions += 1;
            return Some(place);
        }
        let [asked, strangers, clients] = [Queue::EMPTY; 3];
        let new = Owner { subscriber, sessions: 1, held: 0, client_count: 0, asked, strangers, clients };
        let place = self.records.take(|| new)?;
        *self.get_mut(place) = new;
        if self.by_subscriber.insert(hash_of(hash, subscriber), place).is_err() {
            self.records.give_back(place);
            return None;
        }
        Some(place)
    }

    pub(super) fn leave(&mut self, hash: &KeyedHash, place: u32) {
        let owner = self.get_mut(place);
        owner.sessions -= 1;
        if owner.sessions == 0 {
            let subscriber = owner.subscriber;
            self.by_subscriber.remove(hash_of(hash, subscriber), place);
            self.records.give_back(place);
        }
    }

    #[cfg(test)]
    pub(super) fn resident_bytes(&self) -> usize {
        self.records.resident_bytes() + self.by_subscriber.resident_bytes()
    }
}
