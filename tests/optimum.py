"""The best that can be placed at once, by OR-Tools' CP-SAT: what the greedy scheduler is measured against."""

from collections.abc import Sequence
from dataclasses import dataclass

from ortools.sat.python import cp_model

from muster.core.agents.agent import Agent
from muster.core.model.session import Session
from muster.core.values.slots import SLOT_NAMES


@dataclass(frozen=True)
class Optimum:
    """The `gpus` in placed sessions, of `bound` at the most. If it is `proven`, more are not possible."""

    gpus: int
    bound: int
    proven: bool
    placed: frozenset[str]


def optimum(agents: Sequence[Agent], sessions: Sequence[Session], time_limit_s: float) -> Optimum:
    """Return the most whole GPUs in gangs placed whole on empty agents: cpu, mem and gpu counted, fGPU not.

    A gang's kernels are alike. A single-node gang lies on one agent, any other on as many as it needs.
    """
    model, placed = _model(agents, sessions)
    model.maximize(sum(session.slots.gpu * placed[session.id] for session in sessions))
    solver, status = _solved(model, time_limit_s)
    if status not in {cp_model.OPTIMAL, cp_model.FEASIBLE}:
        raise RuntimeError(f"CP-SAT found nothing in {time_limit_s} s: {solver.status_name()}")
    return Optimum(
        round(solver.objective_value),
        round(solver.best_objective_bound),
        status == cp_model.OPTIMAL,
        frozenset(session_id for session_id, variable in placed.items() if solver.value(variable)),
    )


def in_order(agents: Sequence[Agent], sessions: Sequence[Session], time_limit_s: float) -> Optimum:
    """Return the whole GPUs of the gangs that start if each is placed, in its turn, wherever it fits.

    As `optimum`, but nobody is passed over for the sake of others. Not `proven` where the solver did not decide within
    the time limit for one gang, which then counts as one that does not fit.
    """
    taken: list[Session] = []
    proven = True
    for session in sessions:
        model, placed = _model(agents, [*taken, session])
        for variable in placed.values():
            model.add(variable == 1)
        _, status = _solved(model, time_limit_s)
        if status in {cp_model.OPTIMAL, cp_model.FEASIBLE}:
            taken.append(session)
        proven = proven and status != cp_model.UNKNOWN
    gpus = sum(session.slots.gpu for session in taken)
    return Optimum(gpus, gpus, proven, frozenset(session.id for session in taken))


def _solved(model: cp_model.CpModel, time_limit_s: float) -> tuple[cp_model.CpSolver, cp_model.CpSolverStatus]:
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = time_limit_s
    solver.parameters.num_workers = 2
    return solver, solver.solve(model)


def _model(agents: Sequence[Agent], sessions: Sequence[Session]) -> tuple[cp_model.CpModel, dict[str, cp_model.IntVar]]:
    """Return a model of what the agents can hold, and by session id whether it is placed."""
    model = cp_model.CpModel()
    placed = {s.id: model.new_bool_var(f"placed {s.name}") for s in sessions}
    used: dict[tuple[str, str], list[cp_model.LinearExprT]] = {}
    for session in sessions:
        size, slots = len(session.kernels), session.main.slots
        if any(kernel.slots != slots for kernel in session.kernels) or slots.fgpu:
            raise ValueError(f"{session.name} has kernels that differ, or shares of GPUs")
        counts: list[cp_model.LinearExprT] = []
        for agent in agents:
            if session.spec.cluster_mode == "single-node":
                count: cp_model.LinearExprT = size * model.new_bool_var(f"{session.name} on {agent.id}")
            else:
                count = model.new_int_var(0, size, f"{session.name} on {agent.id}")
            counts.append(count)
            for name in SLOT_NAMES:
                if amount := getattr(slots, name):
                    used.setdefault((agent.id, name), []).append(amount * count)
        model.add(sum(counts) == size * placed[session.id])
    for agent in agents:
        for name in SLOT_NAMES:
            model.add(sum(used.get((agent.id, name), [])) <= getattr(agent.capacity, name))
    return model, placed
