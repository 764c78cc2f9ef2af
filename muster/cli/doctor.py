"""`doctor`: checks the installation and says what to mend."""

import os
import pwd
import shutil
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from muster.cli.context import json_option
from muster.cli.output import age, print_json
from muster.core.agents.agent import Agent, reported_again
from muster.core.agents.agent_attributes import FgpuDevices
from muster.core.agents.gpu_toolkit import toolkit_problem
from muster.core.agents.remapped_ids import remapped_ids_problem
from muster.core.images.names import familiar
from muster.core.model.heartbeat import Worker, unworked
from muster.core.turn.answer import AgentAnswer
from muster.core.values.errors import AgentUnreachableError, MusterError
from muster.core.values.slots import format_slot
from muster.engine.agent_engine import engine_of
from muster.engine.agent_ssh import is_local
from muster.service.images.catalog import default_reference, load_catalog, tags_on
from muster.service.scheduler.views import Source
from muster.service.service import Service, queue_is_worked
from muster.settings import Settings, load_settings, settings_path

_MOST_NAMED = 8
_LOGINS_AT_ONCE = 16
_WORK_IT = "start it (`service muster start`), or run `muster pass` from cron"


@dataclass(frozen=True, slots=True)
class Finding:
    """A check: its subject, what it found, and what to do if that is not well."""

    check: str
    ok: bool
    found: str
    remedy: str = ""


@click.command()
@json_option
def doctor(as_json: bool) -> None:
    """Check the installation, and say what to mend. Exit code 1 when something is to be mended."""
    findings = []
    for finding in _findings():
        findings.append(finding)
        if not as_json:
            click.echo(f"{'ok  ' if finding.ok else 'FAIL'}  {finding.check}: {finding.found}")
            if not finding.ok:
                click.echo(f"      {finding.remedy}")
    if as_json:
        print_json([asdict(finding) for finding in findings])
    raise click.exceptions.Exit(0 if all(finding.ok for finding in findings) else 1)


def _findings() -> Iterator[Finding]:
    path = settings_path()
    try:
        settings = load_settings()
    except MusterError as error:
        yield _wrong_settings(str(error))
        return
    yield Finding("settings", ok=True, found=str(path))
    yield _state_directory(settings)
    yield _program("ansible-playbook", "reinstall muster: ansible-core comes with it")
    yield _program("ssh", "install openssh-client: `muster ssh` and agents over SSH need it")
    try:
        yield from _database(settings)
    except MusterError as error:
        yield Finding("database", ok=False, found=str(error), remedy="see `database` in the settings")
    yield _attempt(
        "catalog",
        lambda: f"{len(load_catalog(settings.catalog).images)} images in {settings.catalog}",
        "mend the catalog file",
    )
    yield _attempt("limits and share weights", lambda: _overrides(settings), "repair the database first")
    try:
        yield _worked(settings)
    except MusterError as error:
        yield Finding("daemon", ok=False, found=str(error), remedy="repair the database first")
    yield from _agents(settings)


def _wrong_settings(error: str) -> Finding:
    """Return the finding, with the remedy that a single error names itself, as where a user may not read the file."""
    found, remedy = error, ""
    if "\n" not in error:
        found, _, remedy = error.partition("; ")
    return Finding("settings", ok=False, found=found, remedy=remedy or "mend the file, or run playbooks/site.yml")


def _state_directory(settings: Settings) -> Finding:
    path = settings.state_dir
    if not path.is_dir():
        return Finding("state directory", ok=False, found=f"{path} does not exist", remedy="run playbooks/site.yml")
    mode = path.stat().st_mode & 0o777
    return Finding(
        "state directory", mode == 0o700, f"{path}, mode {mode:04o}", f"chmod 0700 {path}: it holds keys and logs"
    )


def _database(settings: Settings) -> Iterator[Finding]:
    # Opening it is the check.
    with Service.opened(settings) as service:
        place, lossy = service.database, service.lossy_settings()
    yield Finding("database", ok=True, found=place)
    if lossy:
        found = f"after a crash of its server the newest may be lost, and sessions run twice: {', '.join(lossy)} = off"
        yield Finding("database: commits", ok=False, found=found, remedy=f"set {', '.join(lossy)} = on in the server")


def _overrides(settings: Settings) -> str:
    """Return what does not hold of the settings file, since an administrator set it otherwise."""
    with Service.opened(settings) as service:
        limits, weights = service.limits.all().items, service.weights.all().items
    changed = [f"limit of {one.kind.spelled} {one.name}" for one in limits if one.source is Source.ADMINISTRATOR]
    changed += [f"share weight of {one.owner}" for one in weights if one.source is Source.ADMINISTRATOR]
    if not changed:
        return "as in the settings file"
    more = f", and {len(changed) - _MOST_NAMED} more" if len(changed) > _MOST_NAMED else ""
    named = ", ".join(changed[:_MOST_NAMED])
    return f"set over the settings file: {named}{more} (`muster limit ls`, `muster share-weight ls`)"


