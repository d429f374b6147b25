"""The meter of useful time finds in records what made-up runs truly spent their time on, whatever the clocks say."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hpc_elastic.rundir.records import utc_text
from hpc_elastic.useful_time.division import TimeUse, divide, totals
from hpc_elastic.useful_time.history import RunRecords, find_history, seconds_of
from hpc_elastic.useful_time.node_clocks import NodeClocks
from tests.useful_time.made_runs import BEGIN, MadeAllocation, MadeAttempt, MadeRun, Telling

seconds = st.floats(0.0, 50.0)
attempts = st.builds(
    MadeAttempt,
    open_s=seconds,
    load_s=st.floats(1.0, 20.0),
    steps=st.integers(2, 60),
    end=st.sampled_from(["failed", "stalled", "stopped"]),
    lost_s=seconds,
    stop_s=seconds,
    wait_s=st.just(0.0) | st.floats(1.0, 50.0),
)
allocations = st.builds(
    MadeAllocation,
    queue_s=st.floats(1.0, 1000.0),
    script_s=seconds,
    gather_s=seconds,
    attempts=st.lists(attempts, min_size=1, max_size=4).map(tuple),
    leave_s=seconds,
)
# Heads note no smaller difference than 2 s: what is not noted is not corrected.
ahead = st.fixed_dictionaries({name: st.floats(2.0, 1e5) | st.floats(-1e5, -2.0) for name in "abz"}).filter(
    lambda clocks: all(one == other or abs(one - other) >= 2 for one, other in combinations(clocks.values(), 2))
)
runs = st.builds(
    MadeRun,
    allocations=st.lists(allocations, min_size=1, max_size=3).map(tuple),
    step_s=st.floats(0.1, 1.0),
    save_every=st.integers(1, 20),
    ahead=st.just({}) | ahead,
    heads=st.sampled_from([("a",), ("a", "b")]),
)


CUT = MadeAllocation(
    queue_s=1.0,
    script_s=0.0,
    gather_s=0.0,
    attempts=(MadeAttempt(open_s=0.0, load_s=1.0, steps=2, stop_s=0.0),),
    leave_s=0.0,
)


def spent(records: RunRecords) -> dict[TimeUse, float]:
    history = find_history(records)
    return totals(divide(history.allocations, are_steps_comparable=history.are_steps_comparable))


@given(runs)
@example(MadeRun(allocations=(CUT, CUT), step_s=0.75, ahead={"a": 2.0, "b": 2.0, "z": 4.0}))
def test_each_use_is_what_the_run_truly_spent(run: MadeRun) -> None:
    """Whatever the clocks of heads and members say, as long as the heads have noted by how much they differ."""
    told = Telling(run)
    found, whole = spent(told.records()), sum(told.truth.values())
    # A step that is lost when its attempt is stopped is in the truth of none of the uses but by one step an attempt.
    for use in TimeUse:
        assert found[use] == pytest.approx(told.truth[use], abs=0.01 * whole + 0.01), use
    assert sum(found.values()) == pytest.approx(whole, rel=0.01)
    assert find_history(told.records()).queued_s == pytest.approx(told.queued_s, abs=0.01)


@pytest.mark.parametrize("step", [108_000.0, -108_000.0, 7.0, -7.0])
def test_a_clock_that_is_set_amid_a_run_changes_none_of_its_durations(step: float) -> None:
    attempt = MadeAttempt(open_s=2.0, load_s=3.0, steps=20, lost_s=2.0, wait_s=3.0)
    allocation = MadeAllocation(queue_s=5.0, script_s=0.0, gather_s=3.0, attempts=(attempt, attempt), leave_s=0.0)
    run = MadeRun(allocations=(allocation, allocation))
    whole = sum(Telling(run).truth.values())
    for moment in range(1, int(whole) + 10):
        told = Telling(replace(run, clock_set=(moment + 0.31, step)))
        if told.has_noted_clock:  # it is set while an agent runs, and not while the job waits
            found = spent(told.records())
            for use in TimeUse:
                assert found[use] == pytest.approx(told.truth[use], abs=0.6), (moment, use)


odd: st.SearchStrategy[Any] = (
    st.none() | st.integers() | st.floats() | st.text(max_size=3) | st.lists(st.integers(), max_size=2)
)
hostile_times = st.integers(-(10**30), 10**30) | st.floats(BEGIN - 1e6, BEGIN + 1e6).map(lambda at: int(at * 1e9))
hostile_events = st.fixed_dictionaries(
    {
        "name": st.sampled_from(
            [
                *("attempt.started", "attempt.failed", "run.ending", "head.lost", "ranks.stalled"),
                *("steps.done", "node.clock_differs", "node.joined"),
            ]
        )
        | odd,
        "time_ns": hostile_times | odd,
        "node": st.sampled_from(["a", "z"]) | odd,
        "allocation": st.integers(0, 3) | odd,
        "attempt": st.integers(0, 5) | odd,
        "metadata": st.fixed_dictionaries(
            {
                "node": st.sampled_from(["a", "z"]) | odd,
                "offset_s": st.floats() | odd,
                "step": st.integers() | odd,
                "step_time_ns": hostile_times | odd,
            }
        )
        | odd,
    }
)


@pytest.mark.long
@given(runs, st.lists(hostile_events, max_size=8), st.booleans())
def test_the_uses_add_up_to_the_allocations_whatever_the_records_say(
    run: MadeRun, hostile: list[dict[str, Any]], is_over: bool
) -> None:
    records = Telling(run).records()
    records = replace(records, events=[*records.events, *hostile], result=records.result if is_over else None)
    history = find_history(records)
    spans = divide(history.allocations, are_steps_comparable=history.are_steps_comparable)
    assert len(history.allocations) == len(run.allocations)
    for allocation in history.allocations:
        own = [span for span in spans if span.allocation == allocation.number]
        assert all(before.end == after.begin for before, after in pairwise(own))
        assert sum(span.end - span.begin for span in own) == pytest.approx(allocation.end - allocation.begin)
    assert all(span.end > span.begin for span in spans)


@pytest.mark.long
@given(runs)
def test_a_run_that_is_at_work_is_counted_until_now(run: MadeRun) -> None:
    told = Telling(replace(run, ahead={}))
    last = told.attempts[-1]["allocation"]
    events = [event for event in told.events if (event["name"], event["allocation"]) != ("run.ending", last)]
    now = told.end + 100
    found = spent(replace(told.records(), events=events, result=None, now=now))
    assert sum(found.values()) == pytest.approx(sum(told.truth.values()) + 100, rel=1e-6)


def made(*attempts: MadeAttempt, **more: Any) -> MadeRun:
    return MadeRun(allocations=(MadeAllocation(attempts=attempts),), **more)


def test_without_heartbeats_no_repeated_step_is_known() -> None:
    told = Telling(made(MadeAttempt(), MadeAttempt(), beats=False))
    history = find_history(told.records())
    assert not history.has_steps
    found = spent(told.records())
    assert found[TimeUse.AGAIN] == 0
    assert found[TimeUse.TRAINING] == pytest.approx(told.truth[TimeUse.TRAINING])


def test_steps_that_begin_anew_within_an_attempt_are_not_compared() -> None:
    told = Telling(made(MadeAttempt(steps=40), MadeAttempt(steps=40), save_every=1))
    for event in told.events:
        if event["name"] == "steps.done":
            event["metadata"]["step"] %= 10
    history = find_history(told.records())
    assert (history.has_steps, history.are_steps_comparable) == (True, False)
    assert spent(told.records())[TimeUse.AGAIN] == 0


def test_a_role_that_starts_alone_does_not_interrupt_the_others() -> None:
    told = Telling(made(MadeAttempt(end="failed", stop_s=5), MadeAttempt(end="stopped"), save_every=1))
    records = told.records()
    records = replace(records, plan={"roles": [{"name": "train"}, {"name": "watch"}]})
    for claim, roles in zip(told.attempts, (["train", "watch"], ["watch"]), strict=True):
        claim["roles"] = roles
    assert spent(records)[TimeUse.RESTARTING] == 0


def test_the_lost_head_ends_its_attempt_when_a_member_notices() -> None:
    told = Telling(made(MadeAttempt(stop_s=10), MadeAttempt(), beats=False))
    told.events[:] = [event for event in told.events if event["name"] != "attempt.failed"]
    failed = next(event for event in told.events if event["name"] == "failure.observed")
    failed |= {"name": "head.lost", "node": "z"}
    assert spent(told.records())[TimeUse.RESTARTING] == pytest.approx(told.truth[TimeUse.RESTARTING])


def test_an_allocation_that_was_cut_off_ends_with_its_last_sign() -> None:
    """No head wrote a word when it ended; the next one waited in the queue."""
    first = MadeAllocation(attempts=(MadeAttempt(steps=20),))
    told = Telling(MadeRun(allocations=(first, MadeAllocation(queue_s=500))))
    is_end = ("run.ending", 1)
    events = [event for event in told.events if (event["name"], event["allocation"]) != is_end]
    records = replace(told.records(), events=events, requests=[])
    history = find_history(records)
    assert history.queued_s == pytest.approx(told.queued_s, abs=2)
    assert sum(spent(records).values()) == pytest.approx(sum(told.truth.values()), abs=2)


def test_records_that_are_missing_are_no_time() -> None:
    assert find_history(RunRecords()).allocations == ()
    assert find_history(RunRecords(allocations=[{"allocation": 1}])).allocations == ()
    told = Telling(made(MadeAttempt()))
    records = replace(told.records(), events=[], attempts=[], result=None)
    assert {use for use, value in spent(records).items() if value} <= {TimeUse.STARTING, TimeUse.WAITING}


def test_a_clock_that_only_a_later_head_has_compared_is_corrected() -> None:
    """Head b is 1,000 s ahead of head a, and node c 50 s ahead of b."""
    at = BEGIN + 1000 + 20
    attempt = {"attempt": 1, "allocation": 2, "head": "b", "members": ["b", "c"], "time": utc_text(at)}
    ended = {"ended": utc_text(at + 30), "written_by": "b"}

    def event(name: str, by: str, seconds: float, /, **metadata: Any) -> dict[str, Any]:
        about = {"allocation": 2, "attempt": 1, "metadata": metadata}
        return {"name": name, "time_ns": int((at + seconds) * 1e9), "node": by, **about}

    claim = {"job_id": "1", "restart_count": 0, "allocation": 1, "node": "a", "time": utc_text(BEGIN)}
    later = {**claim, "restart_count": 1, "allocation": 2, "node": "b", "time": utc_text(at)}
    records = RunRecords(
        allocations=[claim, later],
        attempts=[attempt],
        events=[
            {**event("node.clock_differs", "a", -1000, node="b", offset_s=1000.0), "allocation": 1},
            event("node.clock_differs", "b", 0, node="c", offset_s=50.0),
            event("attempt.started", "c", 60),
        ],
        result=ended,
    )
    assert spent(records)[TimeUse.STARTING] == pytest.approx(10)


@pytest.mark.parametrize("is_first", [True, False], ids=["its events before the head's", "after them"])
def test_a_clock_that_is_set_before_its_node_joins_again_is_corrected_once(is_first: bool) -> None:
    """The head finds the difference that the node itself has noted."""

    def event(name: str, by: str, seconds: float, /, **metadata: Any) -> dict[str, Any]:
        return {"name": name, "time_ns": int((BEGIN + seconds) * 1e9), "node": by, "metadata": metadata}

    own = [event("a", "b", 10), event("node.clock_set", "b", 3620, step_s=3600.0), event("c", "b", 3640)]
    of_head = [event("node.clock_differs", "a", 30, node="b", offset_s=3600.0)]
    clocks = NodeClocks([{"node": "a"}], [*own, *of_head] if is_first else [*of_head, *own])
    found = clocks.of_events[:3] if is_first else clocks.of_events[1:]
    assert found == [0, 3600, 3600]


def test_an_allocation_ends_at_the_latest_when_the_next_one_begins() -> None:
    told = Telling(MadeRun(allocations=(MadeAllocation(), MadeAllocation())))
    late = {**told.events[0], "time_ns": int((told.end + 1e5) * 1e9), "name": "node.lost"}
    history = find_history(replace(told.records(), events=[*told.events, late]))
    assert history.allocations[0].end <= history.allocations[1].begin


def test_a_requeue_that_a_head_recorded_ends_the_allocation() -> None:
    told = Telling(MadeRun(allocations=(MadeAllocation(leave_s=20), MadeAllocation())))
    ending = next(event for event in told.events if event["name"] == "run.ending")
    told.requests.insert(0, {**told.requests[0], "kind": "requeue", "time": utc_text(ending["time_ns"] / 1e9)})
    told.events[:] = [event for event in told.events if event is not ending]
    assert spent(told.records())[TimeUse.ENDED] == pytest.approx(told.truth[TimeUse.ENDED], abs=0.1)


def test_a_head_that_was_cut_off_ends_nothing_for_those_that_go_on() -> None:
    """It counts too few nodes, decides on the run's end, and yields to the head of the next attempt."""
    told = Telling(made(MadeAttempt(steps=20, stop_s=10), MadeAttempt(steps=40)))
    failed = next(event for event in told.events if event["name"] == "attempt.failed")
    told.events.append({**failed, "name": "run.ending", "node": "z"})
    assert spent(told.records()) == pytest.approx(told.truth, abs=0.1)


