//! Claims about both sides of the control protocol.

use control::Fault;
use control::Reply;
use control::Request;
use control::line::LineError;
use control::line::LineReader;
use control::line::REPLY_BYTES_MAX;
use control::server::Connection;

/// A request that is read is the same when read from its own text. Each other line is answered by
/// one error.
pub fn requests(bytes: &[u8]) {
    let mut answers = Vec::new();
    let Ok(mut connection) = Connection::new(bytes, &mut answers, "0") else { return };
    let mut refused = 0;
    loop {
        match connection.next_request() {
            Ok(Some(request)) => {
                let text = serde_json::to_string(&request).unwrap_or_default();
                assert_eq!(serde_json::from_str::<Request>(&text).ok().as_ref(), Some(&request), "{text}");
            }
            Err(LineError::Unreadable(_)) => refused += 1,
            Err(LineError::TooLong { .. }) => {
                refused += 1;
                break;
            }
            // A client of another version gets an error, and the daemon closes.
            Err(LineError::Io(_)) => {
                refused += 1;
                break;
            }
            Ok(None) | Err(LineError::Truncated) => break,
        }
    }
    drop(connection);
    let lines: Vec<&[u8]> = answers.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).collect();
    // The first line is the hello.
    assert_eq!(lines.len(), 1 + refused);
    for line in lines.into_iter().skip(1) {
        assert!(matches!(serde_json::from_slice(line), Ok(Reply::Error(Fault { .. }))));
    }
}

/// A reply that is read is the same when read from its own text.
pub fn replies(bytes: &[u8]) {
    let mut reader = LineReader::new(bytes, REPLY_BYTES_MAX);
    loop {
        match reader.next_value::<Reply>() {
            Ok(Some(reply)) => {
                let text = serde_json::to_string(&reply).unwrap_or_default();
                assert_eq!(serde_json::from_str::<Reply>(&text).ok().as_ref(), Some(&reply), "{text}");
            }
            Err(LineError::Unreadable(_)) => {}
            Ok(None) | Err(_) => return,
        }
    }
}
