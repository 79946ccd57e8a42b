"""libtorrent as a torrent client: it asks for its listening port by PCP, and by NAT-PMP where there is no PCP."""

import time

_CLIENT = """
import sys, time
import libtorrent as lt
address, seconds = sys.argv[1], float(sys.argv[2])
session = lt.session({
    "listen_interfaces": f"{address}:0", "enable_natpmp": True, "enable_upnp": False, "enable_lsd": False,
    "enable_dht": False, "alert_mask": lt.alert.category_t.port_mapping_notification | lt.alert.category_t.error_notification,
})
print("listen", session.listen_port(), flush=True)
until = time.monotonic() + seconds
while time.monotonic() < until:
    session.wait_for_alert(200)
    for alert in session.pop_alerts():
        if isinstance(alert, lt.portmap_alert):
            print("mapped", alert.map_protocol, alert.external_port, flush=True)
        elif isinstance(alert, lt.portmap_error_alert):
            print("refused", alert.message(), flush=True)
"""


def start(host, address, seconds):
    """Starts a client on this address. Returns it, and its listening port once both transports are mapped (otherwise
    None)."""
    client = host.start("libtorrent", ["/usr/bin/python3", "-c", _CLIENT, address, str(seconds)])
    until = time.monotonic() + seconds
    lines = []
    while time.monotonic() < until and client.alive() and sum(line.startswith("mapped") for line in lines) < 2:
        time.sleep(0.2)
        lines = client.log().splitlines()
    if sum(line.startswith("mapped") for line in lines) < 2:
        return client, None
    return client, int(next(line for line in lines if line.startswith("listen")).split()[1])
