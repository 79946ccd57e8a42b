//! Generated logs.

use export::store::Generated;
use export::store::Generator;
use export::store::Question;
use export::store::Store;

use super::Folder;
use super::generated;

#[test]
fn a_generated_log_has_all_that_began() {
    for (kind, bytes_max) in [(Generated::Mappings(30_000), 10.0), (Generated::Leases(15_000), 9.0)] {
        let folder = Folder::new(&format!("generated-{}", bytes_max as u32));
        let (writer, now, begun) = generated(&folder, kind, 3);
        writer.finish(now, now.monotonic_us, true).unwrap();
        let store = Store::open(&folder.0).unwrap();
        let stat = store.stat().unwrap();
        assert_eq!(stat.mappings + stat.leases, begun.len() as u64);
        let bytes = stat.bytes_per_mapping.or(stat.bytes_per_lease).unwrap();
        assert!(bytes < bytes_max, "{bytes}");
        let mut reads = 0;
        for event in begun.iter().step_by(97).filter(|event| event.at.as_micros() < now.monotonic_us) {
            let at_us = Generator::begin().unix_us + event.at.as_micros();
            let (address, port, protocol) = (event.external, Some(event.first_port), event.protocol);
            let question = Question { address, host: None, port, protocol, from_us: at_us, to_us: at_us };
            let found = store.look_up(&question).unwrap();
            assert!(found.is_complete, "{found:?}");
            assert!(found.holders.iter().any(|holder| holder.subscriber.ipv4() == Some(event.subscriber)), "{found:?}");
            reads = reads.max(found.reads);
            // The same by its subscriber.
            let question = Question { address: event.subscriber, port: None, ..question };
            let found = store.look_up(&question).unwrap();
            assert!(found.holders.iter().any(|holder| holder.first_port == event.first_port), "{found:?}");
        }
        assert!(reads <= 10, "{reads}");
    }
}
