use super::*;

impl AlgStore {
    fn resident_bytes(&self) -> usize {
        let tables = self.by_key.resident_bytes() + self.calls.resident_bytes() + self.owners.resident_bytes();
        self.sessions.resident_bytes() + self.held.resident_bytes() + tables
    }
}

fn begun(subscriber: u32) -> Begun {
    begun_with(subscriber, subscriber)
}

fn begun_with(subscriber: u32, mapping: u32) -> Begun {
    Begun {
        key: AlgKey { mapping, created_s: 0, remote: (1, 21) },
        inside: AlgSession::nobody().inside,
        subscriber,
        alg: AlgId(0),
        client_is_inside: true,
        is_of_registration: false,
    }
}

/// Makes room for itself.
fn unanswered(store: &mut AlgStore, subscriber: u32, mapping: u32, spare: Spare) -> u32 {
    let is_client = spare == Spare::Client;
    let begun = Begun { client_is_inside: spare == Spare::Asked, ..begun_with(subscriber, mapping) };
    let place = store.start(&Begun { is_of_registration: spare == Spare::Stranger, ..begun }).expect("room");
    store.set_replaceable(place, true, false);
    assert_eq!((store.get(place).spare, store.get(place).is_of_client()), (Some(spare), is_client));
    place
}

fn store(sessions_max: u32) -> AlgStore {
    AlgStore::new(KeyedHash::new([1; 4]), sessions_max).expect("address space")
}

#[test]
fn tables_take_memory_when_they_are_used() {
    let mut store = store(1_024);
    assert_eq!(store.resident_bytes(), 0);
    let first = store.start(&begun(1)).expect("room");
    assert!(store.with_held(first, 0).is_some());
    // The session, its held data and its lines of the tables; or 2 MiB of each on hugepages.
    assert!((4_096..8 * (2 << 20)).contains(&store.resident_bytes()));
    store.remove(first);
    let used = store.resident_bytes();
    for subscriber in 2..1_000 {
        assert_eq!(store.start(&begun(subscriber)), Some(first));
        assert!(store.with_held(first, 0).is_some());
        store.remove(first);
    }
    // Each line may lie in a page of its own.
    let lines = (2 * 1_000 * 4_096).min(2 * BucketTable::need(SESSIONS_CEILING as usize).bytes() as usize);
    assert!(store.resident_bytes() <= used + lines + 4 * 4_096, "{} after {used}", store.resident_bytes());
    let places: Vec<u32> = (0..1_024).filter_map(|subscriber| store.start(&begun(subscriber))).collect();
    assert_eq!(places.len(), 1_024);
    assert_eq!(store.start(&begun(1_024)), None);
    let held = places.iter().filter(|place| store.with_held(**place, 1).is_some()).count();
    assert_eq!(held, HELD_MIN as usize);
    assert!(store.resident_bytes() as u64 <= AlgStore::bytes_for(1_024) + 8 * (2 << 20));
}

#[test]
fn room_follows_the_settings_while_sessions_stay() {
    let mut store = store(256);
    let start = |store: &mut AlgStore, from: u32, to: u32| {
        (from..to).filter_map(|subscriber| store.start(&begun(subscriber))).count()
    };
    assert_eq!(start(&mut store, 0, 1_000), 256);
    store.set_room(65_536);
    assert_eq!(start(&mut store, 1_000, 11_000), 10_000);
    store.set_room(256);
    assert_eq!((start(&mut store, 20_000, 20_100), store.len()), (0, 10_256));
    let all: Vec<u32> = (0..store.places()).filter(|place| store.is_in_use(*place)).collect();
    for place in &all[..10_001] {
        store.remove(*place);
    }
    assert_eq!(start(&mut store, 20_000, 20_100), 1, "one place is free again");
    store.set_room(u32::MAX);
    assert_eq!(store.room.sessions, SESSIONS_CEILING);
}

/// Its own if its share is full, else any; the oldest first.
#[test]
fn the_oldest_makes_room() {
    let mut store = store(256);
    let own: Vec<u32> = (0..32).map(|i| store.start(&begun_with(1, i)).expect("room")).collect();
    assert_eq!((store.start(&begun_with(1, 32)), store.to_replace(1, Side::Inside)), (None, None), "none may go");
    for place in [own[9], own[4], own[7]] {
        store.set_replaceable(place, true, false);
    }
    store.set_replaceable(own[9], true, false);
    assert_eq!((store.to_replace(1, Side::Inside), store.to_replace(2, Side::Inside)), (Some(own[9]), None));
    store.set_replaceable(own[9], false, false);
    assert_eq!(store.to_replace(1, Side::Inside), Some(own[4]));
    store.remove(own[4]);
    assert_eq!(store.to_replace(1, Side::Inside), None, "there is room");
    let place = store.start(&begun_with(1, 40)).expect("room");
    assert_eq!((place, store.to_replace(1, Side::Inside)), (own[4], Some(own[7])));
    store.remove(own[7]);
    assert_eq!((store.to_replace(1, Side::Inside), store.start(&begun_with(1, 41)).is_some()), (None, true));
    // The table is full of others.
    let others: Vec<u32> = (0..300).filter_map(|i| store.start(&begun(1_000 + i))).collect();
    assert_eq!((others.len(), store.to_replace(5, Side::Inside)), (256 - 32, None));
    for place in [others[3], own[0], others[1]] {
        store.set_replaceable(place, true, false);
    }
    for expected in [others[3], own[0], others[1]] {
        assert_eq!(store.to_replace(5, Side::Inside), Some(expected));
        store.remove(expected);
        let places = 2_000 + expected;
        store.start(&begun(places)).expect("a place is free");
    }
    assert_eq!(store.to_replace(5, Side::Inside), None);
}

