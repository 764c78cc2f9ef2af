"""A control node that may have PostgreSQL, and a clock that can go wrong."""

from dataclasses import dataclass

from tests.contract.postgresql_server import PostgresqlServer
from tests.lab.chaos.clock import Clock
from tests.lab.control_node import LabControlNode
from tests.running.forked_cli import ForkedMuster


@dataclass
class ChaosControlNode(LabControlNode):
    """A control node with a `clock` for the daemon, its children and users' commands, which can go wrong."""

    server: PostgresqlServer | None = None
    clock: Clock | None = None

    @property
    def environment(self) -> dict[str, str]:
        # A command for which the clock goes right is forked, at a fraction of the price of a program.
        return {**super().environment, **(self.clock.variables if self.clock and self.clock.is_wrong else {})}

    def launch_daemon(self) -> None:
        variables = self.clock.variables if self.clock else {}
        self.daemon = ForkedMuster(("daemon",), {**self.environment, **variables}, self.directory / "daemon.log")
