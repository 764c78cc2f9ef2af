"""Interpret incoming facts: what to record of them, and what the ledger keeps."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from muster.contract.outcome import Outcome
from muster.core.agents.agent import HAS_LEFT, NAMES_NOBODY, Agent, AgentState, reported_again
from muster.core.agents.launch_record import LaunchOutcome, LaunchRecord, records_after
from muster.core.agents.silence import is_cut_off
from muster.core.lifecycle.launch_usage import Sample, samples_in
from muster.core.lifecycle.observation import observe
from muster.core.lifecycle.transitions import Event
from muster.core.model.session import KernelLog, LaunchStep, PullProgress, Session
from muster.core.model.snapshot import Snapshot
from muster.core.turn.answer import AgentAnswer
from muster.core.turn.facts import Fact, PullOver, VisitOver
from muster.core.turn.foreign_kernels import with_foreign_kernels
from muster.core.turn.late_ends import asking_before_ends
from muster.core.turn.late_signals import with_late_signals
from muster.core.turn.ledger import PAUSE_AFTER_FAILURE_S, Ledger, TurnRules
from muster.core.turn.open_visits import step_of
from muster.core.turn.renamed_hosts import runs_kernels_of_others, with_kernels_of_others
from muster.core.turn.touch import RESISTING, STRAY_FILES, last_words_of, spooled, unsent
from muster.core.usage.kernel import KernelUsage

_StepOutcome = tuple[tuple[str, str], str, Outcome]
"""A session's id and step, an agent's id, and what that agent made of the step."""


@dataclass(frozen=True, slots=True)
class Interpretation:
    """The records that facts lead to, in the order of these fields; the ledger counts from then on.

    Logs come before anything that says that a kernel has ended. `reporting` are the agents that gave a report. `silent`
    are those that did not, as they are now. `forgotten` holds ids of agents that left the inventory. `records` are
    the launch records that have changed, by agent id. `progress` says, by session id, how far its pulls have come,
    `problems`, by agent id, why it gave no report.
    """

    ledger: Ledger
    logs: tuple[KernelLog, ...] = ()
    usage: tuple[KernelUsage, ...] = ()
    reporting: tuple[Agent, ...] = ()
    silent: tuple[Agent, ...] = ()
    events: tuple[Event, ...] = ()
    forgotten: frozenset[str] = frozenset()
    records: Mapping[str, LaunchRecord] = field(default_factory=dict)
    progress: Mapping[str, tuple[PullProgress, ...]] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)


def interpret(
    snapshot: Snapshot, ledger: Ledger, facts: Sequence[Fact], rules: TurnRules, gone: Iterable[Session] = ()
) -> Interpretation:
    """Return what these facts mean, answers first. A fact that was interpreted before means nothing.

    `gone` are sessions of the answers' last words that are no longer in the snapshot.
    """
    meaning = _interpret_answers(snapshot, ledger, _new_answers(snapshot, facts, ledger), rules, gone)
    for fact in facts:
        match fact:
            case VisitOver():
                meaning = _interpret_end(snapshot, meaning, fact)
            case PullProgress() | PullOver():
                meaning = _interpret_pull(snapshot, meaning, fact, rules)
            case AgentAnswer():
                continue
    return meaning


def _new_answers(snapshot: Snapshot, facts: Iterable[Fact], ledger: Ledger) -> list[AgentAnswer]:
    """Return the answers that a visit waits for: the first of each agent."""
    new: dict[tuple[int | None, str], AgentAnswer] = {}
    known = {agent.id for agent in snapshot.agents}
    for fact in facts:
        if isinstance(fact, AgentAnswer) and ledger.visits.awaits(fact, known):
            new.setdefault((fact.visit, fact.agent_id), fact)
    return list(new.values())


def _interpret_answers(
    snapshot: Snapshot, ledger: Ledger, answers: Sequence[AgentAnswer], rules: TurnRules, gone: Iterable[Session]
) -> Interpretation:
    if not answers:
        return Interpretation(ledger)
    reports = {answer.agent_id: answer.report for answer in answers if answer.report is not None}
    # Those that these answers say have come were still on their way.
    awaited = with_late_signals(snapshot, ledger, reports.keys())
    known = {agent.id: agent for agent in snapshot.agents}
    said = (
        reported_again(known.get(answer.agent_id), answer.agent_id, answer.report, answer.inventory, snapshot.now)
        for answer in answers
        if answer.report is not None
    )
    reporting = with_kernels_of_others(with_foreign_kernels(said, snapshot), snapshot)
    usage = _usage(snapshot, ledger, answers, rules, gone)
    ledger = replace(
        ledger,
        visits=ledger.visits.with_answers(answers),
        pulls=ledger.pulls.shown_by(reporting),
        usage=ledger.usage.with_changed(usage),
    )
    outcomes = list(_outcomes(snapshot, ledger, answers))
    fetched = {
        (answer.agent_id, session_id)
        for answer in answers
        for session_id, outcome in answer.outcomes.items()
        if outcome.outcome == "stopped" and session_id not in snapshot.on_agents
    }
    # By the next observation another process may work the queue, which would not know that they came, and fetch again.
    removable = [(agent_id, last_words_of(session_id)) for agent_id, session_id in fetched - ledger.fetched]
    ledger = replace(ledger, fetched=ledger.fetched | fetched)
    ledger = ledger.with_resisting(_resisting(snapshot, ledger, reporting, answers)).retrying(removable)
    ledger = ledger.with_fences(answers).with_outcomes(outcomes)
    if ledger.adoption is not None:
        ledger = replace(ledger, adoption=ledger.adoption.hearing(reports))
    shown = _as_reported(awaited, reporting)
    # Another host's report says nothing of what is no longer in it.
    own = {agent.id: reports[agent.id] for agent in reporting if not runs_kernels_of_others(agent, snapshot)}
    ledger = asking_before_ends(shown, ledger)
    meaning = Interpretation(
        ledger,
        logs=tuple(_logs(answers)),
        usage=tuple(usage.values()),
        reporting=reporting,
        events=tuple(observe(shown, own, ledger.asked(shown))) if reports and ledger.adoption is None else (),
        records=_records(snapshot, _without_removed_images(shown, ledger, outcomes), rules),
    )
    began = {visit.number: visit.since for visit in ledger.visits.visits}
    silent = {
        a.agent_id: _Silence(a.problem, began.get(a.visit or 0, snapshot.now), a.reached)
        for a in answers
        if a.report is None
    }
    return _with_silent(snapshot, meaning, silent)


def _resisting(
    snapshot: Snapshot, ledger: Ledger, reporting: Iterable[Agent], answers: Iterable[AgentAnswer]
) -> dict[str, frozenset[str]]:
    """Return, by agent id, the last words and the leftovers that agents keep after a visit with a manifest."""
    given = {answer.agent_id: answer for answer in answers}
    nothing_stops = replace(snapshot, sessions=())
    found: dict[str, frozenset[str]] = {}
    for agent in reporting:
        visit, report = ledger.visits.find(given[agent.id].visit), given[agent.id].report
        words = spooled(agent, nothing_stops) if visit is not None and visit.steps else frozenset()
        if report is not None and report.leftovers:
            words |= {RESISTING, STRAY_FILES}
        if words:
            found[agent.id] = words
    return found


def _as_reported(snapshot: Snapshot, reporting: Iterable[Agent]) -> Snapshot:
    """Return the snapshot with these agents as they have just answered, their inventory's attributes included."""
    agents = {agent.id: agent for agent in (*snapshot.agents, *reporting)}
    return snapshot.of_same_sessions(agents=tuple(agents.values()))


