"""The events of a simulated run: their order, and after which of them whoever plays it looks."""

from __future__ import annotations

from tests.simulation.clock import Clock


def three_events(clock: Clock) -> list[str]:
    """One at once, and one in each of the next two seconds, of which the first has news."""
    seen: list[str] = []

    def has_news() -> None:
        seen.append("second")
        clock.has_news = True

    clock.after(2.0, lambda: seen.append("third"))
    clock.after(1.0, has_news)
    clock.at_once(lambda: seen.append("first"))
    return seen


def test_who_plays_looks_after_events_with_news_alone() -> None:
    clock = Clock()
    seen = three_events(clock)
    assert [(moment, tuple(seen)) for moment in clock.happens()] == [(1.0, ("first", "second"))]
    assert seen == ["first", "second", "third"]


def test_who_wants_to_looks_after_each_event() -> None:
    clock = Clock()
    three_events(clock)
    assert list(clock.happens(each=True)) == [0.0, 1.0, 2.0]


def test_events_end_with_the_first_one_after_the_bound_and_after_so_many() -> None:
    clock = Clock()
    seen = three_events(clock)
    assert list(clock.happens(until=0.5)) == []
    assert seen == ["first", "second"]
    clock = Clock()
    seen = three_events(clock)
    assert list(clock.happens(most=1)) == []
    assert seen == ["first"]
