"""Debian's Chromium without its windows, which takes half of the CPU that the whole of it takes for the same pages."""

import shutil

from playwright.sync_api import Browser, Playwright

_PROGRAM = "chromium-headless-shell"


def launch_browser(playwright: Playwright) -> Browser:
    """Return a browser that has started. `./dev test` has installed its program."""
    path = shutil.which(_PROGRAM)
    assert path, f"there is no {_PROGRAM}; install it: apt-get install {_PROGRAM}"
    # Its sandbox is for users other than root.
    return playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"])
