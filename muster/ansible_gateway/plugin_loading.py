"""Ansible's plugins, loaded once by a process whose forks run playbooks."""

import importlib
import warnings
from collections.abc import Iterable, Mapping


def load_plugins(all_of: Iterable[str], some_of: Mapping[str, Iterable[str]]) -> None:
    """Load plugins: all of some loaders (`ansible.plugins.loader`), and by their names those of others."""
    loader = importlib.import_module("ansible.plugins.loader")
    loader.init_plugin_loader()
    # Each playbook does it again.
    warnings.filterwarnings("ignore", message="AnsibleCollectionFinder has already been configured")
    for kind in all_of:
        list(getattr(loader, kind).all(class_only=True))
    for kind, names in some_of.items():
        for name in names:
            getattr(loader, kind).get(name, class_only=True)
