"""Every kind of schedule that the simulation draws, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tests.simulation.draw import draw
from tests.simulation.draw_absent import draw_absent
from tests.simulation.draw_alone import draw_alone
from tests.simulation.draw_asked_saves import draw_asked_saves
from tests.simulation.draw_avoided import draw_avoided
from tests.simulation.draw_bad_nodes import draw_bad_nodes
from tests.simulation.draw_between import draw_between
from tests.simulation.draw_blamed import draw_blamed
from tests.simulation.draw_busy import draw_busy
from tests.simulation.draw_called_off import draw_called_off
from tests.simulation.draw_checks import draw_checks
from tests.simulation.draw_closings import draw_closings
from tests.simulation.draw_cut_saves import draw_cut_saves
from tests.simulation.draw_cut_stops import draw_cut_stops
from tests.simulation.draw_deaf import draw_deaf
from tests.simulation.draw_disks import draw_disks
from tests.simulation.draw_drained import draw_drained
from tests.simulation.draw_failures import draw_failures
from tests.simulation.draw_farewells import draw_farewells
from tests.simulation.draw_firsts import draw_firsts
from tests.simulation.draw_flapping import draw_flapping
from tests.simulation.draw_foretold import draw_foretold
from tests.simulation.draw_goodbyes import draw_goodbyes
from tests.simulation.draw_health import draw_health
from tests.simulation.draw_host import draw_host
from tests.simulation.draw_interrupts import draw_interrupts
from tests.simulation.draw_large import draw_large
from tests.simulation.draw_last_losses import draw_last_losses
from tests.simulation.draw_limits import draw_limits
from tests.simulation.draw_machines import draw_machines
from tests.simulation.draw_mixed import draw_mixed
from tests.simulation.draw_moved import draw_moved
from tests.simulation.draw_notices import draw_notices
from tests.simulation.draw_overdue import draw_overdue
from tests.simulation.draw_overtaken import draw_overtaken
from tests.simulation.draw_parted import draw_parted
from tests.simulation.draw_pauses import draw_pauses
from tests.simulation.draw_quorum import draw_quorum
from tests.simulation.draw_relayed import draw_relayed
from tests.simulation.draw_requests import draw_requests
from tests.simulation.draw_requeues import draw_requeues
from tests.simulation.draw_restarted import draw_restarted
from tests.simulation.draw_resumed import draw_resumed
from tests.simulation.draw_roles import draw_roles
from tests.simulation.draw_saves import draw_saves
from tests.simulation.draw_search import draw_search
from tests.simulation.draw_second_notices import draw_second_notices
from tests.simulation.draw_sick import draw_sick
from tests.simulation.draw_slow_heads import draw_slow_heads
from tests.simulation.draw_spares import draw_spares
from tests.simulation.draw_stacks import draw_stacks
from tests.simulation.draw_stand_ins import draw_stand_ins
from tests.simulation.draw_starts import draw_second_start, draw_silent_ends
from tests.simulation.draw_states import draw_states
from tests.simulation.draw_taken import draw_taken
from tests.simulation.draw_terms import draw_terms
from tests.simulation.draw_timeouts import draw_timeouts
from tests.simulation.draw_unfit import draw_unfit
from tests.simulation.draw_unopened import draw_unopened
from tests.simulation.draw_unstarted import draw_unstarted
from tests.simulation.draw_unsure import draw_unsure
from tests.simulation.draw_untold import draw_untold
from tests.simulation.draw_waits import draw_waits
from tests.simulation.draw_wrapped import draw_wrapped
from tests.simulation.scenario import Scenario

DRAWN_ANYHOW = "any"
# Those of whose runs the rules can say most come first, and the long ones last: edits are played in this order.
KINDS: Mapping[str, Callable[[int], Scenario]] = {
    "foretold": draw_foretold,
    "failures": draw_failures,
    "roles": draw_roles,
    "pauses": draw_pauses,
    "overdue": draw_overdue,
    "unstarted": draw_unstarted,
    "timeouts": draw_timeouts,
    "wrapped": draw_wrapped,
    "taken": draw_taken,
    "search": draw_search,
    "slow-heads": draw_slow_heads,
    "absent": draw_absent,
    "disks": draw_disks,
    "busy": draw_busy,
    "unsure": draw_unsure,
    "deaf": draw_deaf,
    "sick": draw_sick,
    "blamed": draw_blamed,
    "avoided": draw_avoided,
    "mixed": draw_mixed,
    "bad-nodes": draw_bad_nodes,
    "goodbyes": draw_goodbyes,
    "farewells": draw_farewells,
    "stand-ins": draw_stand_ins,
    "quorum": draw_quorum,
    "between": draw_between,
    "waits": draw_waits,
    "checks": draw_checks,
    "limits": draw_limits,
    "moved": draw_moved,
    "terms": draw_terms,
    "interrupts": draw_interrupts,
    "stacks": draw_stacks,
    DRAWN_ANYHOW: draw,
    "alone": draw_alone,
    "firsts": draw_firsts,
    "unfit": draw_unfit,
    "unopened": draw_unopened,
    "untold": draw_untold,
    "starts": draw_second_start,
    "silent-ends": draw_silent_ends,
    "restarted": draw_restarted,
    "resumed": draw_resumed,
    "host": draw_host,
    "closings": draw_closings,
    "last-losses": draw_last_losses,
    "called-off": draw_called_off,
    "parted": draw_parted,
    "overtaken": draw_overtaken,
    "cut-stops": draw_cut_stops,
    "requests": draw_requests,
    "drained": draw_drained,
    "spares": draw_spares,
    "health": draw_health,
    "notices": draw_notices,
    "second-notices": draw_second_notices,
    "states": draw_states,
    "asked-saves": draw_asked_saves,
    "cut-saves": draw_cut_saves,
    "requeues": draw_requeues,
    "relayed": draw_relayed,
    "saves": draw_saves,
    "machines": draw_machines,
    "large": draw_large,
    "flapping": draw_flapping,
}
# How many seeds of each kind an edit is played with, against others: more where the rules foretell more of a run, and
# fewer where one run takes long.
WEIGHTS: Mapping[str, float] = dict.fromkeys(KINDS, 1.0) | {
    "foretold": 5.0,
    "failures": 2.0,
    "limits": 3.0,
    "roles": 2.0,
    "overdue": 2.0,
    "mixed": 3.0,
    "taken": 2.0,
    "terms": 3.0,
    "alone": 3.0,
    "spares": 2.0,
    "bad-nodes": 2.0,
    "between": 2.0,
    DRAWN_ANYHOW: 2.0,
    "machines": 0.5,
    "large": 0.5,
    "flapping": 0.5,
}
LONG = frozenset({"machines", "large", "flapping"})  # whose runs take longest
