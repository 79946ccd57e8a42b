//! Draws the dashboard, for 80 columns and 24 lines or more.

use std::collections::VecDeque;

use control::Status;
use ratatui::Frame;
use ratatui::layout::Alignment;
use ratatui::layout::Constraint;
use ratatui::layout::Layout;
use ratatui::layout::Rect;
use ratatui::style::Color;
use ratatui::style::Modifier;
use ratatui::style::Style;
use ratatui::style::Stylize;
use ratatui::text::Line;
use ratatui::text::Span;
use ratatui::widgets::Block;
use ratatui::widgets::BorderType;
use ratatui::widgets::Clear;
use ratatui::widgets::Padding;
use ratatui::widgets::Paragraph;
use ratatui::widgets::RenderDirection;
use ratatui::widgets::Sparkline;
use ratatui::widgets::Wrap;

use crate::human;
use crate::top::dashboard::Dashboard;
use crate::top::dashboard::Link;
use crate::top::dashboard::Sort;
use crate::top::fetch::Sample;

/// Smallest terminal that shows anything useful.
const COLUMNS_MIN: u16 = 72;
const LINES_MIN: u16 = 20;

const ACCENT: Color = Color::Cyan;
const MUTED: Color = Color::DarkGray;

/// Green, yellow or red by load.
fn load_colour(ratio: f64) -> Color {
    match ratio {
        r if r >= 0.9 => Color::Red,
        r if r >= 0.7 => Color::Yellow,
        _ => Color::Green,
    }
}

fn panel(title: &str) -> Block<'_> {
    Block::bordered()
        .border_type(BorderType::Rounded)
        .border_style(Style::new().fg(MUTED))
        .title(Span::styled(format!(" {title} "), Style::new().fg(ACCENT).add_modifier(Modifier::BOLD)))
        .padding(Padding::horizontal(1))
}

/// Draws everything.
pub(crate) fn draw(frame: &mut Frame<'_>, dashboard: &Dashboard) {
    let area = frame.area();
    if area.width < COLUMNS_MIN || area.height < LINES_MIN {
        let text = format!("natrix top needs {COLUMNS_MIN} columns and {LINES_MIN} lines; q quits");
        frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: true }), area);
        return;
    }
    let interfaces = dashboard.current.as_ref().map_or(0, |sample| sample.interfaces.len());
    let workers = dashboard.current.as_ref().map_or(0, |sample| sample.status.workers.len());
    // Lists grow while there is space; the charts and drops share the rest.
    let spare = area.height.saturating_sub(24);
    let worker_lines = 4 + u16::try_from(workers.saturating_sub(4)).unwrap_or(u16::MAX).min(spare / 3);
    // A third interface is common enough to take a line of the charts.
    let interface_lines = 2 + u16::try_from(interfaces.saturating_sub(2)).unwrap_or(u16::MAX).min(1 + spare / 3);
    let [header, charts, state, losses, links, footer] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Fill(4),
        Constraint::Length(worker_lines + 2),
        Constraint::Fill(5),
        Constraint::Length(interface_lines + 3),
        Constraint::Length(1),
    ])
    .areas(area);

    draw_header(frame, header, dashboard);
    draw_footer(frame, footer, dashboard);
    if let Some(sample) = &dashboard.current {
        let halves = |area: Rect| Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).areas::<2>(area);
        let [left, right] = halves(charts);
        let (packets, bits) = (sample.status.packets_per_second as f64, sample.status.bits_per_second as f64);
        draw_chart(frame, left, "Forwarded packets", packets, "/s", &dashboard.packets_history, ACCENT);
        draw_chart(frame, right, "Forwarded bits", bits, "bit/s", &dashboard.bits_history, Color::Blue);
        let [left, right] = halves(state);
        draw_tables(frame, left, sample);
        draw_workers(frame, right, sample);
        let [left, right] = halves(losses);
        draw_pools(frame, left, sample);
        draw_drops(frame, right, dashboard);
        draw_interfaces(frame, links, sample);
    }
    match &dashboard.link {
        Link::Live => {}
        Link::Connecting => draw_message(frame, "Connecting", Color::Yellow, std::slice::from_ref(&dashboard.socket)),
        Link::Gone { reason, tries } => {
            let seen = match &dashboard.current {
                Some(_) => "The screen shows its last answer.",
                None => "It has not answered yet.",
            };
            let tries = format!("{seen} Tried {} times; retrying each second.", human::count(u64::from(*tries)));
            draw_message(frame, "The daemon is gone", Color::Red, &[reason.clone(), tries]);
        }
    }
    if dashboard.help {
        draw_help(frame);
    }
}

