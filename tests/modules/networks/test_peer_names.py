"""Whether a kernel's resolver knows its peers, asked in networks that a test makes."""

import subprocess
import sys
import time
from contextlib import contextmanager

from tests.modules.agent_code import peer_names

# It answers in the place of the engine's resolver, in a network namespace of its own.
RESOLVER = """
import fcntl, socket, struct, sys, time
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", b"lo", 1))  # SIOCSIFFLAGS, IFF_UP
resolver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
resolver.bind(("127.0.0.11", 53))
print("ready", flush=True)
while True:
    query, client = resolver.recvfrom(4096)
    if sys.argv[1] == "answers":
        is_known = b"sub1" in query
        resolver.sendto(query[:2] + struct.pack(">5H", 0x8180, 1, is_known, 0, 0), client)
    give_up_at = time.monotonic() + 30
    while sys.argv[1] == "floods" and time.monotonic() < give_up_at:
        resolver.sendto(bytes(12), client)
"""


@contextmanager
def network(behaviour):
    """Yield the number of a process in a network with a resolver that behaves so."""
    command = ["unshare", "--net", sys.executable, "-c", RESOLVER, behaviour]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            yield process.pid
        finally:
            process.kill()


def test_names_that_the_resolver_does_not_know_are_returned():
    with network("answers") as pid:
        assert peer_names.await_names(pid, ["sub1"], 60) == set()
        assert peer_names.await_names(pid, ["sub1", "sub2"], 0.1) == {"sub2"}


def test_answers_without_end_hold_up_no_release():
    """A tenant's program sends them, which its image's loader has started beside the canary of a share of a GPU."""
    with network("floods") as pid:
        began = time.monotonic()
        assert peer_names.await_names(pid, ["sub1"], 1) == {"sub1"}
        assert time.monotonic() - began < 20
