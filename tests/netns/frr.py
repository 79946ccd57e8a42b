"""Routing daemons in namespaces: FRR and BIRD, as the distribution brings them, and the recipes of docs/routing.md."""

import contextlib
import tempfile
from pathlib import Path

from kit import *
from netlab.frr import Router
from netlab.process import wait_until

__all__ = ["REPOSITORY", "Bird", "Router", "recipe", "routers"]

REPOSITORY = Path(__file__).resolve().parents[2]


class Bird:
    """BIRD in a namespace, with its socket in a folder of its own."""

    def __init__(self, host, configuration):
        self.directory = tempfile.TemporaryDirectory(prefix="natrix-bird-")
        self.folder = Path(self.directory.name)
        self.host = host
        (self.folder / "bird.conf").write_text(configuration)
        self.start()

    def start(self, *options):
        """Starts it, after it was killed as well."""
        control = self.folder / "bird.ctl"
        # Of a process that was killed.
        control.unlink(missing_ok=True)
        words = ["/usr/sbin/bird", "-f", "-c", self.folder / "bird.conf", "-s", control, "-P", self.folder / "bird.pid"]
        self.daemon = self.host.start("bird", [*words, *options])
        expect(wait_until(control.exists, 10, 0.05), f"bird: {self.daemon.log()}")

    def kill(self):
        """Ends it without a word to the peer or to the kernel."""
        self.daemon.process.kill()
        self.daemon.process.wait(60)

    def ask(self, *words):
        """What `birdc show WORDS` prints."""
        return self.host.run(["birdc", "-r", "-s", self.folder / "bird.ctl", "show", *words])[1]

    def is_established(self):
        return "Established" in self.ask("protocols", "all")

    def end(self):
        self.daemon.end()
        self.directory.cleanup()


@contextlib.contextmanager
def routers(*made):
    """Ends the routers at the end of the block."""
    try:
        yield made
    finally:
        for router in made:
            router.end()


def recipe(name):
    """The configuration of each daemon in a recipe of docs/routing.md."""
    blocks = (REPOSITORY / "docs/routing.md").read_text().split("```\n")
    found = {}
    for block in blocks:
        title, _, text = block.partition("\n")
        if title[:1] in "!#" and title[1:].startswith(f" {name} "):
            found[title.split()[2]] = text
    expect(found, f"docs/routing.md has no recipe {name}")
    return found
