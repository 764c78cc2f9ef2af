"""What a commit takes of a container and what not, where an engine answers as Docker does."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from muster.core.spec.mounts import HOME
from muster.engine import agent_engine
from muster.engine.commit import CommittedAs, commit
from muster.engine.tunnel import EngineTunnel
from tests.hostile.image_archives import archive, digest, files_of
from tests.hostile.odd_engine import odd_engine
from tests.strategies.agents import make_agent
from tests.strategies.sessions import make_session

AGENT = make_agent("a1", inventory={"connection": "local"})
LAYER = archive({"data/.ssh/id_rsa": b"s3cret", "vault/keys/id_rsa": b"s3cret", "data/model": b"1", "vault/b": b"2"})


@pytest.mark.parametrize(
    ("links", "files"),
    [
        ({"/home/work": "/data"}, {"data/model", "vault/b", "vault/keys/id_rsa"}),
        (
            {"/home": "/srv", f"/srv/{Path(HOME).name}/.ssh": "/vault/keys"},
            {"data/model", "data/.ssh/id_rsa", "vault/b"},
        ),
    ],
)
def test_keys_of_a_home_to_which_a_link_leads_do_not_get_into_the_image(tmp_path, monkeypatch, links, files):
    raw, layer = "sha256:" + "1" * 64, digest(LAYER)
    config = {"history": [{}], "architecture": "amd64", "os": "linux", "rootfs": {"diff_ids": [layer]}}
    saved = {f"{'1' * 64}.json": json.dumps(config).encode(), "layer.tar": LAYER}
    with odd_engine(tmp_path) as engine:
        monkeypatch.setattr(agent_engine, "_LOCAL_ENGINE", EngineTunnel(f"unix://{engine.path}", str))
        engine.links = links
        engine.body = json.dumps({"Id": raw, "Size": 10, "Config": {}, "RootFS": {"Layers": [layer]}}).encode()
        engine.bodies = {
            "/containers/json": b'[{"SizeRootFs": 10}]',
            "/containers/c1/json": json.dumps({"Id": "c1", "Image": "sha256:2", "Mounts": []}).encode(),
            "/images/json": b"[]",
            "/images/load": b"{}",
            "/commit": json.dumps({"Id": raw}).encode(),
            "/get": archive(saved),
        }
        kernel = replace(make_session(1).kernels[0], container_id="c1")
        commit(AGENT, kernel, CommittedAs("a:1", "ann", "", 0.0), 1 << 20, tmp_path, lambda _done, _total: None)
    (written,) = (data for name, data in files_of(engine.received["images/load"]).items() if name.endswith("layer.tar"))
    assert files_of(written).keys() == files
