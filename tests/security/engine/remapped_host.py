"""A host whose engine remaps ids (`userns-remap`), on this machine: with a network, accounts and /run of its own."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.engine_host import EngineHost, engine_host

FIRST, COUNT = 1_000_000, 1 << 31
_ACCOUNTS = """
cp /etc/passwd /etc/group "$1"
echo "remapped:x:61000:61000::/:/bin/false" >>"$1/passwd"
echo "remapped:x:61000:" >>"$1/group"
echo "remapped:{first}:{count}" >"$1/subuid"
cp "$1/subuid" "$1/subgid"
for file in passwd group subuid subgid; do
  mount --bind "$1/$file" "/etc/$file"
done
"""


@contextmanager
def remapped_host(directory: Path, first: int = FIRST, count: int = COUNT) -> Iterator[EngineHost]:
    accounts = _ACCOUNTS.format(first=first, count=count)
    with engine_host(directory, options=("--userns-remap=remapped",), prepare=accounts) as host:
        yield host