def _worked(settings: Settings) -> Finding:
    """Tell a daemon that works from one that is dead or hangs, and passes by cron from none."""
    running = queue_is_worked(settings)
    with Service.opened(settings) as service:
        last, problem = service.last_heartbeat(), service.problem_of_cluster()
    if problem:
        found, _, remedy = problem.partition("; ")
        return Finding("cluster", ok=False, found=found, remedy=remedy)
    silent = last is None or unworked(last, None, time.time(), settings.unworked_limit_s) is not None
    seen = "never" if last is None else f"{age(last.at)} ago by {last.worker} on {last.host}, process {last.pid}"
    if running and not silent:
        return Finding("daemon", ok=True, found=f"the queue is being worked; last {seen}")
    if running:
        found = f"the queue is locked, but not worked: last {seen}"
        return Finding("daemon", ok=False, found=found, remedy="its process hangs, or has just begun: see its log")
    if last is not None and last.worker == Worker.ONCE and not silent:
        return Finding("daemon", ok=True, found=f"passes work the queue; last {seen}")
    return Finding("daemon", ok=False, found=f"nobody works the queue; last worked: {seen}", remedy=_WORK_IT)


def _program(name: str, remedy: str) -> Finding:
    path = shutil.which(name, path=sysconfig.get_path("scripts")) or shutil.which(name)
    return Finding(name, path is not None, path or "not found", remedy)


def _attempt(check: str, look: Callable[[], str], remedy: str) -> Finding:
    try:
        return Finding(check, ok=True, found=look())
    except MusterError as error:
        return Finding(check, ok=False, found=str(error), remedy=remedy)


def _agents(settings: Settings) -> Iterator[Finding]:
    from muster.ansible_gateway.gateway import AnsibleGateway, inventory_of  # noqa: PLC0415 - Ansible's libraries load slowly

    if not Path(settings.inventory).exists():
        yield Finding(
            "inventory", ok=False, found=f"{settings.inventory} does not exist", remedy="write it, with a group agents"
        )
        return
    answers: list[AgentAnswer] = []
    try:
        AnsibleGateway(inventory_of(settings), settings.cluster).observe((), answers.append)
    except MusterError as error:
        yield Finding("inventory", ok=False, found=str(error), remedy="mend the inventory; it needs a group agents")
        return
    found = f"{len(answers)} agents in {settings.inventory}"
    yield Finding("inventory", bool(answers), found, "put hosts into its group agents")
    known = _known_agents(settings)

    def found_of(answer: AgentAnswer) -> list[Finding]:
        return list(_agent(answer, settings, is_alone=len(answers) == 1, before=known.get(answer.agent_id)))

    # Each is a login of its own, which takes a while.
    with ThreadPoolExecutor(_LOGINS_AT_ONCE) as pool:
        for findings in pool.map(found_of, sorted(answers, key=lambda answer: answer.agent_id)):
            yield from findings


def unreachable_finding(name: str, answer: AgentAnswer) -> Finding:
    """Tell why an agent was not observed. Ansible may have reached it for another user, with that user's keys."""
    remedy = "mend it, then run `muster pass`"
    if "Permission denied (" in answer.problem:
        user = pwd.getpwuid(os.geteuid()).pw_name
        remedy = (
            f"the keys of {user} on this machine are not accepted: give it one that is, in its ~/.ssh or by "
            "ansible_ssh_private_key_file in the inventory (the daemon is root), then run `muster pass`"
        )
    return Finding(name, ok=False, found=answer.problem, remedy=remedy)


def _engine(name: str, agent: Agent) -> Finding:
    """Return whether `exec`, `logs` and image copies reach the agent's engine, which they do without Ansible."""
    check = f"{name}: engine by ssh"
    try:
        with engine_of(agent):
            return Finding(check, ok=True, found="`muster exec` and `muster logs` reach it")
    except AgentUnreachableError as error:
        found, _, remedy = str(error).removeprefix(f"{name}: ").partition("; ")
        return Finding(
            check,
            ok=False,
            found=found,
            remedy=remedy or "let its sshd forward sockets (AllowStreamLocalForwarding, DisableForwarding)",
        )


def _known_agents(settings: Settings) -> Mapping[str, Agent]:
    """Return the agents as the queue knows them, by id; none if the database is away, of which another check tells."""
    try:
        with Service.opened(settings) as service:
            return {use.agent.id: use.agent for use in service.agents.in_use()}
    except MusterError:
        return {}


