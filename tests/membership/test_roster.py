"""How many nodes of each role are here, which the head asks for each failure."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from hpc_elastic.membership.roster import Roster
from tests.membership.script import a_join

ROLES = ("trainer", "evaluator")


@pytest.mark.parametrize("seed", range(20))
def test_what_roles_lack_and_have_too_much_is_known_after_each_change(seed: int) -> None:
    chance, roster = random.Random(seed), Roster(tuple(f"node{number}" for number in range(8)))
    here: dict[str, str] = {}
    unhealthy: set[str] = set()
    for _ in range(60):
        number = chance.randrange(8)
        node, member = f"node{number}", roster.get(f"node{number}")
        if member is None:
            here[node] = chance.choice(ROLES)
            problem = chance.choice([None, "a full disk"])
            roster.add(a_join(number, role=here[node], unhealthy=problem), 0.0)
            unhealthy.update({node} if problem else set())
        elif chance.random() < 0.3:
            here[node] = chance.choice(ROLES)
            roster.take_place(node, here[node], workers=1)
        elif chance.random() < 0.5:
            roster.examined(member, None if node in unhealthy else "a full disk")
            unhealthy ^= {node}
        else:
            roster.remove(node)
            del here[node]
            unhealthy.discard(node)
        healthy = Counter(role for node, role in here.items() if node not in unhealthy)
        assert roster.short_of(dict.fromkeys(ROLES, 3)) == {
            role: 3 - healthy[role] for role in ROLES if healthy[role] < 3
        }
        assert roster.surplus(dict.fromkeys(ROLES, 2)) == sum(max(0, healthy[role] - 2) for role in ROLES)


def test_members_are_not_counted_for_each_question(monkeypatch: pytest.MonkeyPatch) -> None:
    """10,000 ranks of 1,250 nodes that fail together were 12.5 million looks at a member."""
    roster, counted = Roster(("node0", "node1")), []

    class Watched(dict[str, object]):
        def values(self) -> object:  # type: ignore[override]
            counted.append(1)
            return super().values()

    roster.add(a_join(0), 0.0)
    monkeypatch.setattr(roster, "_entries", Watched(roster._entries))
    for _ in range(100):
        assert roster.short_of({"default": 2}) == {"default": 1}
    assert len(counted) == 1
