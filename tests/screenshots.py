"""Pictures of every page, for the README and docs: `./dev screenshots`.

What shows a cluster is taken of one that lives in memory only; what shows containers, of this machine's engine.
"""

import re
import secrets
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.control_node import ControlNode
from tests.imagined_week import live_through
from tests.servers import headless_chromium
from tests.servers.web_server import Server, web_server

_HEIGHT = 860
_SMALL = ("--cpu", "0.25", "--mem", "256M", "--shm", "16M")
_WORK = "n=0; while [ $n -lt 20000 ]; do n=$((n+1)); done; sleep 0.2"
_BUSY = f"i=0; while true; do i=$((i+1)); echo step $i: loss 0.$((9999 - i % 9000)); {_WORK}; done"

_CATALOG = [
    {
        "name": "pytorch",
        "versions": {"2.9": "pytorch/pytorch:2.9.1-cuda12.8-cudnn9-runtime", "1.7": "nvcr.io/nvidia/pytorch:20.08-py3"},
        "aliases": ["torch"],
        "description": "PyTorch for GPUs",
        "labels": {"kind": "framework", "cuda": "12"},
        "minimum": {"cpu": 2, "mem": "4G"},
    },
    {"name": "default", "reference": "muster/default:latest", "description": "Debian with Python"},
    {"name": "jupyterlab", "reference": "registry.example:5000/lab/jupyterlab:4.5", "labels": {"kind": "notebook"}},
]

_LIMITS = {
    "users": {"*": {"pending": {"sessions": 500}}, "eve": {"running": {"gpu": 4}}},
    "projects": {"vision": {"running": {"gpu": 32, "mem": "2T"}}},
}


def main(directory: Path) -> None:
    directory.mkdir(exist_ok=True, parents=True)
    with sync_playwright() as playwright:
        expect.set_options(timeout=120_000)
        browser = playwright.chromium.launch(executable_path=headless_chromium.__file__)
        with _imagined_cluster() as server:
            _cluster_pages(browser, server, directory)
        with _this_machine() as server:
            _container_pages(browser, server, directory)
        browser.close()


def _cluster_pages(browser: Browser, server: Server, directory: Path) -> None:
    page = _signed_in(browser, server, "root", "admin")
    for name, path in (
        ("overview", "/overview"),
        ("sessions", "/sessions"),
        ("queue", "/queue"),
        ("resources", "/resources?span=week&group=gpu"),
        ("limits", "/limits"),
        ("usage", "/usage"),
        ("images", "/images"),
        ("folders", "/folders"),
        ("account", "/account"),
    ):
        page.goto(path)
        _take(page, directory / f"{name}.png")
    page.goto("/resources/gpu-2?span=day")
    _take(page, directory / "agent.png")
    _launch_page(page, directory / "launch.png")
    dark = _signed_in(browser, server, "root", "admin", dark=True)
    _launch_page(dark, directory / "launch-dark.png")
    phone = _signed_in(browser, server, "ada", "user", width=390)
    phone.goto("/sessions")
    _take(phone, directory / "sessions-phone.png")


def _launch_page(page: Page, file: Path) -> None:
    page.goto("/launch")
    # Fields that few people use are folded away.
    for field in ("resource_group", "cluster_mode"):
        page.locator("details", has=page.locator(f"#f-{field}")).evaluate_all(
            "parts => parts.forEach(part => { part.open = true; })"
        )
    page.locator("#f-resource_group").fill("gpu")
    page.locator("#f-cluster_mode").select_option("multi-node")
    page.locator("#f-command").fill("torchrun train.py")
    for field, value in (("name", "finetune"), ("cluster_size", "4"), ("cpu", "8"), ("mem", "64G"), ("gpu", "2")):
        page.locator(f"#f-{field}").fill(value)
    expect(page.get_by_role("complementary", name="Preview")).to_contain_text("--name finetune")
    page.evaluate("scrollTo(0, 0)")
    _take(page, file)


