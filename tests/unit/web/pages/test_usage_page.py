"""The page of usage: whose, of which time, in which order, as a table, as bars and as CSV."""

import csv
import html
import io
import re
import time
from dataclasses import replace
from datetime import UTC, datetime
from urllib.parse import parse_qsl

import pytest

from muster.core.model.token import Scope
from muster.core.values.errors import BadInputError
from muster.service.usage.views import ReportLineView
from muster.web.pages.usage.query import COLUMNS, UsageQuery, completed, parse_query, time_of
from muster.web.pages.usage.table import csv_of, in_order, table_of
from tests.strategies.sessions import make_session, placed_on

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC).timestamp()
DAY = 86400.0


def running(number, owner, project, cpu):
    """Return a session that began an hour ago and goes on."""
    session = placed_on(make_session(number, owner=owner, project=project, cpu=cpu), "a1")
    return replace(session, submitted_at=time.time() - 3700, started_at=time.time() - 3600)


@pytest.fixture
def uses(service):
    """Save usage: ada's of two projects, one twice the other, and eve's of a project named like a formula."""
    service.store.add(
        [running(1, "ada", "vision", 2), running(2, "ada", "speech", 1), running(3, "eve", "=HYPERLINK(1)", 4)]
    )


def cells(text):
    """Return keys and amounts of each row of the table."""
    body = re.search(r"<tbody>(.*?)</tbody>", text, re.DOTALL)
    rows = re.findall(r"<tr>(.*?)</tr>", body[1], re.DOTALL) if body else []
    return [[html.unescape(cell) for cell in re.findall(r"<t[hd][^>]*>([^<]*)</t[hd]>", row)] for row in rows]


@pytest.mark.usefixtures("uses")
def test_users_see_only_their_own_usage(browser):
    page = browser("ada", name="page")
    for query in ("", "?user=eve", "?by=user&by=project&user=eve", "?project=%3DHYPERLINK(1)"):
        text = page.get(f"/usage{query}").text
        assert not re.search(r"\beve\b", text)
        assert "HYPERLINK" not in re.sub(r'value="[^"]*"', "", text)
        assert "HYPERLINK" not in page.get(f"/usage.csv{query}").text
    assert [row[0] for row in cells(page.get("/usage").text)] == ["vision", "speech"]
    assert 'name="user"' not in page.get("/usage").text


@pytest.mark.usefixtures("uses")
def test_an_administrator_sees_everybodys(browser):
    root = browser("root", Scope.ADMIN)
    assert [row[0] for row in cells(root.get("/usage").text)] == ["eve", "ada"]
    assert [row[0] for row in cells(root.get("/usage?user=ada").text)] == ["ada"]
    both = cells(root.get("/usage?by=user&by=project&sort=project").text)
    assert [row[:2] for row in both] == [["eve", "=HYPERLINK(1)"], ["ada", "speech"], ["ada", "vision"]]


@pytest.mark.usefixtures("uses")
def test_the_table_is_sorted_by_its_headings(browser):
    page = browser("ada", name="page")
    assert [row[0] for row in cells(page.get("/usage?sort=cpu_hours_allocated").text)] == ["speech", "vision"]
    assert [row[0] for row in cells(page.get("/usage?sort=-project").text)] == ["vision", "speech"]
    text = page.get("/usage?span=7d").text
    assert 'aria-sort="descending"' in text
    (again,) = re.findall(r'<a href="(/usage\?[^"]*sort=cpu_hours_allocated[^"]*)"', text)
    assert "span=7d" in again
    assert [row[0] for row in cells(page.get(html.unescape(again)).text)] == ["speech", "vision"]


@pytest.mark.usefixtures("uses")
def test_hours_are_as_the_report_has_them_and_drawn_as_bars(browser):
    text = browser("ada", name="page").get("/usage").text
    vision, speech = cells(text)
    titles = [column.name for column in COLUMNS]
    assert float(vision[1 + titles.index("cpu_hours_allocated")]) == pytest.approx(2.0, abs=0.1)
    assert float(speech[1 + titles.index("cpu_hours_allocated")]) == pytest.approx(1.0, abs=0.1)
    assert vision[1] == "1"
    assert re.search(r'<svg [^>]*role="img" aria-label="Hours of CPU and GPU">.*vision.*</svg>', text, re.DOTALL)


