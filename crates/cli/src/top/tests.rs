//! The dashboard on a terminal in memory, compared with pictures in `tests/expected/top_*.txt`.

use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;

use control::Reply;
use control::server::Connection;
use ratatui::Terminal;
use ratatui::backend::TestBackend;

use crate::arguments::Socket;
use crate::top::dashboard::Dashboard;
use crate::top::dashboard::Key;
use crate::top::dashboard::Link;
use crate::top::draw::draw;
use crate::top::fetch;
use crate::top::fetch::News;
use crate::top::fetch::Sample;

const GOLDEN: &str = include_str!("../../../control/tests/replies.jsonl");

fn golden_replies() -> Vec<Reply> {
    GOLDEN.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The golden replies as a sample.
fn golden() -> Sample {
    let (mut status, mut interfaces, mut pools, mut drops) = (None, Vec::new(), Vec::new(), Vec::new());
    for reply in golden_replies() {
        match reply {
            Reply::Status(object) => status = Some(object),
            Reply::Interface(object) => interfaces.push(object),
            Reply::Pool(object) => pools.push(object),
            Reply::Drop(object) => drops.push(object),
            _ => {}
        }
    }
    Sample { status: status.unwrap(), interfaces, pools, drops }
}

/// The golden sample as it is `seconds` later, with `packets` more each second.
fn later(seconds: u64, packets: u64) -> Sample {
    let mut sample = golden();
    let grown = packets * seconds;
    sample.status.uptime_us += seconds * 1_000_000;
    sample.status.packets_forwarded += grown;
    sample.status.bytes_forwarded += grown * 1_000;
    sample.status.packets_per_second = packets;
    sample.status.bits_per_second = packets * 8_000;
    sample.status.packets_dropped += 7 * seconds;
    sample.status.drops_per_second = 7;
    sample.status.mappings_created += 120 * seconds;
    sample.status.sessions_created += 250 * seconds;
    for worker in &mut sample.status.workers {
        worker.packets_received += grown / 2;
        worker.packets_received_per_second = packets / 2;
    }
    for interface in &mut sample.interfaces {
        interface.rx_packets += grown / 2;
        interface.rx_packets_per_second = packets / 2;
        interface.rx_bytes += grown * 500;
        interface.rx_bits_per_second = packets * 4_000;
        interface.tx_packets += grown / 2;
        interface.tx_packets_per_second = packets / 2;
        interface.tx_bytes += grown * 500;
        interface.tx_bits_per_second = packets * 4_000;
    }
    // The reason with the smaller total has the higher rate.
    sample.drops[0].packets += 7 * seconds;
    sample.drops[0].packets_per_second = 7;
    sample
}

fn news(sample: Sample) -> News {
    News::Sample(Box::new(sample))
}

fn dashboard_with_history() -> Dashboard {
    let mut dashboard = Dashboard::new("/run/natrix/control.sock".to_owned());
    for second in 0..20 {
        dashboard.take(news(later(second, 10_000 + 1_000 * second)));
    }
    dashboard
}

fn picture(dashboard: &Dashboard, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, dashboard)).unwrap();
    let buffer = terminal.backend().buffer();
    let rows = (0..height).map(|y| {
        let row: String = (0..width).map(|x| buffer[(x, y)].symbol()).collect();
        format!("{}\n", row.trim_end())
    });
    rows.collect()
}

/// Compares with a picture; with `NATRIX_BLESS` set, writes it instead.
fn check(name: &str, dashboard: &Dashboard, width: u16, height: u16) {
    let picture = picture(dashboard, width, height);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/expected").join(format!("top_{name}.txt"));
    if std::env::var_os("NATRIX_BLESS").is_some() {
        std::fs::write(&path, picture).unwrap();
        return;
    }
    let expected = std::fs::read_to_string(&path).unwrap();
    assert!(picture == expected, "{picture}\nis not {}\n{expected}", path.display());
}

#[test]
fn everything_fits_80_columns_and_24_lines() {
    check("80x24", &dashboard_with_history(), 80, 24);
}

#[test]
fn a_third_interface_takes_a_line_of_the_charts() {
    let mut dashboard = Dashboard::new("/run/natrix/control.sock".to_owned());
    let mut sample = golden();
    let mut third = sample.interfaces[0].clone();
    third.name = "lan.100".to_owned();
    sample.interfaces.push(third);
    dashboard.take(news(sample));
    check("three_interfaces", &dashboard, 80, 24);
}

#[test]
fn a_large_terminal_shows_sentences_and_more_lines() {
    check("160x45", &dashboard_with_history(), 160, 45);
}

#[test]
fn a_missing_daemon_is_reported_over_its_last_state() {
    let mut dashboard = dashboard_with_history();
    dashboard.take(News::Gone("/run/natrix/control.sock: lost the daemon (it closed the connection)".to_owned()));
    dashboard.take(News::Gone("/run/natrix/control.sock: cannot connect (Connection refused)".to_owned()));
    check("gone", &dashboard, 80, 24);
    dashboard.take(news(golden()));
    assert_eq!(dashboard.link, Link::Live);
}

#[test]
fn before_the_first_answer_it_names_the_socket() {
    check("connecting", &Dashboard::new("/run/natrix/control.sock".to_owned()), 80, 24);
}

#[test]
fn help_lists_the_keys() {
    let mut dashboard = dashboard_with_history();
    dashboard.press(Key::Help);
    check("help", &dashboard, 80, 24);
    dashboard.press(Key::Escape);
    assert!(!dashboard.help);
}

