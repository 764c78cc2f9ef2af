"""What engines of several versions say of a port that another program has."""

import pytest

from tests.modules.agent_code import gang_launch

EXTERNAL = "driver failed programming external connectivity on endpoint muster-78f900947d7f-main1 (4b93616e2b)"


@pytest.mark.parametrize(
    ("said", "address"),
    [
        ("Error starting userland proxy: listen tcp4 127.0.0.1:29000: bind: address already in use", "127.0.0.1:29000"),
        ("Bind for 127.0.0.1:29001 failed: port is already allocated", "127.0.0.1:29001"),
        ("failed to bind host port for 127.0.0.1:46853:10.200.2.2:2200/tcp: address already in use", "127.0.0.1:46853"),
        (
            "failed to bind host port 29001 for 127.0.0.1:29000-29001:10.200.6.2:2200/tcp: address already in use",
            "127.0.0.1:29001",
        ),
        ("failed to bind host port 0.0.0.0:80/tcp: address already in use", "0.0.0.0:80"),
        ("failed to bind host port [::]:80/tcp: address already in use", "[::]:80"),
        ("failed to bind host port for [::]:80:[fd00::2]:2200/tcp: address already in use", "[::]:80"),
        ("all ports are allocated", ""),
        ("failed to bind host port for 10.9.9.9:80:10.200.2.2:2200/tcp: cannot assign requested address", ""),
    ],
)
def test_the_address_is_read_out_of_an_engines_words(said, address):
    assert gang_launch.taken_address(f"{EXTERNAL}: {said}") == address
    assert gang_launch.taken_address(f"failed to set up container networking: {EXTERNAL}: {said}") == address