#[test]
fn clients_of_a_server_have_places_of_their_own() {
    let mut store = store(1_024);
    let first = unanswered(&mut store, 1, 0, Spare::Client);
    assert!((1..63).map(|remote| unanswered(&mut store, 1, remote, Spare::Client)).all(|place| place != first));
    for remote in 100..164 {
        unanswered(&mut store, 1, remote, if remote % 2 == 0 { Spare::Stranger } else { Spare::Asked });
    }
    assert_eq!((store.client_to_replace(1), store.client_to_replace(2)), (None, None), "63 of 64");
    let last = store.start(&Begun { client_is_inside: false, ..begun_with(1, 63) }).expect("room");
    assert_eq!(store.client_to_replace(1), None, "it is not unanswered yet");
    store.set_replaceable(last, true, false);
    assert_eq!(store.client_to_replace(1), Some(first));
    store.set_replaceable(first, false, false);
    assert_eq!(store.client_to_replace(1), None);
}

/// And sessions from outside are replaced first.
#[test]
fn nothing_from_outside_takes_the_place_of_a_host_inside() {
    for mut store in [store(256), store(1_024)] {
        let share = store.room.sessions / SHARE;
        let kinds = [Spare::Asked, Spare::Client, Spare::Asked, Spare::Stranger];
        let all: Vec<(u32, Spare)> =
            (0..share).map(|n| (unanswered(&mut store, 1, n, kinds[n as usize % 4]), kinds[n as usize % 4])).collect();
        let of = |kind: Spare| all.iter().filter(move |it| it.1 == kind).map(|it| it.0);
        // UDP and TCP have a quarter each; UDP may have half.
        let of_outside: Vec<u32> = of(Spare::Stranger).chain(of(Spare::Client)).collect();
        let (some, others) = of_outside.split_at(share as usize / 4 + 2);
        for place in some {
            for from in [Side::Outside, Side::Inside] {
                assert_eq!((store.to_replace(1, from), store.has_room_for(1, from)), (Some(*place), true));
            }
            store.remove(*place);
            let answered = store.start(&begun_with(1, 1_000 + place)).expect("its place");
            assert!(!all.iter().any(|it| it.0 == answered && it.1 == Spare::Asked));
        }
        for place in others {
            store.set_replaceable(*place, false, false);
        }
        assert_eq!((store.to_replace(1, Side::Outside), store.has_room_for(1, Side::Outside)), (None, false));
        let oldest = of(Spare::Asked).next();
        assert_eq!((store.to_replace(1, Side::Inside), store.has_room_for(1, Side::Inside)), (oldest, true));
        // Ended sessions are replaced for either side.
        let last = of(Spare::Asked).next_back().expect("one");
        store.set_replaceable(last, true, true);
        assert_eq!([Side::Outside, Side::Inside].map(|from| store.to_replace(1, from)), [Some(last); 2]);
    }
}

#[test]
fn floods_over_udp_and_tcp_leave_places_to_each_other() {
    let mut store = store(256);
    let clients: Vec<u32> = (0..20).map(|n| unanswered(&mut store, 1, n, Spare::Client)).collect();
    let strangers: Vec<u32> = (20..32).map(|n| unanswered(&mut store, 1, n, Spare::Stranger)).collect();
    for (n, place) in clients[..4].iter().chain(&strangers).chain(&clients[4..]).enumerate() {
        assert_eq!(store.to_replace(1, Side::Outside), Some(*place), "number {n}");
        store.set_replaceable(*place, false, false);
    }
    assert_eq!(store.to_replace(1, Side::Outside), None);
}

#[test]
fn nothing_from_outside_takes_the_place_of_another_subscriber() {
    let mut store = store(256);
    let asked: Vec<u32> = (0..250).map(|n| unanswered(&mut store, 100 + n, n, Spare::Asked)).collect();
    let strangers: Vec<u32> = (250..256).map(|n| unanswered(&mut store, 7, n, Spare::Client)).collect();
    for place in strangers {
        assert_eq!([Side::Outside, Side::Inside].map(|from| store.to_replace(8, from)), [Some(place); 2]);
        store.set_replaceable(place, false, false);
    }
    assert_eq!((store.to_replace(8, Side::Outside), store.to_replace(8, Side::Inside)), (None, Some(asked[0])));
}