#[test]
fn no_size_of_the_terminal_is_too_small_to_draw() {
    let mut dashboard = dashboard_with_history();
    dashboard.press(Key::Help);
    for (width, height) in [(1, 1), (10, 3), (71, 24), (72, 20), (80, 21), (300, 20), (72, 100)] {
        picture(&dashboard, width, height);
    }
}

#[test]
fn rates_are_those_of_the_daemon() {
    let mut dashboard = Dashboard::new(String::new());
    // The totals do not matter: a late answer, or a restarted daemon, makes no peak.
    let mut fresh = golden();
    fresh.status.packets_forwarded = u64::MAX;
    dashboard.take(news(golden()));
    dashboard.take(news(fresh));
    assert_eq!(dashboard.packets_history, [81_234, 81_234]);
    assert_eq!(dashboard.bits_history, [612_345_678, 612_345_678]);
    let shown = picture(&dashboard, 160, 45);
    for rate in ["81.2 k/s", "612.3 Mbit/s", "120/s", "250/s", "46.0 k/s", "40.5 k", "306.0 M", "Drops: 3/s"] {
        assert!(shown.contains(rate), "{rate} is not in\n{shown}");
    }
}

#[test]
fn a_pause_freezes_the_picture_but_reports_a_dead_daemon() {
    let mut dashboard = dashboard_with_history();
    dashboard.press(Key::Pause);
    let still = picture(&dashboard, 80, 24);
    dashboard.take(news(later(21, 90_000)));
    assert_eq!(picture(&dashboard, 80, 24), still);
    dashboard.take(News::Gone("reason".to_owned()));
    assert_ne!(picture(&dashboard, 80, 24), still);
}

#[test]
fn drops_are_sorted_by_rate_or_by_total() {
    let mut dashboard = dashboard_with_history();
    let first = |dashboard: &Dashboard| dashboard.drops()[0].reason.clone();
    assert_eq!(first(&dashboard), "ttl_expired", "by rate");
    dashboard.press(Key::Sort);
    assert_eq!(first(&dashboard), "no_mapping", "by total");
}

#[test]
fn the_fetcher_reports_a_missing_daemon_and_reconnects() {
    let directory = std::env::temp_dir().join(format!("natrix-top-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let path = directory.join("control.sock");
    let receiver = fetch::start(Socket { socket: Some(path.clone()) }).unwrap();
    let patience = Duration::from_secs(60);
    assert!(matches!(receiver.recv_timeout(patience).unwrap(), News::Gone(_)));
    let listener = UnixListener::bind(&path).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut connection = Connection::new(stream.try_clone().unwrap(), stream, "0.1.0").unwrap();
            while let Ok(Some(request)) = connection.next_request() {
                let wanted = |reply: &Reply| match request {
                    control::Request::Status => matches!(reply, Reply::Status(_)),
                    control::Request::Interfaces => matches!(reply, Reply::Interface(_)),
                    control::Request::Pools => matches!(reply, Reply::Pool(_)),
                    _ => matches!(reply, Reply::Drop(_)),
                };
                connection.send_all(golden_replies().into_iter().filter(wanted), None).unwrap();
            }
        }
    });
    let found = std::iter::repeat_with(|| receiver.recv_timeout(patience).unwrap())
        .take(10)
        .find(|news| matches!(news, News::Sample(_)));
    assert_eq!(found, Some(news(golden())));
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn what_is_wrong_with_the_log_is_shown_at_every_width() {
    let footer = |change: &dyn Fn(&mut control::EventLog), width| {
        let mut sample = golden();
        change(sample.status.event_log.as_mut().unwrap());
        let mut dashboard = Dashboard::new("/run/natrix/control.sock".to_owned());
        dashboard.take(news(sample));
        let picture = picture(&dashboard, width, 24);
        picture.lines().last().unwrap().split_once("log").unwrap().1.to_owned()
    };
    let sink = |connected, lag_us| control::LogSink {
        name: "one".to_owned(),
        kind: control::SinkKind::Ipfix,
        address: "198.51.100.9:4739".to_owned(),
        connected,
        records_sent: 1,
        bytes_sent: 1,
        records_lost: 0,
        lag_us,
        connections: 0,
        errors: 1,
        last_error: None,
    };
    let two_down = |log: &mut control::EventLog| {
        log.sinks = vec![sink(true, 100), sink(false, 8_000_000), sink(false, 8_000_000)];
    };
    assert_eq!(footer(&two_down, 80), ": 2/3 sinks down, 1ms behind");
    assert!(footer(&two_down, 130).starts_with(": 2/3 sinks down, 1ms behind"));
    let lost_too = |log: &mut control::EventLog| {
        two_down(log);
        log.records_lost = 306;
    };
    assert_eq!(footer(&lost_too, 80), ": 306 lost, 2/3 sinks down");
    let late = |log: &mut control::EventLog| log.sinks = vec![sink(true, 11_000_000), sink(true, 9_000_000)];
    assert_eq!(footer(&late, 80), ": 1/2 sinks behind");
    let failing = |log: &mut control::EventLog| {
        lost_too(log);
        log.failing = true;
    };
    assert_eq!(footer(&failing, 80), " failing: 306 lost");
    assert_eq!(footer(&|_| {}, 80), " written: 1ms behind, 0 lost");
}