def _container_pages(browser: Browser, server: Server, directory: Path) -> None:
    bootstrap = server.directory / "busy.sh"
    bootstrap.write_text(f"(while true; do {_WORK}; done) &\n")
    server.node.run(
        *("submit", *_SMALL, "--name", "train", "--owner", "ada", "--project", "vision", "--cluster-size", "3"),
        *("--bootstrap", str(bootstrap), "--command", _BUSY),
    )
    server.node.reaches("train", "RUNNING")
    page = _signed_in(browser, server, "ada", "user")
    page.goto("/sessions/train")
    # Until there is a line to draw of what it uses.
    page.wait_for_timeout(60_000)
    _take(page, directory / "session.png")
    page.get_by_role("button", name="Log of main1").click()
    expect(page.get_by_role("region", name="Log", exact=True)).to_contain_text("step 20")
    page.get_by_label("Search").fill("step 2")
    _take(page, directory / "log.png")
    page.get_by_role("button", name="Close").click()
    page.get_by_role("link", name="Terminal in main1").click()
    expect(page.locator("#terminal-status")).to_have_text(re.compile("connected", re.IGNORECASE))
    rows = page.locator(".xterm-rows > div")
    expect(rows.filter(has_text="work@main1")).to_have_count(1)
    page.locator("#terminal").click()
    page.keyboard.type("env | grep -E '^(WORLD_SIZE|RANK|MASTER_ADDR|BACKENDAI_CLUSTER_HOSTS)='\n")
    # What is typed before the shell reads again is shown where it comes, and once more behind the prompt.
    expect(rows.filter(has_text="work@main1")).to_have_count(2)
    page.keyboard.type("for host in sub1 sub2; do ssh $host hostname; done\n")
    expect(rows.filter(has_text=re.compile(r"^\s*sub2\s*$"))).to_have_count(1)
    _take(page, directory / "terminal.png")


def _signed_in(
    browser: Browser, server: Server, user: str, scope: str, *, width: int = 1280, dark: bool = False
) -> Page:
    context = browser.new_context(
        base_url=server.url, viewport={"width": width, "height": _HEIGHT}, color_scheme="dark" if dark else "light"
    )
    page = context.new_page()
    page.goto("/sign-in")
    page.get_by_label("Token").fill(server.token(user, scope))
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("heading", name="Sessions").wait_for()
    return page


def _take(page: Page, file: Path) -> None:
    page.wait_for_timeout(1500)
    page.screenshot(path=file)
    print(f"dev: {file}")  # noqa: T201 - progress


@contextmanager
def _imagined_cluster() -> Iterator[Server]:
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made)
        # Nobody works its queue, and the pages would say so.
        settings = {"unworked_after_s": 1e9, "limits": _LIMITS, "shares": {"ada": 2}}
        node = ControlNode(directory / "node", f"e2e-{secrets.token_hex(4)}", settings)
        (node.directory / "state").mkdir(mode=0o700)
        live_through(node.directory / "state")
        (node.directory / "images.yml").write_text(yaml.safe_dump({"images": _CATALOG}, sort_keys=False))
        # What an administrator set stands beside what the settings say.
        node.run("limit", "set", "user", "eve", "running.gpu=8", "pending.sessions=200")
        # What waits is what the queue's page is about.
        for arguments in (
            ("--name", "sweep", "--array", "0-19", "--cpu", "8", "--gpu", "9"),
            ("--name", "large", "--cluster-size", "4", "--cluster-mode", "multi-node", "--gpu", "8"),
            ("--name", "later", "--hold", "--cpu", "4"),
        ):
            node.run("submit", "--resource-group", "gpu", "--owner", "ada", *arguments)
        with web_server(node, directory) as server:
            yield server


@contextmanager
def _this_machine() -> Iterator[Server]:
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made)
        node = ControlNode(directory / "node", f"e2e-{secrets.token_hex(4)}")
        node.start_daemon()
        try:
            with web_server(node, directory) as server:
                yield server
        finally:
            node.end_everything()
            node.stop_daemon()
            node.remove_traces()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