@pytest.mark.parametrize("name", ["run.ending", "attempt.failed"])
def test_a_head_that_meant_to_claim_an_attempt_too_ends_nothing_of_it(name: str) -> None:
    """It is of an earlier allocation, and what it decides while it makes the claim is of that attempt."""
    told = Telling(made(MadeAttempt(steps=20, stop_s=10), MadeAttempt(steps=40)))
    second = told.allocations[0]
    told.allocations.append({**second, "allocation": 2})
    for record in [*told.attempts, *told.events]:
        record["allocation"] = 2
    opened = seconds_of(told.attempts[1]["time"])
    assert opened is not None
    decided = {"name": name, "node": "z", "allocation": 1, "attempt": 2, "metadata": {}}
    told.events.append({**decided, "time_ns": int((opened - 0.1) * 1e9)})
    assert spent(told.records()) == pytest.approx(told.truth, abs=0.1)


def test_an_end_that_a_head_decides_on_while_it_claims_the_next_attempt_counts_from_then() -> None:
    """In older records its event is of the attempt before; nothing more is said of the end when the claim is made."""
    told = Telling(made(MadeAttempt(steps=20, stop_s=10), MadeAttempt(steps=40)))
    claim = told.attempts[1]
    opened = seconds_of(claim["time"])
    assert opened is not None
    told.events[:] = [event for event in told.events if event["attempt"] < 2]
    decided = {"name": "run.ending", "node": claim["head"], "allocation": 1, "attempt": 1, "metadata": {}}
    for after_s, ending in ((0.5, opened + 0.5), (-0.5, None)):  # before, for want of nodes; then enough were back
        events = [*told.events, {**decided, "time_ns": int((opened + after_s) * 1e9)}]
        (found,) = find_history(replace(told.records(), events=events, result=None, now=None)).allocations
        assert found.ending == (None if ending is None else pytest.approx(ending))


