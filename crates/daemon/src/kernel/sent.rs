//! What the kernel has sent, which says what it waits for.

use packet_io::PortIndex;

use crate::kernel::connections::Connections;
use crate::kernel::questions::Questions;

/// Noted by the kernel's thread, for the workers.
#[derive(Debug)]
pub(crate) struct Sent {
    pub(super) questions: Questions,
    pub(super) connections: Connections,
}

impl Sent {
    /// Nothing yet. Others cannot foresee places by `secret`.
    pub(crate) fn new(secret: u64) -> Sent {
        Sent { questions: Questions::new(secret), connections: Connections::new(secret.rotate_left(32)) }
    }

    /// The kernel sends a frame by a port. Only one thread may call it.
    pub(crate) fn note(&self, port: PortIndex, frame: &[u8]) {
        self.questions.note(port, frame);
        self.connections.note(frame);
    }
}
