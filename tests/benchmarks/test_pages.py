"""The benchmark's tables, and how they get into the pages."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import pages
from benchmarks.restart.growth import Restarts
from benchmarks.restart.launchers import DEFAULT, OURS, SHARING_OFF
from benchmarks.restart.pairs import Tries
from benchmarks.restart.report import growth_report, pairs_report
from benchmarks.restart.tables import bars, calls_table, case_table, growth_table, headline
from benchmarks.versions.tables import version_conditions, version_notes, version_table

MACHINE = {
    "processor": "Some",
    "cores": 2,
    "memory_gib": 8.0,
    "linux": "6.1",
    "python": "3.11.7",
    "torch": "2.13.0+cpu",
    "slurm": "slurm-wlm 22.05.8",
    "numpy": None,
}


def tries(*turns: list[float], failures: int = 0) -> Tries:
    return Tries(turns=list(turns), failures=["not in time"] * failures)


@pytest.fixture
def report() -> dict[str, Any]:
    detail = {"exited_s": 0.010, "detected_s": 0.012, "decided_s": 0.013, "opened_s": 0.02, "started_s": 0.05}
    detail |= {"first_line_s": 0.06, "imported_s": 0.06, "joined_s": 0.1}
    ours = Tries(turns=[[0.2, 0.3], [0.25, 0.25]], details=[detail])
    crash = {OURS.name: ours, SHARING_OFF.name: tries([5.0], [5.0]), DEFAULT.name: tries([], [], failures=2)}
    recovery = pairs_report({"crash": crash}, [OURS, SHARING_OFF, DEFAULT])
    return {"machine": MACHINE, "busy_cores_before": 0.02, "n": 2, "bound_s": 60, "minutes": 3.0, "recovery": recovery}


def test_the_table_says_who_did_not_recover(report: dict[str, Any]) -> None:
    _, _, ours, off, default = case_table(report["recovery"], 60)
    assert ours == "| crash | hpc_elastic | 4 | 0.250 | 0.300 (most) | 0.200 | 0 of 4 |  |"
    assert off == "| crash | torchrun, sharing off | 2 | 5.00 | 5.00 (most) | 5.00 | 0 of 2 | 0.05 |"
    assert default == "| crash | torchrun, default | 0 | above 60 |  |  | 2 of 2 | below 0.00417 |"


def test_growth_is_the_ratio_of_the_sizes() -> None:
    small = Restarts(total_s=[[0.2, 0.2]], own_s=[[0.1, 0.1]], head_cpu_s=[[0.02, 0.02]], agent_cpu_s=[[0.01, 0.01]])
    large = Restarts(total_s=[[0.5, 0.5]], own_s=[[0.1, 0.1]], head_cpu_s=[[0.05, 0.05]], agent_cpu_s=[[0.01, 0.01]])
    rows = [growth_report(OURS, {2: small, 8: large})]
    assert list(growth_table(rows))[2:] == [
        "| hpc_elastic | crash to next step, s | 2, 2 | 0.200 | 0.500 | 2.5 |",
        "| hpc_elastic | the agents' own part, s | 2, 2 | 0.100 | 0.100 | 1 |",
        "| hpc_elastic | CPU time of head and one agent, s | 2, 2 | 0.0300 | 0.0600 | 2 |",
        "| hpc_elastic | CPU time of the head's agent, s | 2, 2 | 0.0200 | 0.0500 | 2.5 |",
        "| hpc_elastic | CPU time of another agent, s | 2, 2 | 0.0100 | 0.0100 | 1 |",
    ]
    assert {bar.name: bar.found for bar in bars({"growth": rows})}["growth from 2 to 8 nodes"] == 2.5


def test_growth_without_a_restart_is_none() -> None:
    row = growth_report(OURS, {2: Restarts(total_s=[[]], failures=["no step"]), 8: Restarts(total_s=[[]])})
    assert (row["failures"], list(growth_table([row]))[2:]) == (["no step"], [])


def test_the_bar_of_file_calls_is_for_the_worst_node() -> None:
    counts = {"outside": 1200, "on_proc": 9, "in_script": 31_000, "by_kind": {}}
    rows = [
        {"launcher": OURS.name, "node": node, "imports_of_torch": imports, "restart": restart, "cold_start": counts}
        for node, imports, restart in (
            ("node1", {"fork server": 1}, {"outside": 420, "on_proc": 180, "in_script": 7, "by_kind": {}}),
            ("node2", {"fork server": 1, "worker": 1}, {"outside": 400, "on_proc": 90, "in_script": 7, "by_kind": {}}),
        )
    ]
    assert list(calls_table(rows))[2] == "| hpc_elastic | node1 | 1 | 420 | 180 | 7 | 1,200 | 9 | 31,000 |"
    found = {bar.name: bar.found for bar in bars({"calls": rows})}
    assert found["file calls outside the script, a restart and node"] == 420
    assert found["imports of torch, a node and allocation"] == 2


def test_a_launcher_is_hopeless_after_many_failures_without_a_success() -> None:
    assert not tries([], failures=4).is_hopeless(5)
    assert tries([], failures=5).is_hopeless(5)
    assert not tries([], [18.9], failures=5).is_hopeless(5)
    assert not tries([], failures=50).is_hopeless(0)


def test_the_bars_are_met_missed_or_not_measured(report: dict[str, Any]) -> None:
    found = {bar.name: bar for bar in bars(report)}
    assert found["crash to next step, median"].verdict == "met"
    assert found["exit to the agent's event, p99"].found == pytest.approx(2.0)
    assert found["growth from 2 to 8 nodes"].verdict == "not measured"
    report["recovery"]["crash"][OURS.name]["median"] = 0.36
    assert {bar.name: bar for bar in bars(report)}["crash to next step, median"].verdict == "missed"


def test_the_bar_of_an_idle_agent_is_for_the_worst_of_them() -> None:
    agents = [("head's agent", 0.04, 30.0), ("other node's agent", 0.06, 29.0), ("head's store host", 3.0, 300.0)]
    rows = [{"process": name, "cpu_percent": cpu, "resident_mib": memory} for name, cpu, memory in agents]
    found = {bar.name: bar.found for bar in bars({}, {"processes": rows})}
    assert (found["idle agent"], found["idle agent, resident"]) == (0.06, 30.0)


def test_the_headline_says_what_was_found(report: dict[str, Any]) -> None:
    assert headline(report) == (
        "One of four ranks raises an exception: all of them make their next step 0.250 s later (median of 4). Under "
        "torchrun 2.13.0 it takes 5.00 s without store sharing; in its default mode they were not back within 60 s in "
        "2 of 2 tries. The ratio is 0.0500."
    )
    report["recovery"]["crash"][SHARING_OFF.name]["our_ratio"] |= {"low": 0.04, "high": 0.06}
    assert str(headline(report)).endswith("The ratio is 0.0500, with 95 % confidence 0.0400 to 0.0600.")
    report["busy_cores_before"] = 1.9
    assert "The machine was busy" in str(headline(report))
    del report["recovery"]["crash"][SHARING_OFF.name]
    assert headline(report) is None


@pytest.fixture
def versions() -> dict[str, Any]:
    held = {"n": 3, "broken": [], "median_s": 0.5, "least_s": 0.25, "most_s": 1.0}
    broken = {"n": 3, "broken": ["exit code 0, found 70\nTraceback"]}
    run = {"missing": None, "n": 3, "broken": 0, "busy_cores_before": 0.1}
    return {
        "machine": MACHINE,
        "rows": {
            "list": ["`list`", "the command"],
            "cancel": ["`cancel`", "to the result"],
            "status": ["`status`", "nobody tried it"],
        },
        "versions": {
            "22.05": {**run, "broken": 1, "slurm": "slurm 22.05.8", "rows": {"list": held, "cancel": broken}},
            "24.11": {**run, "slurm": "slurm 24.11.5", "rows": {"list": held}},
            "26.05": {"slurm": None, "missing": "it cannot be fetched", "n": 0, "broken": 0, "rows": {}},
        },
    }


def test_the_table_of_versions_says_what_was_broken_and_what_was_not_run(versions: dict[str, Any]) -> None:
    assert list(version_table(versions)) == [
        "| | seconds | slurm 22.05.8 | slurm 24.11.5 | 26.05 |",
        "|---|---|---|---|---|",
        "| `list` | the command | 0.50 (0.25 to 1.00) | 0.50 (0.25 to 1.00) | not run |",
        "| `cancel` | to the result | **broken in 1 of 3** | not run | not run |",
    ]
    assert list(version_notes(versions)) == [
        "- Slurm 22.05, `cancel`: what was promised is not so: exit code 0, found 70.",
        "- Slurm 26.05 was not run: it cannot be fetched.",
    ]


def test_the_notes_of_versions_say_that_nothing_was_broken(versions: dict[str, Any]) -> None:
    del versions["versions"]["22.05"], versions["versions"]["26.05"]
    assert list(version_notes(versions)) == ["- Each promise was held each time."]


def test_the_conditions_of_versions_say_that_the_machine_was_busy(versions: dict[str, Any]) -> None:
    quiet = "Some, 2 cores, Linux 6.1, Python 3.11.7; n = 3 on 22.05, 3 on 24.11."
    assert version_conditions(versions) == f"{quiet} The machine did nothing else (at most 0.1 cores busy before)."
    versions["versions"]["24.11"]["busy_cores_before"] = 1.9
    assert "**The machine was busy**: others used up to 1.9 cores" in version_conditions(versions)


def test_a_page_is_filled_between_its_marks_alone() -> None:
    page = "before\n<!-- a -->\nold\n<!-- end of a -->\nafter\n"
    filled = pages.fill_all(page, {"a": ["| new |"], "b": ["not on this page"]})
    assert filled == "before\n<!-- a -->\n\n| new |\n\n<!-- end of a -->\nafter\n"
    assert pages.fill_all(filled, {"a": ["| new |"]}) == filled


@pytest.mark.parametrize("page", ["<!-- a -->\n", "<!-- end of a -->\n<!-- a -->\n", "<!-- a -->\n<!-- a -->\n"])
def test_filling_rejects_a_page_with_half_a_mark(page: str) -> None:
    with pytest.raises(ValueError, match="expected one <!-- a --> and one <!-- end of a --> after it"):
        pages.fill(page, "a", [])


@pytest.mark.parametrize("name", pages.PAGES)
def test_the_pages_say_what_the_figures_say(name: str) -> None:
    text = (pages.REPOSITORY / name).read_text()
    assert "<!-- recovery" in text
    assert pages.fill_all(text, pages.contents()) == text
