"""A way from a port of this machine into a namespace, so that a browser reaches a page in there."""

import contextlib
import socket
import threading

_CONNECTIONS_MAX = 64


class Forward:
    """Copies between connections to a free port of this machine's loopback and a port of the namespace's."""

    def __init__(self, namespace, port):
        self.namespace, self.port = namespace, port
        self.places = threading.BoundedSemaphore(_CONNECTIONS_MAX)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self.listener.getsockname()[1]}/"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        self.listener.close()

    def _accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            if not self.places.acquire(blocking=False):
                client.close()
                continue
            threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client):
        with contextlib.suppress(OSError), client:
            # Only this thread is in the namespace, and the socket stays there.
            with self.namespace.entered():
                server = socket.socket()
            with server:
                server.connect(("127.0.0.1", self.port))
                back = threading.Thread(target=self._copy, args=(server, client), daemon=True)
                back.start()
                self._copy(client, server)
                back.join()
        self.places.release()

    @staticmethod
    def _copy(source, destination):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                destination.sendall(data)
        for sock in (source, destination):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