def _logs(answers: Iterable[AgentAnswer]) -> Iterator[KernelLog]:
    for answer in answers:
        for session_id, outcome in answer.outcomes.items():
            yield from (KernelLog(session_id, words.name, words.log_gz) for words in outcome.last_words)


def _usage(
    snapshot: Snapshot, ledger: Ledger, answers: Sequence[AgentAnswer], rules: TurnRules, gone: Iterable[Session]
) -> dict[str, KernelUsage]:
    """Return, by kernel id, the usage that is new: of last words, and then of reports."""
    said = {key for answer in answers for key, outcome in answer.outcomes.items() if outcome.last_words}
    sessions = {s.id: s for s in chain(gone, snapshot.sessions) if s.id in said} if said else {}
    words = [
        Sample(sessions[session_id], word.kernel_id, word.use, is_last=True)
        for answer in answers
        for session_id, outcome in answer.outcomes.items()
        for word in outcome.last_words
        if word.use is not None and session_id in sessions and sessions[session_id].started_at is not None
    ]
    samples = samples_in({a.agent_id: a.report for a in answers if a.report is not None}, snapshot)
    last = ledger.usage.changed_by(words, snapshot.now, rules.idle_rules)
    usage = ledger.usage.with_changed(last)
    return last | usage.changed_by(samples, snapshot.now, rules.idle_rules)


