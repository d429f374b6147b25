"""The copies on a node: which states are taken, and which of them count."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import pytest

from hpc_elastic.agent.keeper.copies import Copies, close_sources
from hpc_elastic.agent.keeper.transfer import NotNowError, Offer, TransferError
from hpc_elastic.state_memory import GROWS_BY, create_memory
from tests.agent.keeper.scene import PART, an_offer, content_of, state_in

ROOM = 1 << 30


@pytest.fixture
def copies() -> Iterator[Copies]:
    made = Copies(lambda _: ROOM)
    made.begin(1, None)
    yield made
    made.close()


def take(copies: Copies, offer: Offer) -> None:
    with copies.take(offer) as (memories, slot):
        for number, descriptor in enumerate(memories):
            state_in(descriptor, slot, offer.step, bytes([number + 1]) * offer.lengths[number], attempt=offer.attempt)


def test_a_copy_counts_when_it_is_complete(copies: Copies) -> None:
    with copies.take(an_offer(5)):
        assert copies.held() == []
    assert copies.held() == [(PART, (1, 5))]
    assert copies.has(an_offer(5))


def test_what_another_process_has_left_counts_as_far_as_it_is_complete_and_wanted() -> None:
    opened: dict[str, list[int]] = {}
    freed: list[str] = []
    first = Copies(lambda _: ROOM, opened=lambda part, memories: opened.update({part: list(map(os.dup, memories))}))
    first.begin(1, None)
    take(first, an_offer(5))
    take(first, an_offer(5, part="other"))
    with contextlib.suppress(KeyboardInterrupt), first.take(an_offer(6)) as (memories, slot):
        state_in(memories[0], slot, 6, b"1" * 100)  # only the first rank's is there
        raise KeyboardInterrupt
    first.close()
    second = Copies(lambda _: ROOM, freed=freed.append)
    second.begin(1, None)
    second.restore(PART, opened[PART])
    assert (second.held(), freed) == ([(PART, (1, 5))], [])
    take(second, an_offer(7))
    take(second, an_offer(8))
    assert sorted(second.held()) == [(PART, (1, 7)), (PART, (1, 8))]
    second.begin(2, (1, 8))
    memory, _ = opened["other"]
    second.restore("other", opened["other"])
    assert (second.held(), freed) == ([(PART, (1, 8))], ["other"])
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(memory)
    second.close()


def test_memories_that_come_after_a_newer_copy_are_closed(copies: Copies) -> None:
    take(copies, an_offer(5))
    late = create_memory(0)
    copies.restore(PART, [late])
    assert copies.held() == [(PART, (1, 5))]
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(late)


def test_a_copy_that_breaks_off_does_not_count_and_costs_the_older_one_only(copies: Copies) -> None:
    for step in (5, 6):
        take(copies, an_offer(step))
    with pytest.raises(ConnectionError), copies.take(an_offer(7)):
        raise ConnectionError
    assert copies.held() == [(PART, (1, 6))]


def test_the_two_newest_are_kept_of_each_part(copies: Copies) -> None:
    for step in (5, 6, 7):
        take(copies, an_offer(step))
    take(copies, an_offer(7, part="0+2/4 0/4 default"))
    assert sorted(copies.held()) == [("0+2/4 0/4 default", (1, 7)), (PART, (1, 6)), (PART, (1, 7))]


def test_what_was_taken_is_found_again(copies: Copies) -> None:
    take(copies, an_offer(5))
    take(copies, an_offer(6))
    found = copies.find(PART, (1, 5))
    assert found
    assert [content_of(source.descriptor, 5) for source in found] == [b"\1" * 100, b"\2" * 200]
    close_sources(found)
    assert copies.find(PART, (1, 7)) is None
    assert copies.find("another part", (1, 5)) is None


def test_only_the_state_with_which_an_attempt_begins_is_kept(copies: Copies) -> None:
    for step in (5, 6):
        take(copies, an_offer(step))
    take(copies, an_offer(6, part="0+2/4 0/4 default"))
    copies.begin(2, (1, 5))
    assert copies.held() == [(PART, (1, 5))]
    copies.begin(3, None)
    assert copies.held() == []


@pytest.mark.parametrize("offer", [an_offer(6), an_offer(9, attempt=3)], ids=["the attempt before", "the next"])
def test_a_state_of_another_attempt_is_not_taken(copies: Copies, offer: Offer) -> None:
    copies.begin(2, (1, 5))
    take(copies, an_offer(5))  # with which this one has begun
    with pytest.raises(NotNowError), copies.take(offer):
        pass
    assert copies.held() == [(PART, (1, 5))]


def test_a_copy_that_is_under_way_when_the_next_attempt_begins_does_not_count(copies: Copies) -> None:
    with copies.take(an_offer(5)):
        copies.begin(2, None)
    assert copies.held() == []


def test_one_part_is_not_taken_twice_at_a_time(copies: Copies) -> None:
    with copies.take(an_offer(5)), pytest.raises(NotNowError), copies.take(an_offer(6)):
        pass
    assert copies.held() == [(PART, (1, 5))]


def test_copies_that_do_not_fit_are_refused_with_the_numbers() -> None:
    copies = Copies(lambda reserved: 5 * GROWS_BY - reserved)
    copies.begin(1, None)
    take(copies, an_offer(5))  # two ranks, two states each
    take(copies, an_offer(6))
    words = f"need {4 * GROWS_BY} bytes more, and there is room for {GROWS_BY}$"
    with pytest.raises(TransferError, match=words), copies.take(an_offer(6, part="0+2/4 0/4 default")):
        pass
    assert len(copies.held()) == 2
    copies.close()
