"""What a browser does in the built-in apps: pages, their files, requests that change things, and WebSockets."""

import json
import re
import uuid
from typing import Any

import httpx
from websockets.sync.client import ClientConnection

from tests.servers.app_browser import AppBrowser
from tests.waiting import PATIENCE_S

_LARGE = "x" * (2 << 20)


def through_jupyterlab(lab: AppBrowser) -> str:
    """Run a cell, write a file and read it; return JupyterLab's version."""
    page = lab.first_page()
    settings = json.loads(re.findall(r'id="jupyter-config-data"[^>]*>(.*?)</script>', page.text, re.DOTALL)[0])
    _fetch_files(lab, page)
    # By its token it has signed in, and from then on by its cookie.
    assert lab.get("/api/status").json()["kernels"] == 0
    refused = lab.post("/api/kernels", json={})
    assert (refused.status_code, "_xsrf" in refused.text) == (403, True)
    lab.headers["X-XSRFToken"] = lab.cookies["_xsrf"]
    kernel = lab.post("/api/kernels", json={"name": "python3"})
    assert kernel.status_code == 201, kernel.text
    path = f"/api/kernels/{kernel.json()['id']}"
    with lab.websocket(f"{path}/channels?session_id={uuid.uuid4()}") as channels:
        assert _ran(channels, "1 + 1") == "2"
        assert _ran(channels, f"len('x' * {len(_LARGE)})") == str(len(_LARGE))
    file = {"type": "file", "format": "text", "content": _LARGE}
    assert lab.put("/api/contents/large.txt", json=file).status_code == 201
    assert lab.get("/files/large.txt").text == _LARGE
    assert lab.delete("/api/contents/large.txt").status_code == 204
    assert lab.delete(path).status_code == 204
    return str(settings["appVersion"])


def _ran(channels: ClientConnection, code: str) -> str:
    """Return the result of a cell, as text."""
    content = {"code": code, "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": False}
    header = {"msg_id": uuid.uuid4().hex, "msg_type": "execute_request", "username": "", "session": "", "version": "5"}
    message = {"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"}
    channels.send(json.dumps(message))
    while True:
        answer = json.loads(channels.recv(PATIENCE_S))
        if answer["parent_header"].get("msg_id") == header["msg_id"] and answer["msg_type"] == "execute_result":
            return str(answer["content"]["data"]["text/plain"])


def through_tensorboard(board: AppBrowser, run: str, tag: str) -> list[Any]:
    """Return the values of a run's tag, which TensorBoard has read."""
    page = board.first_page()
    _fetch_files(board, page)
    assert board.get("/data/plugins_listing").json()["scalars"]["enabled"]
    assert board.get("/data/runs").json() == [run]
    points = board.get("/data/plugin/scalars/scalars", params={"run": run, "tag": tag}).json()
    # By this request the page asks for all of its plots.
    query = {"requests": json.dumps([{"plugin": "scalars", "tag": tag}])}
    series = board.post("/experiment/defaultExperimentId/data/plugin/timeseries/timeSeries", data=query)
    (answer,) = series.json()
    assert [point["value"] for point in answer["runToSeries"][run]] == [value for _, _, value in points]
    return [value for _, _, value in points]


def through_mlflow(mlflow: AppBrowser) -> str:
    """Log a run by REST and find it; return MLflow's version."""
    page = mlflow.first_page()
    _fetch_files(mlflow, page)
    api = "/ajax-api/2.0/mlflow"
    experiment = mlflow.post(f"{api}/experiments/create", json={"name": uuid.uuid4().hex})
    assert experiment.status_code == 200, experiment.text
    ids = [experiment.json()["experiment_id"]]
    run = mlflow.post(f"{api}/runs/create", json={"experiment_id": ids[0], "start_time": 0}).json()["run"]
    metric = {"run_id": run["info"]["run_id"], "key": "loss", "value": 0.25, "timestamp": 0, "step": 1}
    assert mlflow.post(f"{api}/runs/log-metric", json=metric).status_code == 200
    (found,) = mlflow.post(f"{api}/runs/search", json={"experiment_ids": ids}).json()["runs"]
    assert [(one["key"], one["value"]) for one in found["data"]["metrics"]] == [("loss", 0.25)]
    artifact = f"/ajax-api/2.0/mlflow-artifacts/artifacts/{ids[0]}/{run['info']['run_id']}/artifacts/large.txt"
    assert mlflow.put(artifact, content=_LARGE).status_code == 200
    assert mlflow.get(artifact).text == _LARGE
    return mlflow.get("/version").text


def through_ttyd(terminal: AppBrowser) -> str:
    """Return what a shell prints that runs in the terminal."""
    page = terminal.first_page()
    assert "<title>ttyd" in page.text
    token = terminal.get("/token").json()["token"]
    with terminal.websocket("/ws", "tty") as shell:
        assert shell.subprotocol == "tty"
        shell.send(json.dumps({"AuthToken": token, "columns": 80, "rows": 24}).encode())
        printed = ""
        is_typed = False
        # The echo of what is typed begins with another word.
        while not (found := re.search(r"^(\d+ from .+?)\r?$", printed, re.MULTILINE)):
            message = shell.recv(PATIENCE_S)
            assert isinstance(message, bytes)
            if message[:1] == b"0":
                printed += message[1:].decode(errors="replace")
            if printed and not is_typed:
                # After the prompt, as a person does: what comes earlier may be lost.
                shell.send(b"0echo $((1 + 1)) from $(hostname)\r")
                is_typed = True
        return found[1]


def _fetch_files(browser: AppBrowser, page: httpx.Response) -> None:
    """Fetch every script and style sheet that a page names."""
    named = re.findall(r"""<(?:script|link)\b[^>]*?\b(?:src|href)=["']?([^"' >]+\.(?:js|css)[^"' >]*)""", page.text)
    assert named
    for path in named:
        answer = browser.get(page.url.join(path))
        assert (answer.status_code, len(answer.content) > 0) == (200, True), path
