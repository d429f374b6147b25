"""The page of a report: its structure, and that what workers wrote is only text in it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from hpc_elastic.errors import UsageError
from hpc_elastic.observe.report.collect import collect_report
from hpc_elastic.observe.report.page import drawing_library, readable_span, render_page
from hpc_elastic.observe.snapshot import take_snapshot
from hpc_elastic.rundir.layout import RunLayout
from tests.observe.report.build_run import Fault, build_run

LIBRARY = "window.Plotly = {react() {}};"
EVIL = "</script><script>document.title='owned'</script><img src=x onerror=alert(1)>\x1b[2J\u202e & \"quoted\""


class Page(HTMLParser):
    """The parts of a page as a browser would find them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: dict[str, str] = {}
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag

    def handle_data(self, data: str) -> None:
        self.text[self._inside] = self.text.get(self._inside, "") + data

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)


def render(layout: RunLayout) -> tuple[str, Page]:
    text = render_page(collect_report(layout, take_snapshot(layout, None)), LIBRARY)
    return text, Page(text)


def data_of(text: str) -> dict[str, object]:
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    data = json.loads(found)
    assert isinstance(data, dict)
    return data


def test_the_page_names_the_nodes_that_the_run_began_without(tmp_path: Path) -> None:
    layout = build_run(tmp_path / "run", nodes=2)
    snapshot = replace(take_snapshot(layout, None), left_out={"node9": f"cannot take part: {EVIL}"})
    page = Page(render_page(collect_report(layout, snapshot), LIBRARY))
    assert "Left out:" in page.text["b"]
    assert page.count("img") == 0
    assert "Left out:" not in Page(render(layout)[0]).text["b"]


def test_the_page_has_its_parts_for_four_nodes_with_three_faults(tmp_path: Path) -> None:
    faults = [Fault(1, "ValueError: bad data"), Fault(2, "CUDA out of memory"), Fault(3, "gone", is_lost=True)]
    layout = build_run(tmp_path / "run", nodes=4, spares=1, faults=faults)
    text, page = render(layout)
    assert [attrs["id"] for tag, attrs in page.tags if tag == "div" and "id" in attrs] == [
        *("uses", "timeline", "restarts", "metrics"),
    ]
    data = data_of(text)
    assert isinstance(data["rows"], list)
    states = {segment[2] for row in data["rows"] for segment in row["segments"]}
    assert states == {"waiting", "starting", "running", "failed", "stopping", "spare", "lost"}
    assert isinstance(data["faults"], list)
    assert [(fault["node"], fault["rank"]) for fault in data["faults"]] == [("node001", 8), ("node002", 16)]
    assert page.count("details") == 2
    assert "line 88, in step" in page.text["pre"]
    assert "Slow ranks" in page.text["h2"]


def test_the_times_of_the_page_add_up_to_the_allocation(tmp_path: Path) -> None:
    data = collect_report(
        layout := build_run(tmp_path / "run", nodes=2, faults=[Fault(0, "x")]), take_snapshot(layout, None)
    )
    assert sum(each.end - each.begin for each in data.useful_time.spans) == pytest.approx(data.end - data.begin)


def test_an_attempt_ends_in_the_report_as_its_own_head_says(tmp_path: Path) -> None:
    """A head of an earlier allocation may have meant to claim it, too, and notes what it saw meanwhile."""
    layout = build_run(tmp_path / "run", nodes=2, faults=[Fault(0, "first")])
    before = [attempt.times.ended for attempt in collect_report(layout, take_snapshot(layout, None)).attempts]
    events = Path(layout.events("node000"))
    failed = next(line for line in events.read_text().splitlines() if "attempt.failed" in line)
    earlier = {**json.loads(failed), "allocation": 0, "attempt": 2}
    events.write_text(f"{json.dumps(earlier)}\n{events.read_text()}")
    assert [each.times.ended for each in collect_report(layout, take_snapshot(layout, None)).attempts] == before


def test_the_page_does_not_tell_useful_time_by_events_that_may_not_be_read(tmp_path: Path) -> None:
    layout = build_run(tmp_path / "run", nodes=2)
    data = collect_report(layout, take_snapshot(layout, None))
    path = layout.events("node000")
    page = render_page(replace(data, useful_time=replace(data.useful_time, forbidden=(path,))), LIBRARY)
    assert f"It is not known: {path} cannot be read: Permission denied." in page
    assert data_of(page)["uses"] == []
    assert "<b>-</b><span>Useful</span>" in page