def encryption_finding(agent: Agent) -> Finding:
    """Tell where the traffic between agents is not encrypted although the site did not decide so."""
    check = f"agent {agent.id}: overlay encryption"
    if agent.connection.overlay_encrypted is False:
        return Finding(check, ok=True, found="none, as overlay_network_encrypted says")
    if agent.report.swarm.encrypts:
        return Finding(check, ok=True, found="IPsec")
    return Finding(
        check,
        ok=False,
        found=f"Linux {agent.report.kernel} has no ESP with AES-GCM: overlays with kernels here are not encrypted",
        remedy="load the module esp4, run a kernel that has it, or accept it by overlay_network_encrypted: false",
    )


def gpu_findings(name: str, agent: Agent) -> Iterator[Finding]:
    """Yield what is found of an agent's GPUs: their device nodes, how they are cut, and which are sick."""
    if unlinked := agent.report.gpu_unlinked:
        found = f"{', '.join(unlinked)}: lost to running containers at a `systemctl daemon-reload`"
        yield Finding(f"{name}: GPU devices", ok=False, found=found, remedy="run playbooks/site.yml --tags fgpu")
    if agent.report.gpus:
        yield _way_of_gpus(name, agent)
    if agent.fgpu_obstacle:
        found, _, remedy = agent.fgpu_obstacle.partition("; ")
        yield Finding(f"{name}: fgpu", ok=False, found=found, remedy=remedy)
    elif agent.capacity.fgpu:
        found = f"{format_slot('fgpu', agent.capacity.fgpu)} units on {len(agent.gpus)} devices"
        yield Finding(f"{name}: fgpu", ok=True, found=found)
    for gpu in agent.gpus:
        if gpu.quarantine:
            remedy = 'mend it (docs/fgpu.md, "Sick GPUs"); until then it gets no new sessions'
            yield Finding(f"{name}: GPU {gpu.index}", ok=False, found=gpu.quarantine, remedy=remedy)


def _way_of_gpus(name: str, agent: Agent) -> Finding:
    """Return whether containers get the agent's GPUs as the site wants: by CDI or by the toolkit's hook."""
    check, wish = f"{name}: GPUs for containers", agent.attributes.fgpu_devices
    offered = agent.report.gpu_cdi
    lacking = sorted({gpu.uuid for gpu in agent.report.gpus} - set(offered or ()))
    if wish is FgpuDevices.NVIDIA or (wish is FgpuDevices.AUTO and offered is None):
        return Finding(check, ok=True, found="by the container toolkit's hook")
    if not lacking:
        return Finding(check, ok=True, found="by CDI")
    return Finding(
        check,
        ok=False,
        found=f"{', '.join(lacking)}: not in /etc/cdi/muster.json, or a file that it names is gone",
        remedy="run playbooks/site.yml --tags fgpu",
    )


def _agent(
    answer: AgentAnswer, settings: Settings, *, is_alone: bool, before: Agent | None = None
) -> Iterator[Finding]:
    """Yield what an agent's answer tells, and what it lacks of what it had `before`."""
    name, report = f"agent {answer.agent_id}", answer.report
    if report is None:
        yield unreachable_finding(name, answer)
        return
    yield Finding(name, ok=True, found=f"Docker {report.docker.version}, {report.docker.storage_driver}")
    runtime = report.runtime
    yield Finding(
        f"{name}: runtime",
        runtime is not None,
        str(runtime or "missing"),
        "run playbooks/site.yml --tags session_runtime",
    )
    agent = reported_again(before, answer.agent_id, report, answer.inventory, time.time())
    if not is_local(agent):
        yield _engine(name, agent)
    if problem := toolkit_problem(report):
        found, _, remedy = problem.partition("; ")
        yield Finding(f"{name}: container toolkit", ok=False, found=found, remedy=remedy)
    elif report.gpu_toolkit:
        yield Finding(f"{name}: container toolkit", ok=True, found=report.gpu_toolkit)
    if problem := remapped_ids_problem(report):
        found, _, remedy = problem.partition("; ")
        yield Finding(f"{name}: remapped ids", ok=False, found=found, remedy=remedy)
    elif ids := report.docker.remapped_ids:
        yield Finding(f"{name}: remapped ids", ok=True, found=f"{min(ids.uids, ids.gids)} ids (userns-remap)")
    yield from gpu_findings(name, agent)
    if agent.on_overlay and not is_alone:
        yield encryption_finding(agent)
    image = default_reference(settings)
    held = familiar(image) in tags_on(report.images)
    found = f"{image} is {'there' if held else 'missing'}"
    yield Finding(f"{name}: default image", held, found, "run playbooks/site.yml --tags images")