def _outcomes(snapshot: Snapshot, ledger: Ledger, answers: Iterable[AgentAnswer]) -> Iterator[_StepOutcome]:
    """Yield the agents' outcomes of the steps in their visit's manifests."""
    for answer in answers:
        visit = ledger.visits.find(answer.visit)
        steps = visit.steps if visit is not None else {}
        for session_id, outcome in answer.outcomes.items():
            if session_id in steps and outcome.outcome != "kept":
                yield (session_id, steps[session_id]), answer.agent_id, outcome
        if answer.report is None:
            for session in _launched_on(answer.agent_id, snapshot, ledger):
                unbegun = answer.nothing_begun or (answer.reached and session.spans_agents)
                if unbegun and session.id in steps and session.id not in answer.outcomes:
                    yield (session.id, steps[session.id]), answer.agent_id, _refused(answer)


def _launched_on(agent_id: str, snapshot: Snapshot, ledger: Ledger) -> Iterator[Session]:
    for session_id, generation in ledger.launches:
        session = snapshot.on_agents.get(session_id)
        if session is not None and session.generation == generation and agent_id in session.agents:
            yield session


def _without_removed_images(
    shown: Snapshot, ledger: Ledger, outcomes: Iterable[_StepOutcome]
) -> Iterator[_StepOutcome]:
    """Yield the outcomes but for failures on agents from which the image was removed: no agent is to blame for that."""
    agents = {agent.id: agent for agent in shown.agents}
    for step, agent_id, outcome in outcomes:
        session = shown.on_agents.get(step[0]) if outcome.outcome == "failed" else None
        lacking = ledger.pulls.missing(session, agents).values() if session is not None else ()
        if not any(agent_id in agent_ids for agent_ids in lacking):
            yield step, agent_id, outcome


def _records(snapshot: Snapshot, outcomes: Iterable[_StepOutcome], rules: TurnRules) -> dict[str, LaunchRecord]:
    """Return the launch records that these outcomes change, by agent id."""
    launches = []
    for (session_id, step), agent_id, outcome in outcomes:
        session = snapshot.on_agents.get(session_id)
        if session is None or session.step is not LaunchStep.STARTING or step != step_of(session):
            continue
        went_well = outcome.outcome != "failed"
        # What no retry can help is the session's own fault, and an agent that was not reached has tried nothing.
        if went_well or (outcome.reached and not outcome.permanent):
            launches.append(_launch_outcome(session, agent_id, went_well=went_well))
    return _changed_records(snapshot, launches, rules)


def _launch_outcome(session: Session, agent_id: str, *, went_well: bool) -> LaunchOutcome:
    failed_elsewhere = bool(set(session.failed_on) - {agent_id})
    return LaunchOutcome(agent_id, session.id, session.owner, went_well, failed_elsewhere)


def _changed_records(
    snapshot: Snapshot, launches: Sequence[LaunchOutcome], rules: TurnRules
) -> dict[str, LaunchRecord]:
    if not launches:
        return {}
    groups = {agent.id: agent.resource_group for agent in snapshot.agents}
    changed: dict[str, LaunchRecord] = {}
    for group in sorted({groups[launch.agent_id] for launch in launches if launch.agent_id in groups}):
        agents = [agent for agent in snapshot.agents if agent.resource_group == group]
        takers = frozenset(agent.id for agent in agents if agent.takes_sessions)
        owners = {session.owner for session in snapshot.sessions if session.spec.resource_group == group}
        here = [launch for launch in launches if groups.get(launch.agent_id) == group]
        records = {agent.id: agent.launch_record for agent in agents}
        changed |= records_after(records, here, len(owners), takers, snapshot.now, rules.suspects)
    return changed


def _refused(answer: AgentAnswer) -> Outcome:
    """Return the outcome of a launch without begun commands, on an agent whose visit failed as a whole.

    A launch on one agent begins its commands there: unless the agent began nothing, it is unclear what became of it.
    """
    return Outcome("failed", f"agent {answer.agent_id}: {answer.problem}", reached=answer.reached)


