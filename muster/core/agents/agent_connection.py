"""How an agent is reached and what its networks need: the inventory's word, never the agent's own."""

import ipaddress
from typing import Annotated

from pydantic import BeforeValidator, ConfigDict

from muster.core.spec.base import SpecModel
from muster.core.spec.values import invalid

LOCAL = "local"
_PORT_REMEDY = "write a number from 1 to 65535, or leave it out"


def _line(value: object) -> str:
    """Return the value as one line of text: YAML makes numbers of names such as `12`."""
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(text, str) or not text.isprintable():
        raise invalid(f"{value!r} is not one line of text", "write one line without control characters")
    return text


def _port(value: object) -> int | None:
    text = str(value)
    if not text:
        return None
    if not text.isdecimal() or not 1 <= int(text) <= 65_535:
        raise invalid(f"{value!r} is no port", _PORT_REMEDY)
    return int(text)


def _address(value: object) -> str:
    try:
        return str(ipaddress.ip_address(str(value)))
    except ValueError:
        raise invalid(f"{value!r} is no IP address", "write an address of the agent, or 0.0.0.0 for all") from None


def _mtu(value: object) -> int:
    text = str(value)
    if not text.isdecimal() or (int(text) and not 68 <= int(text) <= 65_535):
        raise invalid(f"{value!r} is no MTU", "write a number of bytes such as 1400, or 0 for the engine's own")
    return int(text)


def _encrypted(value: object) -> bool | None:
    """Return true, false, or None for `auto`. A value from Ansible's command line is text."""
    words = {"auto": None, "true": True, "yes": True, "false": False, "no": False}
    if (text := str(value).lower()) not in words:
        raise invalid(f"{value!r} is not known", "write auto, true or false")
    return words[text]


class AgentConnection(SpecModel):
    """The way to an agent, and to its kernels.

    `address`, `user` and `port` are empty or None if the inventory leaves them to ssh; `overlay_mtu` is 0 if it leaves
    that to the engine. main1's sshd is published at `publish_address`. `overlay_encrypted` is None if an overlay shall
    be encrypted whenever all of its agents can.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    connection: Annotated[str, BeforeValidator(_line)] = "ssh"
    address: Annotated[str, BeforeValidator(_line)] = ""
    port: Annotated[int | None, BeforeValidator(_port)] = None
    user: Annotated[str, BeforeValidator(_line)] = ""
    ssh_args: Annotated[str, BeforeValidator(_line)] = ""
    private_key_file: Annotated[str, BeforeValidator(_line)] = ""
    publish_address: Annotated[str, BeforeValidator(_address)] = "127.0.0.1"
    overlay_mtu: Annotated[int, BeforeValidator(_mtu)] = 0
    overlay_encrypted: Annotated[bool | None, BeforeValidator(_encrypted)] = None

    @property
    def is_local(self) -> bool:
        """Return whether the agent is the control node itself."""
        return self.connection == LOCAL

    @property
    def publishes_to_others(self) -> bool:
        """Return whether others than the agent itself reach what it publishes."""
        return not ipaddress.ip_address(self.publish_address).is_loopback