/// After a reload with a lower limit. Existing sessions stay.
#[test]
fn no_session_goes_for_one_that_cannot_start() {
    let mut store = store(2_048);
    let own: Vec<u32> = (0..200).map(|i| store.start(&begun_with(1, i)).expect("room")).collect();
    let others: Vec<u32> = (0..300).map(|i| store.start(&begun(1_000 + i)).expect("room")).collect();
    for place in own.iter().chain(&others) {
        store.set_replaceable(*place, true, false);
    }
    store.set_room(256);
    // 500 of 256, and 200 of the subscriber's 32.
    assert_eq!((store.to_replace(1, Side::Inside), store.to_replace(5_000, Side::Inside)), (None, None));
    for place in &others[..244] {
        assert_eq!((store.to_replace(5_000, Side::Inside), store.start(&begun(5_000)).is_some()), (None, false));
        store.remove(*place);
    }
    // 256 of 256.
    assert_eq!((store.to_replace(1, Side::Inside), store.to_replace(5_000, Side::Inside)), (None, Some(own[0])));
    store.remove(own[0]);
    assert!(store.start(&begun(5_000)).is_some());
    for place in &own[1..] {
        assert_eq!(store.to_replace(1, Side::Inside).is_some(), store.len() <= 256 && own_count(&store, 1) == 32);
        if own_count(&store, 1) == 32 {
            break;
        }
        assert!(store.start(&begun_with(1, 900)).is_none());
        store.remove(*place);
    }
    let oldest = store.to_replace(1, Side::Inside).expect("its oldest may go");
    store.remove(oldest);
    assert!(store.start(&begun_with(1, 900)).is_some());
}

#[test]
fn a_few_subscribers_cannot_hold_everything() {
    let mut store = store(4_096);
    let hold = |store: &mut AlgStore, subscriber: u32, count: u32| {
        let places = (0..count).map(|i| store.start(&begun_with(subscriber, 1_000 * subscriber + i)).expect("room"));
        let places: Vec<u32> = places.collect();
        places.iter().filter(|place| store.with_held(**place, 0).is_some()).count()
    };
    let held = |store: &AlgStore, subscriber: u32| {
        store.owners.find(&store.hash, subscriber).map_or(0, |it| u32::from(it.held))
    };
    let got: Vec<u32> = (0..8).map(|subscriber| hold(&mut store, subscriber, 200) as u32).collect();
    assert!(got.iter().all(|got| (10..=28).contains(got)), "{got:?} of {HELD_MIN}");
    let still: Vec<u32> = (0..8).map(|subscriber| held(&store, subscriber)).collect();
    assert_eq!(still, got, "while places are free, nothing is taken back");
    // The table fills, then each takes from those with most.
    for subscriber in 8..200 {
        assert_eq!(hold(&mut store, subscriber, 1), 1, "{subscriber}");
    }
    assert_eq!(store.held.used(), HELD_MIN);
    assert!((0..8).all(|subscriber| (2..14).contains(&held(&store, subscriber))));
    // In the end none has two more.
    for subscriber in 200..600 {
        let _ = hold(&mut store, subscriber, 1);
    }
    assert!((0..8).all(|subscriber| held(&store, subscriber) <= 2));
    assert_eq!((hold(&mut store, 1_000, 1), store.held.used()), (0, HELD_MIN));
}

fn own_count(store: &AlgStore, subscriber: u32) -> u32 {
    store.owners.find(&store.hash, subscriber).map_or(0, |owner| owner.sessions)
}

#[test]
fn counts_of_subscribers_follow_their_sessions() {
    let mut store = store(4_096);
    let mut known: Vec<(u32, u32)> = Vec::new();
    let mut random = 7_u32;
    for step in 0..20_000_u32 {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let subscriber = random >> 24 & 7;
        if random >> 16 & 3 == 0 && !known.is_empty() {
            let (_, place) = known.swap_remove((random >> 8) as usize % known.len());
            store.remove(place);
        } else if let Some(place) = store.start(&begun_with(subscriber, step)) {
            known.push((subscriber, place));
            store.set_replaceable(place, random & 1 << 12 != 0, random & 1 << 14 != 0);
            let _ = store.with_held(place, (random >> 13 & 1) as usize);
        }
        let count = known.iter().filter(|(owner, _)| *owner == subscriber).count() as u32;
        let owner = store.owners.find(&store.hash, subscriber).map_or(0, |owner| owner.sessions);
        assert_eq!((owner, store.has_all(subscriber)), (count, count >= 512));
    }
    for (_, place) in known.drain(..) {
        store.remove(place);
    }
    assert_eq!((store.len(), store.held.used()), (0, 0));
    assert_eq!((store.strangers.first(), store.asked.first()), (None, None));
    assert!((0..8).all(|subscriber| store.owners.find(&store.hash, subscriber).is_none()));
}
