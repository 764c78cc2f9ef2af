"""What Ansible's Jinja knows before a play needs it: the same results, without work for each host."""

import pkgutil
from typing import Any

import pytest
from ansible._internal._templating._jinja_bits import AnsibleEnvironment
from ansible.plugins.loader import filter_loader, test_loader
from ansible.template import Templar, trust_as_template

from muster.ansible_gateway.jinja_ahead import compile_ahead, know_filters_of_jinja, templates_in
from muster.shipped_files import ansible_root

KNOWN = "{{ [rack | default('none'), 1] }}"
OTHER = "{{ [rack | default('none'), 2] }}"


@pytest.fixture(autouse=True)
def ansible_as_before(monkeypatch):
    """Undo what a test changes of Ansible."""
    monkeypatch.setattr(AnsibleEnvironment, "compile", AnsibleEnvironment.compile)
    for loader in (filter_loader, test_loader):
        list(loader.all())
        monkeypatch.setattr(loader, "_cached_non_collection_wrappers", loader._cached_non_collection_wrappers)


@pytest.fixture
def parsed(monkeypatch):
    """Return the texts that Jinja parses from now on."""
    texts = []
    parse = AnsibleEnvironment._parse

    def noted(environment, source, *arguments):
        texts.append(source)
        return parse(environment, source, *arguments)

    monkeypatch.setattr(AnsibleEnvironment, "_parse", noted)
    return texts


def rendered(text: str, **variables: object) -> Any:
    return Templar(loader=None, variables=variables).template(trust_as_template(text))


def test_a_template_that_was_compiled_ahead_is_rendered_without_being_parsed(parsed):
    compile_ahead([KNOWN])
    parsed.clear()
    assert rendered(KNOWN, rack="a1") == ["a1", 1]
    assert rendered(KNOWN) == ["none", 1]
    assert parsed == []


def test_any_other_template_is_compiled_when_it_is_rendered(parsed):
    compile_ahead([KNOWN])
    assert rendered(OTHER, rack="a1") == ["a1", 2]
    assert OTHER in parsed


def test_a_template_with_options_of_its_own_is_compiled_by_them():
    with_options = "#jinja2: variable_start_string:'[%', variable_end_string:'%]'\n[% rack %]{{ rack }}"
    compile_ahead(["[% rack %]{{ rack }}"])
    assert rendered(with_options, rack="a1") == "a1{{ rack }}"


def test_the_attributes_of_agents_are_among_the_templates_of_a_playbook():
    (attributes,) = templates_in([ansible_root() / "playbooks" / "group_vars" / "agents.yml"])
    assert rendered(attributes, inventory_hostname="gpu-01", rack="a1")["rack"] == "a1"


def test_filters_of_jinja_are_found_without_a_search_among_plugins(monkeypatch):
    know_filters_of_jinja()
    monkeypatch.setattr(pkgutil, "iter_modules", lambda *_, **__: pytest.fail("the plugins are searched"))
    assert rendered(KNOWN) == ["none", 1]
    assert rendered("{{ rack is defined }}") is False


def test_a_filter_that_a_plugin_has_replaced_stays_replaced(monkeypatch):
    of_site = filter_loader._wrap_func("trim", "trim", lambda text: f"the site's {text}")
    monkeypatch.setitem(filter_loader._cached_non_collection_wrappers, "trim", of_site)
    know_filters_of_jinja()
    assert rendered("{{ 'a1 ' | trim }}") == "the site's a1 "
