//! Workers, clock, steering, hand-off, neighbours and routes, control socket.