fn draw_header(frame: &mut Frame<'_>, area: Rect, dashboard: &Dashboard) {
    let mut left = vec![Span::styled(" natrix ", Style::new().fg(Color::Black).bg(ACCENT).bold())];
    if let Some(sample) = &dashboard.current {
        let status = &sample.status;
        let uptime = human::duration(status.uptime_us);
        left.push(format!(" {}  ", status.version).bold());
        left.push(format!("{} for {uptime}  ", status.state).into());
        left.push(Span::styled(status.config.clone(), Style::new().fg(MUTED)));
    }
    let (text, colour) = match (&dashboard.link, dashboard.paused) {
        (Link::Gone { .. }, _) => (" gone ", Color::Red),
        (Link::Connecting, _) => (" connecting ", Color::Yellow),
        (Link::Live, true) => (" paused ", Color::Yellow),
        (Link::Live, false) => (" live ", Color::Green),
    };
    let sign = Line::styled(text, Style::new().fg(Color::Black).bg(colour).bold());
    let [left_area, right_area] =
        Layout::horizontal([Constraint::Fill(1), Constraint::Length(text.len() as u16)]).areas(area);
    frame.render_widget(Line::from(left), left_area);
    frame.render_widget(sign, right_area);
}

fn draw_footer(frame: &mut Frame<'_>, area: Rect, dashboard: &Dashboard) {
    let sort = match dashboard.sort {
        Sort::Total => "sort drops by rate",
        Sort::Rate => "sort drops by total",
    };
    let pause = if dashboard.paused { "resume" } else { "pause" };
    let mut spans = Vec::new();
    for (key, meaning) in [("q", "quit"), ("p", pause), ("s", sort), ("?", "help")] {
        spans.push(Span::styled(format!(" {key}"), Style::new().fg(ACCENT).bold()));
        spans.push(Span::styled(format!(" {meaning} "), Style::new().fg(MUTED)));
    }
    let keys = Line::from(spans);
    let room = usize::from(area.width).saturating_sub(keys.width());
    frame.render_widget(keys, area);
    if let Some(log) = dashboard.current.as_ref().and_then(|sample| log_health(&sample.status, room)) {
        frame.render_widget(log.alignment(Alignment::Right), area);
    }
}

/// Age of the oldest unsent record, in µs, from which on a collector is behind: as the daemon's log
/// reports it.
const BEHIND_US: u64 = 10_000_000;

/// The state of the event log and its collectors: what is wrong first, then as many figures as
/// there is room for. Red while it is not written, yellow if records are missing or wait.
fn log_health(status: &Status, room: usize) -> Option<Line<'static>> {
    let log = status.event_log.as_ref()?;
    let (failing, lag_us) = log.store.as_ref().map_or((log.failing, log.lag_us), |store| (store.failing, store.lag_us));
    // The store knows of a loss once the gap is written.
    let lost = log.store.as_ref().map_or(0, |store| store.records_lost).max(log.records_lost);
    let of_sinks = |is: &dyn Fn(&control::LogSink) -> bool| log.sinks.iter().filter(|sink| is(sink)).count();
    let down = of_sinks(&|sink| !sink.connected);
    let behind = of_sinks(&|sink| sink.connected && sink.lag_us >= BEHIND_US);
    let lost_by_sinks: u64 = log.sinks.iter().map(|sink| sink.records_lost).sum();
    let mut parts: Vec<String> = Vec::new();
    let all = log.sinks.len();
    for (is_so, what) in [
        (lost > 0, format!("{} lost", human::count(lost))),
        (down > 0, format!("{down}/{all} sinks down")),
        (behind > 0, format!("{behind}/{all} sinks behind")),
        (lost_by_sinks > 0, format!("sinks lost {}", human::count(lost_by_sinks))),
    ] {
        parts.extend(is_so.then_some(what));
    }
    let (colour, mut text) = match (failing, parts.is_empty()) {
        (true, _) => (Color::Red, "log failing".to_owned()),
        (false, true) => (Color::Green, "log written".to_owned()),
        (false, false) => (Color::Yellow, "log".to_owned()),
    };
    parts.push(format!("{} behind", human::duration(lag_us)));
    if let Some(store) = &log.store {
        let size = human::with_unit(store.bytes as f64, "B");
        parts.push(format!("{size} in {}", control::counted(store.segments, "segment")));
        parts.push(control::counted(store.gaps, "gap"));
    }
    if lost == 0 {
        parts.push("0 lost".to_owned());
    }
    for (place, part) in parts.iter().enumerate() {
        let separator = if place == 0 { ": " } else { ", " };
        // A space is left at the end.
        if text.len() + separator.len() + part.chars().count() >= room {
            break;
        }
        text += separator;
        text += part;
    }
    Some(Line::styled(text + " ", Style::new().fg(colour)))
}

