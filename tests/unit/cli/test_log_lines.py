"""The form of what the daemon and the server log."""

import json
import logging
import re
import threading

import pytest

from muster.cli.log_lines import log_to_stderr
from muster.settings import LogFormat
from tests.command_line import muster, write_settings


@pytest.fixture
def logged(capsys):
    """Log in a form, and return the lines that came of it."""
    root, hook = logging.getLogger(), threading.excepthook
    before = root.handlers[:], root.level

    def run(form, say):
        log_to_stderr(form)
        say(logging.getLogger("muster.queue"))
        return capsys.readouterr().err.splitlines()

    yield run
    threading.excepthook = hook
    root.handlers[:], level = before
    root.setLevel(level)


def test_a_line_of_text_has_the_time_in_utc_the_level_and_the_logger(logged):
    (line,) = logged(LogFormat.TEXT, lambda log: log.warning("agent %s: %s", "a1", "no route"))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z WARNING muster\.queue: agent a1: no route", line)


def test_the_time_is_utc_wherever_the_machine_stands(logged):
    record = logging.makeLogRecord({"name": "muster", "msg": "x", "levelname": "INFO", "levelno": logging.INFO})
    record.created, record.msecs = 0.25, 250.0
    (line,) = logged(LogFormat.TEXT, lambda log: log.handle(record))
    assert line == "1970-01-01T00:00:00.250Z INFO muster: x"


def test_a_tenants_text_begins_no_log_line_of_its_own(logged):
    evil = "ended\n2026-01-01T00:00:00.000Z INFO muster.queue: session x: ended\x1b[2J"
    for form in LogFormat:
        (line,) = logged(form, lambda log: log.info("%s", evil))
        assert "\x1b" not in line


def test_a_line_of_json_has_the_fields_of_its_event(logged):
    fields = {"session": "train", "to_state": "RUNNING"}
    (line,) = logged(LogFormat.JSON, lambda log: log.info("session %s", "train", extra={"fields": fields}))
    entry = json.loads(line)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", entry.pop("at"))
    assert entry == {"level": "info", "logger": "muster.queue", "message": "session train", **fields}


def test_a_traceback_is_part_of_its_object_also_of_a_thread_that_dies(logged):
    def die(_log):
        nothing: dict[str, str] = {}
        thread = threading.Thread(target=lambda: nothing["gone"], name="watch-a1")
        thread.start()
        thread.join()

    (line,) = logged(LogFormat.JSON, die)
    entry = json.loads(line)
    assert entry["message"] == "thread watch-a1 has died"
    assert "KeyError: 'gone'" in entry["traceback"]


def test_a_form_that_there_is_not_is_refused_by_name(tmp_path):
    write_settings(tmp_path, {"log_format": "xml"})
    answer = muster("ls")
    assert (answer.code, len(answer.errors)) == (2, 1)
    assert "log_format" in answer.err