@pytest.mark.usefixtures("uses")
def test_a_spreadsheet_takes_nothing_in_the_csv_for_a_formula(browser):
    answer = browser("root", Scope.ADMIN).get("/usage.csv?by=user&by=project")
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert re.fullmatch(r'attachment; filename="muster-usage-[0-9-]+\.csv"', answer.headers["content-disposition"])
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert {row["project"] for row in rows} == {"'=HYPERLINK(1)", "vision", "speech"}
    assert {row["user"] for row in rows} == {"ada", "eve"}
    assert all(float(row["cpu_hours_allocated"]) > 0 for row in rows)


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@sum", "\t=1", "\r=1", "|cmd", "%x", '"=1"', "a,b", "plain"])
def test_cells_of_the_csv_come_back_as_they_are_or_as_text(name):
    csv_text = csv_of([ReportLineView(user=name, sessions=1)], UsageQuery(by=("user",)))
    (row,) = csv.DictReader(io.StringIO(csv_text, newline=""))
    assert row["user"] == (name if name[0] in '"ap' else f"'{name}")
    assert row["sessions"] == "1"


@pytest.mark.parametrize(
    "query",
    [
        "span=year",
        "by=session",
        "by=%3Cb%3E",
        "sort=nosuch",
        "project=%00",
        f"project={'x' * 256}",
        "span=days&from=yesterday",
        "span=days&from=2026-11-20&to=2026-11-19",
        "span=days&from=2999-01-01",
        "span=days&from=0001-01-01",
        "span=days&from=2026-11-20&to=9999-12-31",
        "span=days",
    ],
)
def test_a_wrong_query_gets_one_line_and_the_form_stays(browser, query):
    page = browser("ada", name="page")
    answer = page.get(f"/usage?{query}")
    assert answer.status_code == 422
    problem = r'<p class="problem" role="alert">((span|by|sort|project): |“(From|To)”)[^<]+; [^<]+</p>'
    assert re.search(problem, answer.text)
    assert 'id="usage-query"' in answer.text
    assert "<b>" not in answer.text
    assert page.get(f"/usage.csv?{query}").status_code == 422


def test_nothing_used_is_no_table(browser):
    assert "No sessions ran in this time." in browser("ada").get("/usage").text


def test_days_are_whole_days_of_utc():
    query = UsageQuery(span="days", first="2026-11-20", last="2026-11-21")
    since, until = time_of(query, NOW)
    assert datetime.fromtimestamp(since, UTC).isoformat() == "2026-11-20T00:00:00+00:00"
    assert until - since == 2 * DAY
    assert time_of(replace(query, last=""), NOW)[1] == NOW
    assert time_of(UsageQuery(span="month"), NOW)[0] == datetime(2026, 11, 1, tzinfo=UTC).timestamp()
    assert time_of(UsageQuery(span="7d"), NOW) == (NOW - 7 * DAY, NOW)


def test_a_query_comes_back_as_its_address_spells_it():
    query = UsageQuery("days", "2026-11-01", "2026-11-02", ("user", "day"), "a&b", "p =1", "-sessions")
    assert parse_query(parse_qsl(query.text)) == query


def test_only_administrators_choose_a_user():
    requested = UsageQuery(user="eve")
    assert completed(requested, is_admin=False).user == ""
    assert completed(requested, is_admin=True).user == "eve"
    with pytest.raises(BadInputError, match=r"^by: "):
        completed(UsageQuery(by=("session",)), is_admin=True)


def test_days_are_in_their_order_and_the_sum_counts_no_session_twice():
    lines = [
        ReportLineView(
            day=day, user="ada", sessions=1, cpu_hours_allocated=hours, waits=1, wait_s=wait, longest_wait_s=wait
        )
        for day, hours, wait in (("2026-11-02", 1.0, 60.0), ("2026-11-01", 2.0, 120.0))
    ]
    query = completed(UsageQuery(by=("day", "user")), is_admin=True)
    assert query.by == ("user", "day")
    by_day = completed(UsageQuery(by=("day",)), is_admin=True)
    assert [line.day for line in in_order(lines, by_day)] == ["2026-11-01", "2026-11-02"]
    table = table_of(lines, by_day)
    assert table.total
    amounts = dict(zip((column.name for column in COLUMNS), table.total.cells, strict=True))
    assert amounts["sessions"] == ""
    assert (amounts["cpu_hours_allocated"], amounts["mean_wait_s"], amounts["longest_wait_s"]) == (
        "3.00",
        "1m30s",
        "2m",
    )
