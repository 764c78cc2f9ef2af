#!/usr/bin/env python3
"""muster-firewall apply | check [-] | remove | learn AGENT ADDRESS …: set this host's rules for sessions' traffic.

Reads /etc/muster-firewall.json, which roles/session_firewall writes. `check` prints how the host's rules differ from
that file, or from the one on standard input, as a diff, and changes nothing: exit status 0 if they do not, 1 if they
do. `learn` adds addresses of an agent to the file, applies it, and prints a line if that changed anything. Other exit
statuses are errors. Written for Python 3.9.

A packet is a session's if it comes from a session's bridge (`mus-*`) or from the bridge by which overlays reach the
outside.
"""

from __future__ import annotations

import difflib
import fcntl
import ipaddress
import json
import sys
from pathlib import Path
from typing import Any

from muster_agent.firewall.backend import Backend, FirewallError, is_installed
from muster_agent.firewall.iptables import Iptables
from muster_agent.firewall.nftables import Nftables
from muster_agent.firewall.site import nameservers, site_of

CONFIGURATION = Path("/etc/muster-firewall.json")
LOCK = Path("/run/muster-firewall.lock")
BACKENDS: dict[str, type[Backend]] = {"iptables": Iptables, "nftables": Nftables}


class Firewall:
    """The firewall of a configuration, by the backend that this host uses."""

    def __init__(self, text: str) -> None:
        try:
            self.configuration: dict[str, Any] = json.loads(text)
            self.site = site_of(self.configuration, _nameservers_here())
            chosen = self.configuration["backend"]
        except (ValueError, KeyError) as error:
            raise FirewallError(f"{CONFIGURATION}: {error}; run playbooks/site.yml") from None
        there = [name for name, backend in BACKENDS.items() if is_installed(backend.program)]
        if not there or (chosen != "auto" and chosen not in there):
            raise FirewallError("install iptables or nftables" if chosen == "auto" else f"{chosen} is not installed")
        self._chosen = there[0] if chosen == "auto" else chosen
        self._others = [name for name in there if name != self._chosen]

    def difference(self) -> str:
        """Return what `apply` would change, as a diff."""
        backend = BACKENDS[self._chosen]()
        pairs = [
            (backend.actual(), backend.expected(self.site)),
            *((BACKENDS[name]().actual(), "") for name in self._others),
        ]
        return "".join(
            line
            for before, after in pairs
            for line in difflib.unified_diff(before.splitlines(True), after.splitlines(True), "is", "shall be", n=0)
        )

    def apply(self) -> None:
        """Set the rules by the chosen backend, and remove those of the other."""
        BACKENDS[self._chosen]().apply(self.site)
        for name in self._others:
            BACKENDS[name]().remove()


def learn(agent: str, addresses: list[str]) -> bool:
    """Add an agent's addresses to the file and to the rules; return whether there were any new ones."""
    configuration = json.loads(_configuration())
    known = configuration["agents"].get(agent, [])
    learned = sorted({*known, *(str(ipaddress.ip_address(address)) for address in addresses)})
    if learned == known:
        return False
    configuration["agents"][agent] = learned
    # In the same format as the role writes, so that its next run changes nothing.
    text = json.dumps(configuration, indent=4, sort_keys=True) + "\n"
    Firewall(text).apply()
    unfinished = CONFIGURATION.with_suffix(".new")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(CONFIGURATION)
    return True


def _configuration() -> str:
    try:
        return CONFIGURATION.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise FirewallError(f"{CONFIGURATION} is missing: run playbooks/site.yml") from None


def _nameservers_here() -> list[str]:
    daemon = _text("/etc/docker/daemon.json")
    return nameservers(
        _text("/etc/resolv.conf"),
        _text("/run/systemd/resolve/resolv.conf"),
        json.loads(daemon) if daemon.strip() else {},
    )


def _text(path: str) -> str:
    try:
        # In comments other programs write what they like.
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""


def main(arguments: list[str]) -> int:
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if arguments == ["apply"]:
            Firewall(_configuration()).apply()
        elif arguments in (["check"], ["check", "-"]):
            difference = Firewall(sys.stdin.read() if arguments[1:] else _configuration()).difference()
            sys.stdout.write(difference)
            return 1 if difference else 0
        elif arguments == ["remove"]:
            for backend in BACKENDS.values():
                if is_installed(backend.program):
                    backend().remove()
        elif arguments[:1] == ["learn"] and len(arguments) > 2:
            if learn(arguments[1], arguments[2:]):
                sys.stdout.write(f"{arguments[1]} is known now\n")
        else:
            sys.stderr.write(f"{__doc__}\n")
            return 2
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (FirewallError, ValueError) as problem:
        sys.stderr.write(f"muster-firewall: {problem}\n")
        sys.exit(2)
