#!/usr/bin/env python3
"""A service manager with a store of descriptors, as systemd has: manager.py SOCKET COMMAND...

Starts the command, keeps the descriptors that it stores, and gives them to the next process. SIGUSR1 restarts the
command, SIGTERM ends it. Prints what the command reports.
"""

import os
import pathlib
import signal
import socket
import sys

FIRST = 3


def start(command, store):
    """The process id of the command, which gets all stored descriptors."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    # Out of the way of the numbers they get.
    kept = [os.dup2(descriptor, 100 + number) for number, descriptor in enumerate(store.values())]
    for number, descriptor in enumerate(kept):
        os.dup2(descriptor, FIRST + number)
    if kept:
        os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(kept)), LISTEN_FDNAMES=":".join(store))
    os.closerange(FIRST + len(kept), 200)
    os.execv(command[0], command)


def main():
    path, *command = sys.argv[1:]
    os.environ["NOTIFY_SOCKET"] = path
    notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    # Tests of one setup share a directory.
    pathlib.Path(path).unlink(missing_ok=True)
    notify.bind(path)
    wanted = []
    for number in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(number, lambda number, _: wanted.append(number))
    notify.settimeout(0.1)
    store = {}
    pid = start(command, store)
    while True:
        try:
            text, descriptors, _, _ = socket.recv_fds(notify, 4096, 16)
        except TimeoutError:
            text, descriptors = b"", []
        fields = dict(line.partition("=")[::2] for line in text.decode().splitlines())
        if "FDSTORE" in fields:
            for descriptor in descriptors:
                if fields["FDNAME"] in store:
                    os.close(store[fields["FDNAME"]])
                store[fields["FDNAME"]] = descriptor
            print(f"stored {fields['FDNAME']}", flush=True)
        if "FDSTOREREMOVE" in fields and fields["FDNAME"] in store:
            os.close(store.pop(fields["FDNAME"]))
            print(f"gave back {fields['FDNAME']}", flush=True)
        if "READY" in fields:
            print("ready", flush=True)
        if wanted:
            os.kill(pid, signal.SIGTERM)
            _, status = os.waitpid(pid, 0)
            print(f"ended with status {os.waitstatus_to_exitcode(status)}", flush=True)
            if wanted.pop() == signal.SIGTERM:
                return 0
            pid = start(command, store)


if __name__ == "__main__":
    sys.exit(main())