def _interpret_end(snapshot: Snapshot, meaning: Interpretation, end: VisitOver) -> Interpretation:
    """Note the end of a visit, and the silence of the agents that it still waits for."""
    visit = meaning.ledger.visits.find(end.visit)
    if visit is None:
        return meaning
    meaning = replace(meaning, ledger=replace(meaning.ledger, visits=meaning.ledger.visits.without(end.visit)))
    if end.error is not None:
        # If the visit broke off, an agent's silence says nothing about the agent.
        ledger = meaning.ledger
        return replace(
            meaning,
            ledger=replace(
                ledger,
                adoption=ledger.adoption and ledger.adoption.asking(None),
                paused_until=snapshot.now + PAUSE_AFTER_FAILURE_S,
                # Nor has it asked them to send signals.
                leftovers_tried=_without_signals(ledger.leftovers_tried, visit.waiting, snapshot),
            ),
        )
    if not visit.everywhere:
        silence = _Silence("Ansible returned no answer from it", visit.since, reached=False)
        return _with_silent(snapshot, meaning, dict.fromkeys(visit.waiting, silence))
    known = visit.waiting & {agent.id for agent in snapshot.agents}
    needed = known & {agent_id for session in snapshot.placed for agent_id in session.agents}
    meaning = replace(meaning, forgotten=meaning.forgotten | (known - needed))
    # Those in other visits were named when these began.
    names_nobody = not visit.answered and len(known) == len(snapshot.agents)
    silence = _Silence(NAMES_NOBODY if names_nobody else HAS_LEFT, visit.since, reached=False)
    return _with_silent(snapshot, meaning, dict.fromkeys(needed, silence))


def _without_signals(
    tried: Mapping[str, frozenset[str]], agent_ids: Collection[str], snapshot: Snapshot
) -> Mapping[str, frozenset[str]]:
    agents = {agent.id: agent for agent in snapshot.agents if agent.id in agent_ids and agent.id in tried}
    return {**tried, **{id_: tried[id_] - unsent(agent, snapshot) for id_, agent in agents.items()}}


@dataclass(frozen=True, slots=True)
class _Silence:
    """The reason for a missing report in a visit that began at `since`, and whether the host was reached."""

    problem: str
    since: float
    reached: bool


def _with_silent(snapshot: Snapshot, meaning: Interpretation, silences: Mapping[str, _Silence]) -> Interpretation:
    """Note that these agents gave no report: UNREACHABLE, if they were not LOST."""
    before = {agent.id: agent for agent in (*snapshot.agents, *meaning.silent)}
    silent = {
        agent_id: before[agent_id].unanswered(silence.problem, silence.since, reached=silence.reached)
        for agent_id, silence in silences.items()
        if agent_id in before
    }
    after = before | {agent.id: agent for agent in meaning.reporting} | silent
    if is_cut_off(snapshot.agents) and not is_cut_off(after.values()):
        # Until now it was the control node that was silent.
        still = (agent for agent in after.values() if agent.state is AgentState.UNREACHABLE)
        silent |= {agent.id: replace(agent, silence_counts_from=snapshot.now) for agent in still}
    problems = {agent_id: silence.problem for agent_id, silence in silences.items()}
    others = tuple(agent for agent in meaning.silent if agent.id not in silent)
    return replace(
        meaning,
        ledger=meaning.ledger.with_silent({id_: one.since for id_, one in silences.items()}, snapshot.now),
        silent=(*others, *silent.values()),
        problems={**meaning.problems, **problems},
    )


def _interpret_pull(
    snapshot: Snapshot, meaning: Interpretation, fact: PullProgress | PullOver, rules: TurnRules
) -> Interpretation:
    before = meaning.ledger.pulls
    pulls = before.after(fact)
    if pulls is before:
        return meaning
    meaning = replace(meaning, ledger=replace(meaning.ledger, pulls=pulls))
    if isinstance(fact, PullProgress):
        agents = {agent.id: agent for agent in (*snapshot.agents, *meaning.reporting)}
        progress = {
            session.id: pulls.progress(pulls.missing(session, agents))
            for session in snapshot.placed
            if session.step is LaunchStep.PULLING and any(kernel.image == fact.image for kernel in session.kernels)
        }
        return replace(meaning, progress={**meaning.progress, **progress})
    if fact.error is None:
        return replace(meaning, ledger=meaning.ledger.observing([fact.agent_id]))
    if fact.error.permanent:
        return meaning
    failed = [
        _launch_outcome(session, fact.agent_id, went_well=False)
        for session in snapshot.placed
        if session.step is LaunchStep.PULLING and fact.image in _images_on(session, fact.agent_id)
    ]
    return replace(meaning, records={**meaning.records, **_changed_records(snapshot, failed, rules)})


def _images_on(session: Session, agent_id: str) -> set[str]:
    return {kernel.image for kernel in session.kernels if kernel.allocation and kernel.allocation.agent_id == agent_id}
