//! Types of the control protocol, spoken as JSON lines over a Unix socket.
