//! Keys of `[log]` and of where its records go.

use super::DAY;
use super::Key;
use super::Kind;
use super::MIB;
use super::MINUTE;
use super::MS;
use super::MTU_MAX;
use super::NAME;
use super::Preset;
use super::S;
use super::key;
use super::timeout;

pub(super) const LOG: &[Key] = &[
    key(
        "level",
        Kind::Choice(&["error", "warn", "info", "debug"]),
        Preset::Value("\"info\""),
        "The least severe level to write. Packets are never logged.",
    ),
    key(
        "format",
        Kind::Choice(&["auto", "text", "json", "journald"]),
        Preset::Value("\"auto\""),
        "How the log is written. `text`: lines on standard error. `json`: one object a line there, with time, \
         level, object and message. `journald`: fields of systemd's journal (`journalctl -u natrix -o verbose`). \
         `auto`: `journald` if the journal reads standard error, as it does under systemd, and `text` otherwise.",
    ),
    key(
        "events",
        Kind::Text("absolute path of a file, `\"-\"` for standard output, or `\"\"`"),
        Preset::Value("\"\""),
        "File for records of allocations, ends, refusals and thresholds, as lines of JSON and nothing else. \
         If empty, there are no records, and the holder of a port cannot be found later. Destinations are \
         not recorded (RFC 6888 REQ-12) unless a filter has `log`.",
    ),
    key(
        "back_pressure",
        Kind::Choice(&["refuse", "drop"]),
        Preset::Value("\"refuse\""),
        "What happens if records cannot be written fast enough (a full or slow disk). `refuse`: no new \
         mapping or block without its record; new ones are refused (`log_full`), and established traffic \
         continues. `drop`: traffic continues, records are lost, and a `gap` record counts them.",
    ),
    key(
        "queue",
        Kind::Integer { min: 64, max: 1 << 20, unit: "records per worker" },
        Preset::Value("65536"),
        "Records that may wait for the disk, rounded up to a power of two. Each takes 48 bytes.",
    ),
    key(
        "block_mappings",
        Kind::Boolean,
        Preset::Value("false"),
        "In pools with blocks or slices, also record single mappings. Otherwise the block is the record (RFC \
         6888 REQ-14).",
    ),
    key(
        "refusal_interval",
        timeout(0, 60 * MINUTE, None),
        Preset::Value("\"10 s\""),
        "Interval between records of refusals of one subscriber for the same cause. The first refusal is \
         recorded at once.",
    ),
    key(
        "filter_rate",
        Kind::Rate { min: 0, max: 10_000_000 },
        Preset::Value("\"1000/s\""),
        "Maximum rate of records of filters with `log`, for all workers together. A further record counts \
         the others.",
    ),
    key(
        "rotate_size",
        Kind::Size { min: MIB, max: 1 << 40 },
        Preset::Value("\"256 MiB\""),
        "A file that would exceed this size is renamed with the time of its end.",
    ),
    key(
        "rotate_interval",
        timeout(MINUTE, 366 * DAY, None),
        Preset::Value("\"1 d\""),
        "A file of this age is renamed too.",
    ),
    key(
        "keep_files",
        Kind::Integer { min: 0, max: 1_000_000, unit: "files" },
        Preset::Value("0"),
        "Renamed files to keep; older ones are removed. 0 keeps all.",
    ),
    key(
        "sync",
        Kind::Choice(&["never", "on-rotation", "interval", "always"]),
        Preset::Value("\"interval\""),
        "When to write to the disk (fsync). `always` loses nothing in a failure of the machine, and costs an \
         fsync for each write.",
    ),
    key(
        "sync_interval",
        timeout(10 * MS, 60 * MINUTE, None),
        Preset::Value("\"1 s\""),
        "Interval for `sync = \"interval\"`: a failure of the machine may lose the records of this time.",
    ),
];

