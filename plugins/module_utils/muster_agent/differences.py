"""What a run changes: one tracker feeds both `changed` and `--diff`."""

from __future__ import annotations

from typing import NamedTuple

ABSENT = "absent"


class Difference(NamedTuple):
    kind: str
    name: str
    before: str
    after: str


class Differences:
    """A collection of what is, and what will be, of each thing on the host."""

    def __init__(self) -> None:
        self._by_thing: dict[tuple[str, str], Difference] = {}

    def add(self, kind: str, name: str, before: str, after: str) -> None:
        """Note a change; a thing changed twice keeps its first `before`."""
        earlier = self._by_thing.get((kind, name))
        self._by_thing[kind, name] = Difference(kind, name, earlier.before if earlier else before, after)

    @property
    def changes(self) -> list[Difference]:
        return [difference for difference in self._by_thing.values() if difference.before != difference.after]

    @property
    def changed(self) -> bool:
        return bool(self.changes)

    def diff(self) -> dict[str, dict[str, dict[str, str]]]:
        """Return the `diff` of Ansible's result: kind -> name -> state, before and after."""
        before: dict[str, dict[str, str]] = {}
        after: dict[str, dict[str, str]] = {}
        for change in sorted(self.changes):
            before.setdefault(change.kind, {})[change.name] = change.before
            after.setdefault(change.kind, {})[change.name] = change.after
        return {"before": before, "after": after}
