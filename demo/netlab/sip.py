"""SIP calls with SIPp: signalling over UDP or TCP, and sound both ways, each call on ports of its own."""

import collections
import contextlib
import select
import socket
import struct
import threading
import time
import wave
from pathlib import Path

_ETH_P_IP = 0x0800
# Of Linux; the socket module does not name it.
_SO_RCVBUFFORCE = 33

PORT = 5060
# First port of the sound on each side; calls take four ports each.
MEDIA = 20000
MEDIA_STEP = 4
# So many calls have ports of their own; the next ones take the same again.
MEDIA_CALLS = 10000 // MEDIA_STEP
# Packets of sound that each side sends, one each 20 ms.
SOUND_PACKETS = 5
# Where SIPp asks whether a call may end, and how long a call waits for its sound.
_KEEPER_PORT = 5999
PATIENCE_SECONDS = 10
# Ends each message between SIPp and what it calls its twin.
_END = b"\x1b"

_SDP = """v=0
o=- 1 1 IN IP4 [local_ip]
s=-
c=IN IP4 [local_ip]
t=0 0
m=audio [auto_media_port] RTP/AVP 8
a=rtpmap:8 PCMA/8000
"""

_CALLER = """<?xml version="1.0" encoding="UTF-8"?>
<scenario name="caller">
<send retrans="500"><![CDATA[
INVITE sip:[service]@[remote_ip]:[remote_port] SIP/2.0
Via: SIP/2.0/[transport] [local_ip]:[local_port];branch=[branch]
From: <sip:caller@example.com>;tag=[pid]c[call_number]
To: <sip:[service]@example.com>
Call-ID: [call_id]
CSeq: 1 INVITE
Contact: <sip:caller@[local_ip]:[local_port];transport=[transport]>
Max-Forwards: 70
Content-Type: application/sdp
Content-Length: [len]

{sdp}]]></send>
<recv response="100" optional="true"/>
<recv response="180" optional="true"/>
<recv response="200" rtd="true"/>
<send><![CDATA[
ACK sip:[service]@[remote_ip]:[remote_port] SIP/2.0
Via: SIP/2.0/[transport] [local_ip]:[local_port];branch=[branch]
From: <sip:caller@example.com>;tag=[pid]c[call_number]
To: <sip:[service]@example.com>[peer_tag_param]
Call-ID: [call_id]
CSeq: 1 ACK
Contact: <sip:caller@[local_ip]:[local_port];transport=[transport]>
Max-Forwards: 70
Content-Length: 0

]]></send>
<nop><action><exec play_pcap_audio="{sound}"/></action></nop>
<sendCmd><![CDATA[
Call-ID: [call_id]
Number: [call_number]

]]></sendCmd>
<recvCmd/>
<send retrans="500"><![CDATA[
BYE sip:[service]@[remote_ip]:[remote_port] SIP/2.0
Via: SIP/2.0/[transport] [local_ip]:[local_port];branch=[branch]
From: <sip:caller@example.com>;tag=[pid]c[call_number]
To: <sip:[service]@example.com>[peer_tag_param]
Call-ID: [call_id]
CSeq: 2 BYE
Contact: <sip:caller@[local_ip]:[local_port];transport=[transport]>
Max-Forwards: 70
Content-Length: 0

]]></send>
<recv response="200"/>
</scenario>
"""

# The last answer may be lost. So a call stays for timer J of RFC 3261 §17.2.2, and SIPp answers a
# BYE that is sent again; it does not answer for a call that has ended.
_CALLED = """<?xml version="1.0" encoding="UTF-8"?>
<scenario name="called">
<recv request="INVITE"/>
<send retrans="500"><![CDATA[
SIP/2.0 200 OK
[last_Via:]
[last_From:]
[last_To:];tag=[pid]s[call_number]
[last_Call-ID:]
[last_CSeq:]
Contact: <sip:[local_ip]:[local_port];transport=[transport]>
Content-Type: application/sdp
Content-Length: [len]

{sdp}]]></send>
<recv request="ACK"/>
<nop><action><exec play_pcap_audio="{sound}"/></action></nop>
<recv request="BYE"/>
<send><![CDATA[
SIP/2.0 200 OK
[last_Via:]
[last_From:]
[last_To:]
[last_Call-ID:]
[last_CSeq:]
Contact: <sip:[local_ip]:[local_port];transport=[transport]>
Content-Length: 0

]]></send>
<timewait milliseconds="32000"/>
</scenario>
"""