pub(super) const LOG_STORE: &[Key] = &[
    key(
        "path",
        Kind::Text("absolute path of a folder, or `\"\"`"),
        Preset::Value("\"\""),
        "Folder of the store; made if it is missing. One process writes it. If empty, there is no store.",
    ),
    key(
        "retention",
        timeout(0, 36_500 * DAY, None),
        Preset::Derived { rule: "all is kept", example: "\"180 d\"" },
        "How long the log is kept at most. Segments that begin earlier are deleted, and the deletion is recorded. 0 \
         keeps all.",
    ),
    key(
        "sync_interval",
        timeout(10 * MS, 60 * MINUTE, None),
        Preset::Value("\"1 s\""),
        "Interval of writing to the disk (fsync): a power failure may lose the records of this time. A killed \
         process loses none.",
    ),
    key(
        "segment_size",
        Kind::Integer { min: 1_024, max: 1 << 24, unit: "intervals" },
        Preset::Value("1048576"),
        "Ended mappings or leases that become one segment. Each takes about 100 bytes of memory until then.",
    ),
    key(
        "segment_interval",
        timeout(MINUTE, 366 * DAY, None),
        Preset::Value("\"1 h\""),
        "A new segment begins after this time at the latest. Retention deletes whole segments.",
    ),
    key(
        "signing_key",
        Kind::Text("absolute path of a file, or `\"\"`"),
        Preset::Value("\"\""),
        "File of the key (64 hexadecimal digits) that signs the head of the chain; made for a new store. If \
         empty, it is in the store.",
    ),
];

pub(super) const LOG_SINK: &[Key] = &[
    key("name", Kind::Text(NAME), Preset::Required("\"collector\""), "Name in `natrix show status` and messages."),
    key("kind", Kind::Choice(&["ipfix", "syslog", "json"]), Preset::Required("\"ipfix\""), "Format of the records."),
    key(
        "address",
        Kind::Text("`\"udp://HOST:PORT\"`, `\"tcp://HOST:PORT\"` or `\"tls://HOST:PORT\"`; IPv6 addresses in brackets"),
        Preset::Required("\"tcp://192.0.2.9:4739\""),
        "The collector. Datagrams that are lost on the way stay lost.",
    ),
    key(
        "certificates",
        Kind::Text("absolute path of a file in PEM, or `\"\"`"),
        Preset::Value("\"\""),
        "Certificates of the authorities that sign the collector's certificate, for TLS only. One that has expired, \
         or is not for the host of `address`, is refused.",
    ),
    key(
        "certificate",
        Kind::Text("absolute path of a file in PEM, or `\"\"`"),
        Preset::Value("\"\""),
        "Natrix's own certificate, for collectors that ask for one; `key` is needed too.",
    ),
    key(
        "key",
        Kind::Text("absolute path of a file in PEM, or `\"\"`"),
        Preset::Value("\"\""),
        "Private key of `certificate`.",
    ),
    key(
        "domain",
        Kind::Integer { min: 0, max: u32::MAX as u64, unit: "" },
        Preset::Value("1"),
        "IPFIX: observation domain and natInstanceID. Different for each instance with the same address.",
    ),
    key(
        "mtu",
        Kind::Integer { min: 576, max: MTU_MAX, unit: "bytes" },
        Preset::Value("1500"),
        "Largest IP packet on the way to the collector. IPFIX datagrams fit into it.",
    ),
    key(
        "template_interval",
        timeout(S, 60 * MINUTE, None),
        Preset::Value("\"1 min\""),
        "IPFIX over UDP: interval of templates. A collector that was restarted understands records after this time.",
    ),
    key(
        "spool",
        Kind::Size { min: MIB, max: 1 << 50 },
        Preset::Value("\"4 GiB\""),
        "Journal that the store keeps while the collector is away, 18 bytes a record. Beyond it the oldest records \
         are not sent: they are counted, and missing in the sequence numbers.",
    ),
];
