"""Where the playbooks are: in the package when it was installed, beside it in a checkout."""

from pathlib import Path

import muster


def ansible_root() -> Path:
    package = Path(muster.__file__).parent
    bundled = package / "_ansible"
    return bundled if bundled.is_dir() else package.parent
