"""The reports about a session's kernels. An agent's entry counts only for kernels that were placed on it."""

from collections.abc import Mapping

from muster.contract.report import KernelReport, Report
from muster.core.model.session import Session

Reports = Mapping[str, Report]


def reported_kernels(session: Session, reports: Reports) -> dict[str, KernelReport]:
    """Return the containers of the session's present launch in these reports, which are by agent id, by kernel id."""
    placed = {kernel.id: kernel.allocation.agent_id for kernel in session.kernels if kernel.allocation}
    return {
        entry.kernel_id: entry
        for agent_id in session.agents
        if agent_id in reports
        for entry in reports[agent_id].kernels
        if (entry.session_id, entry.generation) == (session.id, session.generation)
        and placed.get(entry.kernel_id) == agent_id
    }
