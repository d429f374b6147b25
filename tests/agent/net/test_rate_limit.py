"""A few lines a minute, and the number of the others."""

from __future__ import annotations

import asyncio

from hpc_elastic.agent.net.rate_limit import LINES, RateLimitedSay


def test_tells_the_first_lines_and_then_how_many_more_came() -> None:
    async def main() -> None:
        told: list[str] = []
        say = RateLimitedSay(told.append, "guests were refused")
        for number in range(1000):
            say(f"guest {number}")
        assert told == [f"guest {number}" for number in range(LINES)]
        say.begin_anew()
        assert told[LINES:] == ["995 more guests were refused within 60 s, the last one: guest 999"]
        say("another guest")
        assert told[-1] == "another guest"
        say.begin_anew()
        assert told[-1] == "another guest"

    asyncio.run(main())


def test_a_period_ends_by_itself() -> None:
    async def main() -> None:
        told: asyncio.Queue[str] = asyncio.Queue()
        say = RateLimitedSay(told.put_nowait, "more", period_s=0.01)
        for number in range(LINES + 1):
            say(str(number))
        lines = [await asyncio.wait_for(told.get(), 20) for _ in range(LINES + 1)]
        assert lines[-1] == f"1 more more within 0 s, the last one: {LINES}"

    asyncio.run(main())