def test_two_claims_of_one_start_are_one_allocation() -> None:
    """The first claim's head died before it opened an attempt."""
    told = Telling(made(MadeAttempt()))
    first = told.allocations[0]
    told.allocations.append({**first, "allocation": 2})
    for record in [*told.attempts, *told.events]:
        record["allocation"] = 2
    history = find_history(told.records())
    assert len(history.allocations) == 1
    assert spent(told.records()) == pytest.approx(told.truth, abs=0.1)


def test_numbers_of_thousands_of_digits_are_not_known() -> None:
    told = Telling(made(MadeAttempt(), MadeAttempt()))
    huge = {"name": "steps.done", "node": "z", "allocation": 1, "attempt": 1}
    events = [
        {**huge, "time_ns": 10**4000, "metadata": {}},
        {**huge, "time_ns": int(BEGIN * 1e9), "metadata": {"step": 10**4000, "step_time_ns": 10**4000}},
        {**huge, "time_ns": int(BEGIN * 1e9), "metadata": {"step": 10**4000, "step_time_ns": int(BEGIN * 1e9)}},
    ]
    assert spent(replace(told.records(), events=[*told.events, *events])) == pytest.approx(told.truth, abs=0.1)


def test_what_follows_the_last_step_before_a_cut_is_lost() -> None:
    first = MadeAllocation(attempts=(MadeAttempt(steps=20, lost_s=30, end="stopped"),), leave_s=0)
    told = Telling(MadeRun(allocations=(first, MadeAllocation())))
    told.events[:] = [event for event in told.events if (event["name"], event["allocation"]) != ("run.ending", 1)]
    told.events[:] = [event for event in told.events if (event["name"], event["allocation"]) != ("failure.observed", 1)]
    assert spent(told.records())[TimeUse.RESTARTING] == pytest.approx(30.5, abs=1)
