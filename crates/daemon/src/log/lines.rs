//! Events as lines on standard error.

use core::fmt;
use std::io;
use std::io::Write;

use jiff::Timestamp;
use serde_json::json;
use tracing::Event;
use tracing::Level;
use tracing::Subscriber;
use tracing::field::Field;
use tracing::field::Visit;
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// How a line looks.
#[derive(Clone, Copy, Debug)]
pub(super) enum Lines {
    /// `warning: object: what is wrong`.
    Text,
    /// `{"time":…,"level":"warning","object":…,"message":…}`.
    Json,
}

/// The fields of an event.
#[derive(Debug, Default)]
struct Fields {
    object: Option<String>,
    message: String,
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "object" => self.object = Some(value.to_owned()),
            "message" => value.clone_into(&mut self.message),
            _ => {}
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}

fn word(level: Level) -> &'static str {
    match level {
        Level::ERROR => "error",
        Level::WARN => "warning",
        Level::INFO => "info",
        _ => "debug",
    }
}

impl Lines {
    fn line(self, level: Level, fields: &Fields, now: Timestamp) -> String {
        let Fields { object, message } = fields;
        match (self, object) {
            (Lines::Text, Some(object)) => format!("{}: {object}: {message}\n", word(level)),
            (Lines::Text, None) => format!("{}: {message}\n", word(level)),
            (Lines::Json, _) => {
                let time = format!("{now:.6}");
                format!("{}\n", json!({ "time": time, "level": word(level), "object": object, "message": message }))
            }
        }
    }
}

impl<S: Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let line = self.line(*event.metadata().level(), &fields, Timestamp::now());
        // A failure to write the log cannot be reported anywhere.
        let _ = io::stderr().lock().write_all(line.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_text_or_json() {
        let fields = Fields { object: Some("pool \"a\"".to_owned()), message: "is\nfull".to_owned() };
        let now: Timestamp = "2026-11-24T11:30:00.25Z".parse().unwrap();
        assert_eq!(Lines::Text.line(Level::WARN, &fields, now), "warning: pool \"a\": is\nfull\n");
        let line = Lines::Json.line(Level::ERROR, &fields, now);
        assert_eq!(line.matches('\n').count(), 1, "one line");
        let read: serde_json::Value = serde_json::from_str(&line).unwrap();
        let wanted = json!({
            "time": "2026-11-24T11:30:00.250000Z", "level": "error", "object": "pool \"a\"", "message": "is\nfull"
        });
        assert_eq!(read, wanted);
        let fields = Fields { object: None, message: "stopped".to_owned() };
        assert_eq!(Lines::Text.line(Level::INFO, &fields, now), "info: stopped\n");
    }
}