def test_what_workers_wrote_is_text_and_nothing_else(tmp_path: Path) -> None:
    text, page = render(build_run(tmp_path / "run", nodes=2, faults=[Fault(0, EVIL), Fault(1, EVIL)]))
    assert page.count("script") == 3
    assert page.count("img") == 0
    assert not [attrs for _, attrs in page.tags if any(name.startswith("on") for name in attrs)]
    assert "\x1b" not in text
    assert "\u202e" not in text
    data = data_of(text)
    assert isinstance(data["faults"], list)
    assert data["faults"][0]["text"] == EVIL[:200]
    assert "document.title='owned'" in page.text["summary"]


def test_the_page_asks_no_network_and_runs_its_own_scripts_alone(tmp_path: Path) -> None:
    _, page = render(build_run(tmp_path / "run", nodes=2))
    assert not [attrs for _, attrs in page.tags if {"src", "href"} & attrs.keys()]
    (policy,) = [attrs["content"] for tag, attrs in page.tags if tag == "meta" and "http-equiv" in attrs]
    assert policy is not None
    assert policy.startswith("default-src 'none';")
    assert "'unsafe-inline'" not in policy.partition("script-src")[2]
    assert policy.count("sha256-") == 2


def test_512_ranks_have_few_rows_and_lines(tmp_path: Path) -> None:
    text, _ = render(build_run(tmp_path / "run", nodes=64, faults=[Fault(17, "x"), Fault(40, "y")], samples=3))
    data = data_of(text)
    assert isinstance(data["rows"], list)
    assert isinstance(data["metrics"], list)
    assert sorted(len(row["nodes"]) for row in data["rows"]) == [1, 1, 62]
    assert {len(chart["lines"]) for chart in data["metrics"]} == {3}
    assert len(text) < 200_000


@pytest.mark.parametrize(
    "missing",
    ["nodes", "attempts", "allocations", "result.json", "attempts/0001/world.json", "nodes/node000/events.jsonl"],
)
def test_a_half_written_directory_has_a_report(tmp_path: Path, missing: str) -> None:
    layout = build_run(tmp_path / "run", nodes=2, faults=[Fault(0, "x")])
    path = tmp_path / "run" / missing
    path.rename(tmp_path / "gone")
    _, page = render(layout)
    assert page.count("h1") == 1


@pytest.mark.parametrize("file", ["nodes/node000/samples.jsonl", "nodes/node000/events.jsonl"])
@pytest.mark.parametrize("garbage", ['{"time_ns": "x"}', "[]", '{"time_ns": 5, "ranks": 7, "gpus": 3}', "\x00"])
def test_garbage_in_a_file_of_lines_is_left_out(tmp_path: Path, file: str, garbage: str) -> None:
    layout = build_run(tmp_path / "run", nodes=2, faults=[Fault(0, "x")])
    with open(tmp_path / "run" / file, "a") as lines:
        lines.write(f"{garbage}\n")
    render(layout)


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("attempts/0002/world.json", '"first_rank": 0', '"first_rank": null'),
        ("attempts/0002/world.json", '"workers": 8', '"workers": "x"'),
        ("attempts/0001/nodes/node000.json", r'"timestamp": [0-9.]+', '"timestamp": NaN'),
        ("attempts/0001/nodes/node000.json", r'"timestamp": [0-9.]+', '"timestamp": 1e300'),
        ("nodes/node000/events.jsonl", '"attempt": 1', '"attempt": []'),
        ("allocations/0001.json", '"format_version"', '"changed_scripts": true, "format_version"'),
    ],
)
def test_a_value_of_another_kind_is_left_out(tmp_path: Path, file: str, old: str, new: str) -> None:
    layout = build_run(tmp_path / "run", nodes=2, faults=[Fault(0, "x")])
    path = tmp_path / "run" / file
    text, count = re.subn(old, new, path.read_text())
    path.write_text(text)
    _, page = render(layout)
    assert count
    assert page.count("h1") == 1


def test_without_plotly_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "plotly", None)
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(UsageError) as caught:
        drawing_library()
    assert caught.value.tip == "pip install 'hpc-elastic[report]'"


@pytest.mark.parametrize(
    ("seconds", "text"), [(3.21, "3.2 s"), (250, "4 min 10 s"), (7500, "2 h 05 min"), (273600, "3 d 4 h")]
)
def test_times_read_as_people_say_them(seconds: float, text: str) -> None:
    assert readable_span(seconds) == text
