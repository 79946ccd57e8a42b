//! TFTP (RFC 1350): the server answers a request from another port.

use crate::Alg;
use crate::Context;
use crate::Findings;
use crate::Frame;
use crate::LINE_MAX;
use crate::Memory;
use crate::PORT_MIN;
use crate::Reading;
use crate::Transport;
use crate::Want;
use crate::text;

pub(crate) struct Tftp;

impl Alg for Tftp {
    fn name(&self) -> &'static str {
        "tftp"
    }

    fn about(&self) -> &'static str {
        "TFTP (RFC 1350)."
    }

    fn ports(&self) -> &'static [u16] {
        &[69]
    }

    fn transports(&self) -> &'static [Transport] {
        &[Transport::Udp]
    }

    fn frame(&self, _: &mut Memory, _: &Context<'_>, _: &[u8], _: usize) -> Frame {
        Frame::Over
    }

    fn read(&self, _: &mut Memory, context: &Context<'_>, message: &[u8], findings: &mut Findings) -> Reading {
        let asks = context.from_inside && context.from_client && context.internal.port >= PORT_MIN;
        if asks && is_request(message) {
            findings.want(Want { port: context.internal.port, ..Want::default() });
        }
        Reading::Done
    }
}

/// A read or write request: opcode, file name, mode, then options (RFC 1350 §5, RFC 2347).
fn is_request(message: &[u8]) -> bool {
    let Some((&[0, 1 | 2], rest)) = message.split_first_chunk() else { return false };
    if rest.len() > LINE_MAX {
        return false;
    }
    let mut strings = text::parts(rest, 0);
    let name = strings.next().unwrap_or(&[]);
    let mode = strings.next().unwrap_or(&[]);
    let modes: [&[u8]; 3] = [b"octet", b"netascii", b"mail"];
    !name.is_empty()
        && text::all(name, |byte| byte >= 0x20)
        && modes.iter().any(|known| text::is(mode, known))
        && strings.next().is_some()
}
