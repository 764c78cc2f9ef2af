"""Programs that a user runs in a kernel: `muster exec`, and what stands on it."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Protocol

from muster.core.agents.agent import Agent
from muster.core.model.session import Session, kernel_named
from muster.core.values.errors import AgentUnreachableError
from muster.engine.execution import ContainerPrograms, Execution, Programs
from muster.service.reach.logs import agent_of

if TYPE_CHECKING:  # the Docker SDK loads slowly
    from docker.models.containers import Container


class KernelPrograms(Programs, Protocol):
    """What starts programs in one kernel, and which that is."""

    @property
    def session_id(self) -> str: ...

    @property
    def title(self) -> str:
        """Return the kernel's name with its session's, such as train:main1."""
        ...


class _LocalPrograms(ContainerPrograms):
    """Programs of a kernel by its agent's engine."""

    def __init__(self, container: "Container", session_id: str, title: str) -> None:
        super().__init__(container)
        self.session_id = session_id
        self.title = title


class Program:
    """A program that runs until it is closed."""

    def __init__(self, session: Session, execution: Execution, ending: ExitStack) -> None:
        self.session = session
        self.connection = execution.connection
        self._execution = execution
        self._ending = ending

    def resize(self, columns: int, rows: int) -> None:
        self._execution.resize(columns, rows)

    def exit_code(self) -> int:
        """Return the exit code of a program that has closed its output. Raises AgentUnreachableError."""
        from muster.engine.agent_engine import ENGINE_ERRORS, cause  # noqa: PLC0415 - the Docker SDK loads slowly

        try:
            return self._execution.exit_code()
        except ENGINE_ERRORS as error:
            raise AgentUnreachableError(f"session {self.session.name}: its agent: {cause(error)}") from None

    def close(self) -> None:
        self._ending.close()


@contextmanager
def opened_programs(agents: Sequence[Agent], session: Session, kernel_name: str | None) -> Iterator[KernelPrograms]:
    """Yield what starts programs in a kernel.

    Raises NotFoundError, NotPossibleInStateError where it does not run, and AgentUnreachableError.
    """
    from muster.engine.agent_engine import container_of  # noqa: PLC0415 - the Docker SDK loads slowly

    kernel = kernel_named(session, kernel_name)
    with container_of(agent_of(agents, session, kernel), kernel) as container:
        yield _LocalPrograms(container, session.id, f"{session.name}:{kernel.name}")


def open_program(
    agents: Sequence[Agent], session: Session, kernel_name: str | None, command: Sequence[str], *, terminal: bool
) -> Program:
    """Start a program in a kernel. Raises as `opened_programs`."""
    with ExitStack() as stack:
        programs = stack.enter_context(opened_programs(agents, session, kernel_name))
        execution = stack.enter_context(programs.start(command, terminal=terminal))
        return Program(session, execution, stack.pop_all())
