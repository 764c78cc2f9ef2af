"""Apps: what main1 runs for a browser beside the session's command, and how each of them fares.

An app listens on main1's loopback, which is reached only by the session's own ssh. Those that its other kernels need as
well listen on its network, which is the session's alone.
"""

import hashlib
import hmac
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from muster.contract.report import AppReport
from muster.core.model.session import Session, SessionState
from muster.core.spec.apps import AppSpec, PublishedPort, served
from muster.core.spec.session_spec import SessionSpec
from muster.core.values.errors import FieldError, SpecError

# As long as an app may take to start before its silence counts as a fault.
START_PATIENCE_S = 120.0
_TOKEN_LENGTH = 48
# A shell's exit codes for a program that it cannot find, and for one that it may not run.
_NO_PROGRAM = frozenset({126, 127})


@dataclass(frozen=True, slots=True)
class AppDefinition:
    """The way apps of one name start. `command` is for a shell, which has MUSTER_APP_NAME, _PORT and _TOKEN."""

    command: str
    port: int
    health: str = "/"
    url: str = "/"
    token: bool = False


KINDS: Mapping[str, AppDefinition] = {
    "jupyterlab": AppDefinition(
        'JUPYTER_TOKEN="$MUSTER_APP_TOKEN" exec jupyter-lab --no-browser --ServerApp.ip=127.0.0.1'
        ' --ServerApp.port="$MUSTER_APP_PORT" --ServerApp.port_retries=0',
        port=8888,
        health="/api",
        url="/lab?token={token}",
        token=True,
    ),
    "tensorboard": AppDefinition(
        'exec tensorboard --host 127.0.0.1 --port "$MUSTER_APP_PORT" --logdir "${MUSTER_TENSORBOARD_LOGDIR:-.}"',
        port=6006,
    ),
    # Every kernel logs to it, as http://main1:5000.
    "mlflow": AppDefinition(
        'export MLFLOW_SERVER_ALLOWED_HOSTS="127.0.0.1:*,localhost:*,main1:*"; exec mlflow server --host 0.0.0.0'
        ' --port "$MUSTER_APP_PORT"',
        port=5000,
        health="/health",
    ),
    # It takes its password on the command line only.
    "ttyd": AppDefinition(
        'exec ttyd --interface 127.0.0.1 --port "$MUSTER_APP_PORT" --writable --credential "muster:$MUSTER_APP_TOKEN"'
        " sh -l",
        port=7681,
        url="http://muster:{token}@127.0.0.1:{port}/",
        token=True,
    ),
}


@dataclass(frozen=True, slots=True)
class App:
    """An app of a session; without a command it is a port that the user's own program serves."""

    name: str
    port: int
    command: str | None = None
    health: str = ""
    url: str = "/"
    token: bool = False

    def address(self, local_port: int, token: str) -> str:
        """Return the URL behind a tunnel to `local_port` of the machine that it is opened on."""
        url = self.url.replace("{port}", str(local_port)).replace("{token}", token)
        return f"http://127.0.0.1:{local_port}{url}" if url.startswith("/") else url


class AppState(StrEnum):
    STARTING = "starting"
    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class AppStatus:
    """The status of an app. `state` is None unless its session runs; `reason` is one line, empty if all is well."""

    app: App
    state: AppState | None
    reason: str = ""


def with_kinds(spec: SessionSpec, kinds: Mapping[str, AppDefinition], sshd_port: int) -> SessionSpec:
    """Return the spec with its apps completed from `kinds`. Raises SpecError with every error of them."""
    errors: list[FieldError] = []
    apps = []
    for index, app in enumerate(spec.apps):
        try:
            apps.append(_with_kind(app, f"apps[{index}]", kinds))
        except SpecError as error:
            errors += error.errors
    complete = spec.model_copy(update={"apps": tuple(apps)})
    if not errors:
        errors += _port_errors(complete, sshd_port)
    if errors:
        raise SpecError(errors)
    return complete


def _with_kind(app: AppSpec, field: str, kinds: Mapping[str, AppDefinition]) -> AppSpec:
    kind = kinds.get(app.name)
    if kind is None:
        if app.command is None or app.port is None:
            raise SpecError([_unknown(app, field, kinds)])
        base = AppDefinition(app.command, app.port)
    elif app.command is not None:
        # It need not answer as the kind's own program does.
        base = AppDefinition(app.command, kind.port)
    else:
        base = kind
    command = base.command if app.args is None else f"{base.command} {app.args}"
    return AppSpec(
        name=app.name,
        port=app.port or base.port,
        command=command,
        health=base.health if app.health is None else app.health,
        url=base.url if app.url is None else app.url,
        token=base.token if app.token is None else app.token,
    )


def _unknown(app: AppSpec, field: str, kinds: Mapping[str, AppDefinition]) -> FieldError:
    remedy = f"choose one of {', '.join(sorted(kinds))}, or give your own with a command and a port in the session file"
    return FieldError(field, f"there is no app {app.name!r}", remedy)


def _port_errors(spec: SessionSpec, sshd_port: int) -> Iterator[FieldError]:
    taken: dict[int, str] = {}
    for field, entry in served(spec):
        if entry.port == sshd_port:
            yield FieldError(field, f"port {sshd_port} is the container's own sshd's", "choose another port")
        elif entry.port in taken:
            problem = f"{entry.name} and {taken[entry.port]} both serve port {entry.port}"
            yield FieldError(field, problem, "give one of them another port")
        if entry.port is not None:
            taken[entry.port] = entry.name


def apps_of(spec: SessionSpec) -> tuple[App, ...]:
    """Return the apps of a session that was queued."""
    return tuple(_app(entry) for _, entry in served(spec))


def _app(entry: AppSpec | PublishedPort) -> App:
    if isinstance(entry, PublishedPort):
        return App(entry.name, entry.port)
    return App(entry.name, entry.port or 0, entry.command, entry.health or "", entry.url or "/", bool(entry.token))


def app_token(private_key: str, app_name: str) -> str:
    """Return an app's token, as random as the session's private key and, like that, of one launch only."""
    return hmac.new(private_key.encode(), f"app {app_name}".encode(), hashlib.sha256).hexdigest()[:_TOKEN_LENGTH]


def app_statuses(session: Session, facts: Mapping[str, AppReport], now: float) -> list[AppStatus]:
    """Return how each app fares by the newest report of main1's apps, by name."""
    return [_status(session, app, facts.get(app.name), now) for app in apps_of(session.spec)]


def _status(session: Session, app: App, facts: AppReport | None, now: float) -> AppStatus:
    if session.state is not SessionState.RUNNING:
        return AppStatus(app, None)
    if facts is not None and facts.healthy:
        return AppStatus(app, AppState.HEALTHY)
    code = facts.exit_code if facts is not None else None
    problem = facts.problem if facts is not None else ""
    if code in _NO_PROGRAM:
        return AppStatus(app, AppState.MISSING, problem or "the image lacks its program")
    if code is not None:
        return AppStatus(
            app, AppState.UNHEALTHY, f"it ended with exit code {code}" + (f": {problem}" if problem else "")
        )
    if session.started_at is None or now < session.started_at + START_PATIENCE_S:
        return AppStatus(app, AppState.STARTING, problem)
    return AppStatus(app, AppState.UNHEALTHY, problem or "its agent has not reported it yet")
