//! Requests, replies and the defence of addresses.

use nat::types::InterfaceId;
use packet_io::Io;
use wire::arp::Message;
use wire::ethernet::ETHER_TYPE_ARP;
use wire::ethernet::MacAddress;

use super::Outlet;

impl<I: Io> Outlet<I> {
    pub(super) fn send_request(&mut self, interface: InterfaceId, sender: u32, target: u32, to: Option<MacAddress>) {
        let Some(link) = self.links.link(interface) else { return };
        let message = Message::request(self.links.station(link.port), sender, target).to_bytes();
        let header = self.links.header(link, to.unwrap_or(MacAddress::BROADCAST), ETHER_TYPE_ARP);
        let Some(buffer) = self.frame(&header, &message) else {
            self.counters.originated_dropped += 1;
            return;
        };
        self.counters.arp_requests += 1;
        self.send_frame(link.port, interface, buffer, None);
    }

    /// Answers an ARP request: the target address is here.
    pub(crate) fn send_reply(&mut self, interface: InterfaceId, request: &Message) {
        let Some(link) = self.links.link(interface) else { return };
        let message = request.reply(self.links.station(link.port)).to_bytes();
        let header = self.links.header(link, request.sender_mac, ETHER_TYPE_ARP);
        let Some(buffer) = self.frame(&header, &message) else {
            self.counters.originated_dropped += 1;
            return;
        };
        self.counters.arp_replies += 1;
        self.send_frame(link.port, interface, buffer, None);
    }

    /// Another station claims an address of ours. RFC 5227 §2.4(c): an address that cannot be given
    /// up is defended by an announcement.
    pub(crate) fn defend(&mut self, interface: InterfaceId, address: u32) {
        self.counters.address_conflicts += 1;
        if self.defences.may_announce(self.now, interface, address.into()) {
            self.send_request(interface, address, address, None);
        }
    }
}
