"""An agent whose engine keeps images in containerd's store, beside one whose engine has a storage driver."""

import io
import tarfile
import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import docker
import pytest

from muster.core.agents.agent import Agent
from muster.core.images.committed import CommittedImage
from muster.core.spec.mounts import HOME
from muster.core.values.errors import ImageError
from muster.engine.agent_engine import engine_of
from muster.engine.commit import CommittedAs, commit
from muster.engine.images import ExpectedImage, copy, image_id
from muster.service.images.distribution import image_sync, synced
from muster.service.images.source import ImageSource
from muster.settings import load_settings
from muster.store.store import Store
from tests.command_line import write_settings
from tests.e2e.containerd_engine import containerd_engine
from tests.e2e.distant_agent import RUNTIME, distant_host
from tests.strategies.agents import make_agent
from tests.strategies.sessions import make_session

BUSYBOX = Path(RUNTIME, "bin", "busybox")
APPLETS = ("cat", "echo", "ls", "mkdir", "rm", "sh", "sleep", "test")
MOST = 1 << 30
HERE = make_agent("here", inventory={"connection": "local"})


def silently(_done: int, _total: int) -> None:
    pass


@pytest.fixture(scope="module")
def parent() -> Iterator[str]:
    """Yield an image of this machine's engine that holds little more than busybox."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.add(BUSYBOX, "bin/busybox")
        for applet in APPLETS:
            link = tarfile.TarInfo(f"bin/{applet}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
        tar.addfile(tarfile.TarInfo("etc/issue"))
    made = f"muster-test/{uuid.uuid4().hex[:8]}"
    changes = ["ENV PATH=/bin OF=parent", "USER 1000", "LABEL of=parent", "WORKDIR /bin"]
    docker.from_env().api.import_image_from_data(packed.getvalue(), repository=made, tag="1", changes=changes)
    yield f"{made}:1"
    docker.from_env().images.remove(f"{made}:1", force=True)


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory, parent: str) -> Iterator[Agent]:
    """Yield the agent with containerd's store; it has got the parent from this machine."""
    directory = tmp_path_factory.mktemp("containerd")
    with containerd_engine(directory / "engine") as engine, distant_host(directory / "host", engine) as host:
        agent = host.agent("there")
        copy(HERE, agent, parent, ExpectedImage(image_id(HERE, parent), MOST), silently)
        yield agent


@pytest.fixture(scope="module")
def engine(there: Agent) -> Iterator[docker.DockerClient]:
    with engine_of(there) as client:
        yield client


@pytest.fixture
def kernel(engine, parent):
    """Yield a kernel whose container has a note and a key, and lacks a file of its image."""
    script = f"mkdir -p {HOME}/.ssh; echo secret >{HOME}/.ssh/id; echo mine >{HOME}/note; rm /etc/issue; exec sleep 600"
    run = {"entrypoint": ["sh", "-c", script], "user": "0", "network_mode": "none", "environment": {"TOKEN": "secret"}}
    container = engine.containers.run(parent, detach=True, labels={"of": "the kernel"}, **run)
    while container.exec_run(["test", "-e", "/etc/issue"]).exit_code == 0:
        pass
    yield replace(make_session().kernels[0], container_id=container.id)
    container.remove(force=True)


@pytest.fixture
def name() -> Iterator[str]:
    made = f"muster-test/{uuid.uuid4().hex[:8]}:1"
    yield made
    for image in docker.from_env().images.list(made):
        docker.from_env().images.remove(image.id, force=True)


def committed(agent, kernel, name, spool, most_bytes=MOST, progressed=silently):
    return commit(agent, kernel, CommittedAs(name, "ann", "with a note", 1.5e9), most_bytes, spool, progressed)


def output(client: docker.DockerClient, image: str, script: str) -> str:
    run = {"entrypoint": ["sh", "-c", script], "user": "0", "network_mode": "none", "remove": True}
    return client.containers.run(image, **run).decode()


def test_a_kernel_there_is_committed_as_it_is_elsewhere(there, engine, kernel, parent, name, tmp_path):
    left = engine.api.commit(kernel.container_id, changes=[f"LABEL muster.commit={name}"])["Id"]
    shown: list[tuple[int, int]] = []
    made = committed(there, kernel, name, tmp_path, progressed=lambda done, total: shown.append((done, total)))
    assert made.image_id == image_id(there, name)
    assert shown[-1][0] == shown[-1][1] > 0
    assert output(engine, name, f"ls -A {HOME} && cat {HOME}/note") == "note\nmine\n"
    assert output(engine, name, "test -e /etc/issue || echo gone") == "gone\n"
    old, image = (engine.images.get(each).attrs for each in (parent, name))
    assert image["RootFS"]["Layers"][:-1] == old["RootFS"]["Layers"]
    config, parents = ({key: value for key, value in each["Config"].items() if value} for each in (image, old))
    assert config == parents
    assert (image["Author"], image["Created"]) == ("ann", "2017-07-14T02:40:00Z")
    # Neither an interrupted commit nor this one has left the whole layer.
    with pytest.raises(docker.errors.ImageNotFound):
        engine.images.get(left)
    assert not engine.images.list(filters={"dangling": True})


def test_a_commit_over_the_limit_is_refused_there_too(there, engine, kernel, name, tmp_path):
    with pytest.raises(ImageError, match="commit_max_size allows 1K; remove files"):
        committed(there, kernel, name, tmp_path, most_bytes=1 << 10)
    assert not engine.images.list(name)


def test_an_image_has_another_id_there_and_is_the_same(there, engine, kernel, name, tmp_path):
    made = committed(there, kernel, name, tmp_path)
    copied = copy(there, HERE, name, ExpectedImage(made.image_id, MOST), silently)
    held = image_id(HERE, name)
    assert copied.ids == {made.image_id, held}
    assert copied.config_id == held != made.image_id
    assert output(docker.from_env(), name, f"cat {HOME}/note") == "mine\n"
    engine.images.remove(name)
    again = copy(HERE, there, name, ExpectedImage(held, MOST), silently)
    assert again.config_id == held
    assert again.ids == {held, image_id(there, name)}
    assert output(engine, name, f"cat {HOME}/note") == "mine\n"


def test_who_lacks_a_committed_image_gets_it_once(there, kernel, name, tmp_path):
    repository, _, tag = name.rpartition(":")
    settings = load_settings(write_settings(tmp_path, {}))
    image = CommittedImage(
        name=repository,
        tag=tag,
        owner="ann",
        public=True,
        message="",
        parent="its-parent:1",
        parent_id="",
        session_id="s1",
        session_name="s",
        kernel_name="main1",
        agent_id=there.id,
        architecture="x86_64",
        created_at=1.5e9,
    )
    with closing(Store(settings.database_url)) as store:
        store.agents.save([HERE, there])
        store.images.claim(image)
        made = committed(there, kernel, name, tmp_path)
        store.images.made(replace(image, image_id=made.image_id))
        shown: list[int] = []
        ImageSource(store, settings)(HERE, name, lambda done, _total: shown.append(done))
        assert shown
        shown.clear()
        ImageSource(store, settings)(HERE, name, lambda done, _total: shown.append(done))
        assert not shown, "it was copied again"
        ids = store.image_ids.all()
        assert ids.are_one(image_id(HERE, name), made.image_id)
        plan = image_sync([HERE, there], name, ids, source_id="here", target_ids=["there"])
        (outcome,) = synced(plan, MOST, lambda *_: None, lambda _: None)
        assert (outcome.changed, outcome.error) == (False, None)
