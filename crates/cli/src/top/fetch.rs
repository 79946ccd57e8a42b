//! Fetches a sample from the daemon each second, and reconnects when it is gone.

use std::io;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;
use std::time::Instant;

use control::Client;
use control::ClientError;
use control::DropReason;
use control::Interface;
use control::Pool;
use control::Request;
use control::Status;

use crate::arguments::Socket;

/// Time between two samples.
const PERIOD: Duration = Duration::from_secs(1);
/// Time limit of a reply, after which the daemon counts as gone.
const REPLY_TIMEOUT: Duration = Duration::from_secs(3);

/// The daemon's state at one moment.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sample {
    pub(crate) status: Status,
    pub(crate) interfaces: Vec<Interface>,
    pub(crate) pools: Vec<Pool>,
    pub(crate) drops: Vec<DropReason>,
}

/// The result of one attempt.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum News {
    /// The daemon answered.
    Sample(Box<Sample>),
    /// The daemon did not answer, for this reason.
    Gone(String),
}

/// Starts fetching; the thread ends when the receiver is dropped.
pub(crate) fn start(socket: Socket) -> io::Result<mpsc::Receiver<News>> {
    let (sender, receiver) = mpsc::channel();
    thread::Builder::new().name("fetch".to_owned()).spawn(move || fetch_until_dropped(&socket, &sender))?;
    Ok(receiver)
}

fn fetch_until_dropped(socket: &Socket, sender: &mpsc::Sender<News>) {
    let mut client = None;
    loop {
        let started = Instant::now();
        let news = match sample(&mut client, socket) {
            Ok(sample) => News::Sample(Box::new(sample)),
            Err(error) => {
                client = None;
                News::Gone(error.to_string())
            }
        };
        if sender.send(news).is_err() {
            return;
        }
        thread::sleep(PERIOD.saturating_sub(started.elapsed()));
    }
}

fn sample(connection: &mut Option<Client>, socket: &Socket) -> Result<Sample, ClientError> {
    let client = match connection {
        Some(client) => client,
        None => connection.insert(Client::connect(socket.path(), env!("CARGO_PKG_VERSION"), REPLY_TIMEOUT)?),
    };
    Ok(Sample {
        status: client.request_one(&Request::Status)?,
        interfaces: client.request(&Request::Interfaces)?.0,
        pools: client.request(&Request::Pools)?.0,
        drops: client.request(&Request::Drops)?.0,
    })
}
