"""Where the playbooks are, and what their plugins and the control node both name."""

from pathlib import Path

import muster

# The key of the inventory's attributes in a result: muster/ansible_gateway/agent_action.py adds them.
INVENTORY = "inventory"


def ansible_root() -> Path:
    """Return the directory of the playbooks: in the package when it was installed, beside it in a checkout."""
    package = Path(muster.__file__).parent
    bundled = package / "_ansible"
    return bundled if bundled.is_dir() else package.parent
