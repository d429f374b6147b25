"""The verdicts on nodes, from what real nodes answered and from small changes of that."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hpc_elastic.doctor.judge_nodes import judge_nodes
from hpc_elastic.doctor.probes.answers import (
    Contact,
    FolderSeen,
    InterfaceSeen,
    Leftover,
    LookupSeen,
    ProbeAnswer,
    ProbeRequest,
)
from hpc_elastic.doctor.results import CheckResult, Severity
from hpc_elastic.doctor.told import NodeAnswers
from tests.doctor.told import changed, judged, told, without

WELL, ASKED = told("well")


def one(found: dict[str, list[CheckResult]], check: str) -> CheckResult:
    assert found.keys() == {check}, found
    (result,) = found[check]
    return result


def test_nodes_that_are_well_have_one_good_line_a_check() -> None:
    results = judge_nodes(WELL, ASKED, frozenset())
    assert {each.verdict for each in results} == {Severity.OK}
    assert [each.check for each in results] == [
        *("python", "run root", "scratch", "names", "interfaces", "ports", "clocks", "shared files"),
        *("limits", "gpus", "leftovers", "torch", "all-reduce"),
    ]
    assert all("all 4 nodes" in each.found for each in results if each.check not in ("ports", "shared files"))


def test_six_broken_things_are_found_each_with_its_node_and_key() -> None:
    broken, request = told("broken")
    found = {check: (each.nodes, each.key) for check, (each,) in judged(broken, request).items()}
    everywhere = broken.nodes
    assert found == {
        "python": (("node2",), "defaults.setup"),
        "run root": (("node3",), "run_root"),
        "names": (("node4",), "network.hostname_transform"),
        "interfaces": (everywhere, "network.interface"),
        "ports": (("node2",), "network.port_range"),
        "clocks": (("node3",), ""),
        "all-reduce": (everywhere, "network.interface"),
    }
    failed = [each for results in judged(broken, request).values() for each in results]
    assert all(each.verdict is Severity.FAIL and each.expected and each.action for each in failed)


def test_a_check_that_hangs_is_named_with_its_limit() -> None:
    late = tuple(
        replace(each, value=None, problem="no answer within 20 s")
        if (each.check, each.node) == ("run root", "node3")
        else each
        for each in WELL.answers
    )
    result = one(judged(replace(WELL, answers=late), ASKED), "run root")
    assert (result.found, result.nodes) == ("node3: no answer within 20 s", ("node3",))


def test_a_check_of_which_a_node_says_nothing_is_named() -> None:
    result = one(judged(without(WELL, "node2", check="all-reduce"), ASKED), "all-reduce")
    assert (result.found, result.verdict) == ("node2: no answer", Severity.FAIL)


def test_a_silent_node_is_no_port_that_is_closed() -> None:
    """The line about the job names it."""
    silent = changed(
        without(WELL, "node4"), "peers", lambda seen: replace(seen, contacts=(refused("node4"), *seen.contacts))
    )
    assert "ports" not in judged(silent, ASKED)


def refused(peer: str) -> Contact:
    return Contact(peer=peer, address="10.0.0.4", port=20001, problem=f"was refused by {peer}", cause="refused")


def test_a_port_where_nobody_listens_is_a_matter_of_the_interface() -> None:
    told = changed(WELL, "peers", lambda seen: replace(seen, contacts=(refused("node4"),)), "node1")
    result = one(judged(told, ASKED), "ports")
    assert (result.found, result.key) == ("node1 was refused by node4", "network.interface")


@pytest.mark.parametrize(
    ("offset_s", "verdict", "words"),
    [(1.9, None, ""), (-30.0, Severity.WARN, "node3: 30.0 s behind"), (7200.0, Severity.FAIL, "node3: 2.0 h ahead of")],
)
def test_a_clock_that_differs_from_the_heads(offset_s: float, verdict: Severity | None, words: str) -> None:
    found = judged(changed(WELL, "peers", lambda seen: replace(seen, offset_s=offset_s), "node3"), ASKED)
    assert [(each.verdict, each.found.startswith(words)) for each in found.get("clocks", [])] == (
        [(verdict, True)] if verdict else []
    )


def test_the_heads_own_clock_is_blamed_if_all_others_agree() -> None:
    told = changed(WELL, "peers", lambda seen: replace(seen, offset_s=-3600.0), "node2", "node3", "node4")
    result = one(judged(told, ASKED), "clocks")
    assert (result.nodes, result.found) == (("node1",), "node1: 60 min ahead of the others'")


def test_a_node_that_was_not_compared_is_compared_with_this_machine() -> None:
    told = changed(WELL, "peers", lambda seen: replace(seen, offset_s=None), "node3")
    early = tuple(
        replace(each, answered=each.answered - 3600) if (each.check, each.node) == ("start", "node3") else each
        for each in told.answers
    )
    result = one(judged(replace(told, answers=early), ASKED), "clocks")
    assert result.nodes == ("node3",)
    assert result.found.endswith("behind this machine's, at least")


def slow_name(seen: Any) -> Any:
    return replace(seen, forward=(replace(seen.forward[0], took_s=2.5), *seen.forward[1:]))


def test_a_slow_name_server_is_told() -> None:
    result = one(judged(changed(WELL, "names", slow_name, "node2"), ASKED), "names")
    assert (result.found, result.verdict) == ("node2: 2.5 s for a name or an address", Severity.WARN)


def test_an_own_name_that_is_the_loopback_address_is_told() -> None:
    def loop(seen: Any) -> Any:
        own = LookupSeen(asked="node2", found=("127.0.1.1",))
        return replace(seen, forward=(own, *(each for each in seen.forward if each.asked != "node2")))

    result = one(judged(changed(WELL, "names", loop, "node2"), ASKED), "names")
    assert (result.found, result.key) == ("node2: its own name is 127.0.1.1", "network.interface")


def fabric(seen: Any) -> Any:
    return replace(seen, found=(*seen.found, InterfaceSeen(name="ib0", address="10.1.0.1", is_up=True)))


def test_a_fabric_that_all_nodes_have_is_advised() -> None:
    result = one(judged(changed(WELL, "interfaces", fabric), ASKED), "interfaces")
    assert result.verdict is Severity.WARN
    assert result.action == "name it: interface: ib0, and nccl_socket_ifname: ib0"
    assert judged(changed(WELL, "interfaces", fabric, "node1", "node2", "node3"), ASKED) == {}


@pytest.mark.parametrize("delay_s", [None, 8.0])
def test_a_shared_file_that_is_seen_late_or_never(delay_s: float | None) -> None:
    problem = "" if delay_s else "a file that the head had written was not seen within 15 s"
    told = changed(WELL, "peers", lambda seen: replace(seen, visible_s=delay_s, visible_problem=problem), "node2")
    result = one(judged(told, ASKED), "shared files")
    assert (result.verdict, result.key) == (Severity.WARN if delay_s else Severity.FAIL, "run_root")


def test_a_file_that_two_nodes_create_exclusively_is_no_shared_folder() -> None:
    told = changed(WELL, "peers", lambda seen: replace(seen, created=(0, 1)), "node2", "node3")
    result = one(judged(told, ASKED), "shared files")
    assert set(result.nodes) >= {"node2", "node3"}


def test_a_run_root_of_another_kind_on_one_node_is_told() -> None:
    told = changed(WELL, "run root", lambda seen: replace(seen, kind="tmpfs"), "node4")
    result = one(judged(told, ASKED), "run root")
    assert (result.nodes, result.key) == (("node4",), "run_root")


def test_a_full_scratch_is_told() -> None:
    told = changed(WELL, "scratch", lambda seen: replace(seen, free=5 << 20), "node4")
    result = one(judged(told, ASKED), "scratch")
    assert result.found == "node4: /tmp has 5.0 MiB free"


def test_a_scratch_that_cannot_be_written_is_told() -> None:
    bad = FolderSeen(path="/local", problems={"write": "Permission denied"})
    result = one(judged(changed(WELL, "scratch", lambda _: bad, "node2", "node3"), ASKED), "scratch")
    assert result.found == "node2, node3: write in /local: Permission denied"


def test_gpus_that_are_missing_are_counted() -> None:
    asked = replace(ASKED, gpus=4)
    seen = changed(WELL, "gpus", lambda seen: replace(seen, visible=4))
    assert judged(seen, asked) == {}
    result = one(judged(changed(seen, "gpus", lambda seen: replace(seen, visible=3), "node2"), asked), "gpus")
    assert (result.found, result.expected) == ("node2: 3 GPUs are visible", "4, as asked for")


@pytest.mark.parametrize(
    ("limit", "value", "asked", "words"),
    [
        ("cpus", 1, {"cpus": 8}, "1 CPUs are usable"),
        ("memory", 1 << 30, {"memory": 2 << 30}, "memory is limited to 1.0 GiB"),
        ("open_files", 256, {}, "256 open files"),
        ("shared_memory", 1 << 20, {}, "/dev/shm holds 1.0 MiB"),
    ],
)
def test_a_limit_that_is_too_low_is_told(limit: str, value: int, asked: dict[str, int], words: str) -> None:
    plenty = changed(WELL, "limits", lambda seen: replace(seen, cpus=64, memory=1 << 40))
    low = changed(plenty, "limits", lambda seen: replace(seen, **{limit: value}), "node2")
    result = one(judged(low, replace(ASKED, cpus=asked.get("cpus"), memory=asked.get("memory"))), "limits")
    assert result.found == f"node2: {words}"


def test_locked_memory_counts_where_there_is_a_fabric() -> None:
    low = changed(WELL, "limits", lambda seen: replace(seen, locked_memory=8 << 20))
    assert judged(low, ASKED) == {}
    told = changed(low, "limits", lambda seen: replace(seen, has_fabric=True))
    assert "ulimit -l unlimited" in one(judged(told, ASKED), "limits").action


def test_processes_of_a_run_that_is_over_are_left_over() -> None:
    process = Leftover(pid=77, run_dir="/home/ada/runs/a", job_id="12")
    told = changed(WELL, "leftovers", lambda seen: replace(seen, processes=(process,)), "node2")
    assert judged(told, ASKED, active="12") == {}
    assert one(judged(told, ASKED), "leftovers").found == "node2: 1 process of /home/ada/runs/a, such as 77"


def test_no_torch_anywhere_is_skipped_with_a_line() -> None:
    absent = changed(WELL, "torch", lambda seen: replace(seen, absent="ModuleNotFoundError: No module named 'torch'"))
    told = without(absent, *WELL.nodes, check="all-reduce")
    found = {check: (each.verdict, each.found) for check, (each,) in judged(told, ASKED).items()}
    assert found == {
        "torch": (Severity.SKIP, "all 4 nodes: ModuleNotFoundError: No module named 'torch'"),
        "all-reduce": (Severity.SKIP, "not tried: no torch"),
    }


def test_no_torch_on_one_node_and_another_version_on_another_are_told() -> None:
    told = changed(WELL, "torch", lambda seen: replace(seen, absent="ModuleNotFoundError: torch"), "node2")
    told = changed(told, "torch", lambda seen: replace(seen, version="1.0"), "node3")
    nodes = [each.nodes for each in judged(without(told, "node2", check="all-reduce"), ASKED)["torch"]]
    assert nodes == [("node2",), ("node3",)]


def test_a_slow_import_is_told() -> None:
    told = changed(WELL, "torch", lambda seen: replace(seen, import_s=48.0), "node2")
    assert one(judged(told, ASKED), "torch").found == "node2: the import takes up to 48.0 s"


def test_a_node_that_has_another_python_is_told_once() -> None:
    """Not again for each thing that follows from it."""
    other = changed(
        WELL, "python", lambda seen: replace(seen, version="3.10.1", prefix="/other", search_path=("/other",)), "node3"
    )
    assert one(judged(other, ASKED), "python").found.startswith("node3: Python is 3.10.1 at ")


def test_one_node_alone_has_nobody_to_meet() -> None:
    alone = NodeAnswers(
        nodes=("node1",),
        answers=tuple(replace(each, nodes=("node1",)) for each in WELL.answers if each.node == "node1"),
        sent=WELL.sent,
        read=WELL.read,
    )
    alone = changed(alone, "peers", lambda seen: replace(seen, contacts=()))
    assert judged(alone, ASKED) == {}


def test_no_answer_at_all_gives_no_line() -> None:
    empty = NodeAnswers(nodes=(), answers=(), sent=0.0, read={})
    assert judge_nodes(empty, ProbeRequest(run="a", folder="/b", network=ASKED.network), frozenset()) == []


def test_answers_of_two_nodes_in_the_same_words_are_one_line() -> None:
    def fail(answer: ProbeAnswer) -> ProbeAnswer:
        is_hit = answer.check == "gpus" and answer.node in ("node2", "node4")
        return replace(answer, value=None, problem="no answer within 35 s") if is_hit else answer

    told = replace(WELL, answers=tuple(map(fail, WELL.answers)))
    assert one(judged(told, ASKED), "gpus").found == "node2, node4: no answer within 35 s"