def _write_sound(path):
    """A capture of RTP packets (RFC 3550) for SIPp to send."""
    records = [struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1)]
    for number in range(SOUND_PACKETS):
        rtp = struct.pack("!BBHII", 0x80, 8, number, number * 160, 0x4E58) + b"\xd5" * 160
        udp = struct.pack("!HHHH", 4000, 4000, 8 + len(rtp), 0) + rtp
        ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), number, 0, 64, 17, 0, b"\x7f\0\0\1", b"\x7f\0\0\1")
        frame = b"\0" * 12 + b"\x08\0" + ip + udp
        records.append(struct.pack("<IIII", 0, number * 20000, len(frame), len(frame)) + frame)
    path.write_bytes(b"".join(records))


def _scenario(network, name, text):
    folder = network.state.bulk / "sip"
    folder.mkdir(exist_ok=True)
    sound = folder / "sound.pcap"
    if not sound.exists():
        _write_sound(sound)
    path = folder / f"{name}.xml"
    path.write_text(text.format(sdp=_SDP, sound=sound))
    return path


def _options(transport, address, media):
    sockets = {"udp": "u1", "tcp": "t1"}[transport]
    return ["-t", sockets, "-i", address, "-p", PORT, "-mi", address, "-mp", media, "-nostdin", "-skip_rlimit"]


def answer(network, host, transport, address, media=MEDIA):
    """Starts the called side, which answers every call."""
    scenario = _scenario(network, "called", _CALLED)
    daemon = host.start(f"sipp-{transport}", ["sipp", *_options(transport, address, media), "-sf", scenario])
    network.wait_for_listener(host, PORT, transport)
    return daemon


def call(network, host, transport, address, called, count, sounds, patience=PATIENCE_SECONDS, at_once=8):
    """Makes calls; SIPp's status (0: all calls went as the scenario says) and what it printed.

    `sounds` are those that come to the caller and to the called. All are in one session, which may announce eight
    ports before they are used.
    """
    scenario = _scenario(network, "caller", _CALLER)
    seconds = 15 + count
    command = ["sipp", f"{called}:{PORT}", *_options(transport, address, MEDIA), "-sf", scenario, "-s", "bob",
               "-m", count, "-l", at_once, "-r", 40, "-3pcc", f"127.0.0.1:{_KEEPER_PORT}",
               "-timeout", f"{seconds}s", "-timeout_error"]  # fmt: skip
    with contextlib.closing(Keeper(host, *sounds, patience)):
        status, out, err = host.run(command, timeout=seconds + 20)
    return status, out + err


class Keeper:
    """Lets SIPp end each of its calls once its sound has come to both sides, or the patience is over.

    SIPp gives up the sound of a call that ends: after a fixed time a busy machine might not have sent any.
    """

    def __init__(self, host, to_caller, to_called, patience):
        self.to_caller, self.to_called, self.patience = to_caller, to_called, patience
        # When the calls that wait are given up, by their Call-ID and port.
        self.waiting = {}
        # Packets that earlier calls of the same port had.
        self.earlier = collections.Counter()
        with host.entered():
            self.listener = socket.create_server(("127.0.0.1", _KEEPER_PORT))
        self.listener.settimeout(0.2)
        self.running = True
        self.thread = threading.Thread(target=self._keep, daemon=True)
        self.thread.start()

    def _keep(self):
        while self.running:
            with contextlib.suppress(socket.timeout, ConnectionError):
                sipp, _ = self.listener.accept()
                with sipp:
                    self._talk(sipp)

    def _talk(self, sipp):
        text = b""
        while self.running:
            if select.select([sipp], [], [], 0.01)[0]:
                part = sipp.recv(65536)
                if not part:
                    return
                *messages, text = (text + part).split(_END)
                for message in messages:
                    keys = dict(line.split(": ", 1) for line in message.decode().split("\r\n") if ": " in line)
                    port = MEDIA + MEDIA_STEP * ((int(keys["Number"]) - 1) % MEDIA_CALLS)
                    self.waiting[keys["Call-ID"], port] = time.monotonic() + self.patience
            for call_id, port in [call for call, end in self.waiting.items() if self._is_over(call[1], end)]:
                del self.waiting[call_id, port]
                sipp.sendall(f"Call-ID: {call_id}\r\n\r\n".encode() + _END)

    def _is_over(self, port, end):
        """Whether the sound of a call has come, by the caller's port."""
        counted = {("caller", port): self.to_caller.ports[port]}
        peer = self.to_caller.peers.get(port)
        counted["called", peer] = self.to_called.ports[peer]
        has_come = all(count - self.earlier[side] >= SOUND_PACKETS for side, count in counted.items())
        if has_come or time.monotonic() > end:
            self.earlier.update({side: count - self.earlier[side] for side, count in counted.items()})
            return True
        return False

    def close(self):
        self.running = False
        self.thread.join()
        self.listener.close()