fn draw_chart(
    frame: &mut Frame<'_>,
    area: Rect,
    title: &str,
    now: f64,
    unit: &str,
    history: &VecDeque<u64>,
    colour: Color,
) {
    let block = panel(title);
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let [numbers, chart] = Layout::vertical([Constraint::Length(1), Constraint::Fill(1)]).areas(inner);
    let shown: Vec<u64> = history.iter().copied().take(usize::from(chart.width)).collect();
    let peak = shown.iter().copied().max().unwrap_or(0);
    frame.render_widget(Line::from(human::with_unit(now, unit).bold()), numbers);
    let peak_text = format!("peak {}", human::with_unit(peak as f64, unit));
    frame.render_widget(Line::styled(peak_text, Style::new().fg(MUTED)).alignment(Alignment::Right), numbers);
    let sparkline = Sparkline::default()
        .data(&shown)
        .max(peak.max(1))
        .direction(RenderDirection::RightToLeft)
        .style(Style::new().fg(colour));
    frame.render_widget(sparkline, chart);
}

fn draw_tables(frame: &mut Frame<'_>, area: Rect, sample: &Sample) {
    let status = &sample.status;
    let width = inner_width(area);
    let mut lines = Vec::new();
    for (name, now, max) in [
        ("Subscribers", status.subscribers, status.subscribers_max),
        ("Mappings", status.mappings, status.mappings_max),
        ("Sessions", status.sessions, status.sessions_max),
    ] {
        let ratio = control::ratio(now, max);
        let mut spans = vec![format!("{name:<12}").into(), format!("{:>10} ", human::count(now)).bold()];
        spans.extend(bar(ratio, width.saturating_sub(31)));
        spans.push(format!("{:>8}", human::percent(ratio)).into());
        lines.push(Line::from(spans));
    }
    let created = |rate: u64| format!("{:>10}", human::with_unit(rate as f64, "/s"));
    let mut spans: Vec<Span<'_>> = vec!["New mappings".into(), created(status.mappings_created_per_second).bold()];
    // A wide terminal has room for the sessions too.
    if width >= 52 {
        spans.push("    New sessions".into());
        spans.push(created(status.sessions_created_per_second).bold());
    }
    lines.push(Line::from(spans));
    frame.render_widget(Paragraph::new(lines).block(panel("State")), area);
}

/// A bar of `width` columns in eighths of a column.
fn bar(ratio: f64, width: usize) -> Vec<Span<'static>> {
    const PARTS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let ratio = if ratio.is_finite() { ratio.clamp(0.0, 1.0) } else { 0.0 };
    let eighths = (ratio * width as f64 * 8.0).round() as usize;
    // What is not nothing shows at least a sliver.
    let eighths = if ratio > 0.0 { eighths.max(1) } else { 0 };
    let (full, part) = (eighths / 8, PARTS.get(eighths % 8).copied().unwrap_or_default());
    let rest = width.saturating_sub(full + usize::from(!part.is_empty()));
    vec![
        Span::styled(format!("{}{part}", "█".repeat(full)), Style::new().fg(load_colour(ratio))),
        Span::styled("░".repeat(rest), Style::new().fg(MUTED)),
    ]
}

/// Cuts a name that is too long, and fills one that is too short.
fn fit(text: &str, width: usize) -> String {
    if text.chars().count() > width {
        let kept: String = text.chars().take(width.saturating_sub(1)).collect();
        return format!("{kept}…");
    }
    format!("{text:<width$}")
}