_KAMAILIO = """#!KAMAILIO
log_stderror=yes
children=2
listen=udp:{address}:{port}
listen=tcp:{address}:{port}
auto_aliases=no
mpath="{modules}"
loadmodule "kex.so"
loadmodule "tm.so"
loadmodule "sl.so"
loadmodule "rr.so"
loadmodule "pv.so"
loadmodule "maxfwd.so"
loadmodule "siputils.so"
loadmodule "usrloc.so"
loadmodule "registrar.so"
modparam("usrloc", "db_mode", 0)
request_route {{
    if (!mf_process_maxfwd_header("10")) {{
        sl_send_reply("483", "Too Many Hops");
        exit;
    }}
    if (has_totag()) {{
        loose_route();
        t_relay();
        exit;
    }}
    if (method == "REGISTER") {{
        save("location");
        exit;
    }}
    record_route();
    if (!lookup("location")) {{
        sl_send_reply("404", "Not Found");
        exit;
    }}
    t_relay();
}}
"""

_BARESIP = """sip_listen {address}:{port}
rtp_ports {media}-{last}
module_path /usr/lib/baresip/modules
module g711.so
module aufile.so
module aubridge.so
module_tmp uuid.so
module_tmp account.so
module_app menu.so
audio_source aufile,{tone}
audio_player aubridge,none
audio_srate 8000
audio_channels 1
"""


def start_registrar(network, host, address, port=PORT):
    """kamailio, which knows of no NAT: it sends calls where the phones registered."""
    folder = network.state.bulk / "kamailio"
    folder.mkdir(exist_ok=True)
    modules = next(Path("/usr/lib").glob("*/kamailio/modules"))
    configuration = folder / "kamailio.cfg"
    configuration.write_text(_KAMAILIO.format(address=address, port=port, modules=modules))
    daemon = host.start("kamailio", ["kamailio", "-f", configuration, "-DD", "-E", "-Y", folder, "-P", folder / "pid"])
    for transport in ("udp", "tcp"):
        network.wait_for_listener(host, port, transport)
    return daemon


def start_phone(network, host, address, name, registrar, *commands):
    """baresip: registers as `name`, answers every call with a tone, and runs these commands."""
    folder = network.state.bulk / f"baresip-{name}"
    folder.mkdir(exist_ok=True)
    tone = folder / "tone.wav"
    with wave.open(str(tone), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(b"\0\x20\0\xe0" * 40_000)
    (folder / "config").write_text(
        _BARESIP.format(address=address, port=PORT, media=MEDIA, last=MEDIA + 100, tone=tone)
    )
    (folder / "accounts").write_text(
        f"<sip:{name}@{registrar}>;auth_pass=none;regint=60;answermode=auto;audio_codecs=PCMA\n"
    )
    (folder / "contacts").write_text("")
    options = [word for command in commands for word in ("-e", command)]
    return host.start(f"baresip-{name}", ["baresip", "-f", folder, *options])


class Sound:
    """Counts the RTP packets that arrive at a host, by destination port, until it is closed.

    `senders` are the addresses they came from, `peers` the last port.
    """

    def __init__(self, host, address):
        with host.entered():
            self.sock = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_ETH_P_IP))
            self.sock.bind(("eth0", _ETH_P_IP))
        self.sock.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 64 << 20)
        self.sock.settimeout(0.2)
        self.address = socket.inet_aton(address)
        self.ports = collections.Counter()
        self.senders = collections.defaultdict(set)
        self.peers = {}
        self.running = True
        self.thread = threading.Thread(target=self._count, daemon=True)
        self.thread.start()

    def _count(self):
        while self.running:
            try:
                data, address = self.sock.recvfrom(2048)
            except (socket.timeout, BlockingIOError):
                continue
            if address[2] == socket.PACKET_OUTGOING or data[9] != socket.IPPROTO_UDP or data[16:20] != self.address:
                continue
            head = (data[0] & 0xF) * 4
            peer, port = struct.unpack("!HH", data[head : head + 4])
            if port >= MEDIA and data[head + 8] == 0x80:
                self.peers[port] = peer
                self.ports[port] += 1
                self.senders[port].add(socket.inet_ntoa(data[12:16]))

    def close(self):
        self.running = False
        self.thread.join()
        self.sock.close()