/// The lines that fit, the last of them saying how many do not.
fn fitting(mut lines: Vec<Line<'static>>, area: Rect) -> Vec<Line<'static>> {
    let room = usize::from(area.height.saturating_sub(2));
    if lines.len() > room {
        let hidden = lines.len() - room.saturating_sub(1);
        lines.truncate(room.saturating_sub(1));
        lines.push(Line::styled(format!("and {hidden} more"), Style::new().fg(MUTED)));
    }
    lines
}

fn inner_width(area: Rect) -> usize {
    usize::from(area.width.saturating_sub(4))
}

fn draw_workers(frame: &mut Frame<'_>, area: Rect, sample: &Sample) {
    let width = inner_width(area);
    let lines = sample.status.workers.iter().map(|worker| {
        let cpu = worker.cpu.map_or_else(String::new, |cpu| format!("cpu {cpu}"));
        let mut spans =
            vec![format!("{:<3}", worker.worker).into(), Span::styled(format!("{cpu:<7}"), Style::new().fg(MUTED))];
        spans.extend(bar(worker.busy_ratio, width.saturating_sub(28)));
        spans.push(format!("{:>8}", human::percent(worker.busy_ratio)).into());
        spans.push(format!("{:>8}", human::scaled(worker.packets_received_per_second as f64)).bold());
        spans.push(Span::styled("/s", Style::new().fg(MUTED)));
        Line::from(spans)
    });
    let lines = fitting(lines.collect(), area);
    frame.render_widget(Paragraph::new(lines).block(panel("Workers: busy, packets")), area);
}

fn draw_pools(frame: &mut Frame<'_>, area: Rect, sample: &Sample) {
    let width = inner_width(area);
    let name_width = (width / 3).clamp(12, 24);
    let lines = sample.pools.iter().map(|pool| {
        let mut spans = vec![fit(&pool.name, name_width).into(), " ".into()];
        spans.extend(bar(pool.utilisation_ratio, width.saturating_sub(name_width + 16)));
        spans.push(format!("{:>8}", human::percent(pool.utilisation_ratio)).into());
        spans.push(Span::styled(
            format!("{:>7}", human::scaled(pool.ports_used.total() as f64)),
            Style::new().fg(MUTED),
        ));
        Line::from(spans)
    });
    let lines = fitting(lines.collect(), area);
    frame.render_widget(Paragraph::new(lines).block(panel("Pools: ports used")), area);
}

fn draw_drops(frame: &mut Frame<'_>, area: Rect, dashboard: &Dashboard) {
    /// Columns of reason, rate and total.
    const NUMBERS: usize = 21 + 8 + 7;
    let width = inner_width(area);
    let drops = dashboard.drops();
    let lines = drops.iter().map(|entry| {
        let rate = format!("{:>6}/s", human::scaled(entry.packets_per_second as f64));
        let rate_style =
            if entry.packets_per_second > 0 { Style::new().fg(Color::Yellow) } else { Style::new().fg(MUTED) };
        let mut spans = vec![
            fit(&entry.reason, 21).into(),
            Span::styled(rate, rate_style),
            format!("{:>7}", human::scaled(entry.packets as f64)).bold(),
        ];
        // Only a wide terminal has space for the sentence.
        if width > NUMBERS + 20 {
            let sentence = fit(&entry.description, width - NUMBERS - 2);
            spans.push(Span::styled(format!("  {sentence}"), Style::new().fg(MUTED)));
        }
        Line::from(spans)
    });
    let mut lines = fitting(lines.collect(), area);
    if lines.is_empty() {
        lines.push(Line::styled("No packet has been dropped.", Style::new().fg(MUTED)));
    }
    let rate = dashboard.current.as_ref().map_or(0, |sample| sample.status.drops_per_second);
    let title = format!("Drops: {}/s", human::scaled(rate as f64));
    frame.render_widget(Paragraph::new(lines).block(panel(&title)), area);
}

fn draw_interfaces(frame: &mut Frame<'_>, area: Rect, sample: &Sample) {
    // 76 columns at least: 12 for the name, 8 and 5 for side and link, 9 for each rate, 8 and 7 for
    // the losses.
    let spare = inner_width(area).saturating_sub(76);
    let name = 12 + (spare / 4).min(20);
    let number = 9 + (spare / 8).min(6);
    let heading = format!(
        "{:<name$}{:<8}{:<5}{:>number$}{:>number$}{:>number$}{:>number$}{:>8}{:>7}",
        "", "", "link", "rx/s", "bit/s", "tx/s", "bit/s", "missed", "full"
    );
    let mut lines = vec![Line::styled(heading, Style::new().fg(MUTED))];
    lines.extend(sample.interfaces.iter().map(|interface| {
        let (link, colour) = if interface.link_up { ("up", Color::Green) } else { ("down", Color::Red) };
        let rate = |rate: u64| format!("{:>number$}", human::scaled(rate as f64));
        let loss = |count: u64, width| {
            let colour = if count > 0 { Color::Yellow } else { MUTED };
            Span::styled(format!("{:>width$}", human::scaled(count as f64)), Style::new().fg(colour))
        };
        Line::from(vec![
            fit(&interface.name, name - 1).into(),
            Span::styled(format!(" {:<8}", interface.side.name()), Style::new().fg(MUTED)),
            Span::styled(format!("{link:<5}"), Style::new().fg(colour)),
            rate(interface.rx_packets_per_second).bold(),
            rate(interface.rx_bits_per_second).into(),
            rate(interface.tx_packets_per_second).bold(),
            rate(interface.tx_bits_per_second).into(),
            loss(interface.rx_missed, 8),
            loss(interface.tx_dropped, 7),
        ])
    }));
    let lines = fitting(lines, area);
    frame.render_widget(Paragraph::new(lines).block(panel("Interfaces")), area);
}

/// A box in the middle of the area.
fn middle(area: Rect, width: u16, height: u16) -> Rect {
    let width = width.min(area.width);
    let height = height.min(area.height);
    Rect { x: area.x + (area.width - width) / 2, y: area.y + (area.height - height) / 2, width, height }
}

fn draw_box(frame: &mut Frame<'_>, title: &str, colour: Color, lines: Vec<Line<'_>>) {
    let height = u16::try_from(lines.len()).unwrap_or(u16::MAX).saturating_add(2);
    let area = middle(frame.area(), BOX_COLUMNS, height);
    let block = Block::bordered()
        .border_type(BorderType::Rounded)
        .border_style(Style::new().fg(colour))
        .title(Span::styled(format!(" {title} "), Style::new().fg(colour).bold()))
        .padding(Padding::horizontal(2));
    frame.render_widget(Clear, area);
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

/// Columns of a box, and of the text in it.
const BOX_COLUMNS: u16 = 68;
const BOX_TEXT_COLUMNS: usize = BOX_COLUMNS as usize - 6;

fn draw_message(frame: &mut Frame<'_>, title: &str, colour: Color, paragraphs: &[String]) {
    let lines = paragraphs.iter().flat_map(|text| wrapped(text, BOX_TEXT_COLUMNS)).map(Line::from).collect();
    draw_box(frame, title, colour, lines);
}

/// Breaks a text at spaces; a longer word is cut.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let word: Vec<char> = word.chars().collect();
        for (position, piece) in word.chunks(width.max(1)).enumerate() {
            let Some(line) = lines.last_mut() else { break };
            let used = line.chars().count();
            let gap = usize::from(used > 0);
            if position > 0 || used + gap + piece.len() > width {
                lines.push(piece.iter().collect());
            } else {
                line.extend(core::iter::repeat_n(' ', gap).chain(piece.iter().copied()));
            }
        }
    }
    lines
}

fn draw_help(frame: &mut Frame<'_>) {
    let keys = [
        ("q, Ctrl-C", "quit"),
        ("p, space", "freeze the picture; counting continues"),
        ("s", "sort drops by total or by rate"),
        ("?, h, Esc", "this help"),
    ];
    let mut lines: Vec<Line<'_>> = keys
        .iter()
        .map(|(key, meaning)| {
            Line::from(vec![Span::styled(format!("{key:<12}"), Style::new().fg(ACCENT).bold()), (*meaning).into()])
        })
        .collect();
    lines.push(Line::default());
    let words = [
        "Rates are those of the last second, by the daemon's clock.",
        "Busy: the share of time in which a worker had packets.",
        "Missed: packets that no worker took in time.",
        "Full: packets dropped because a transmit queue was full.",
    ];
    lines.extend(words.iter().map(|text| Line::styled(*text, Style::new().fg(MUTED))));
    draw_box(frame, "Help", ACCENT, lines);
}
