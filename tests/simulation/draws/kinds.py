"""Every kind of schedule that the simulation draws, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tests.simulation.draws.absent import draw_absent
from tests.simulation.draws.alone import draw_alone
from tests.simulation.draws.asked_saves import draw_asked_saves
from tests.simulation.draws.avoided import draw_avoided
from tests.simulation.draws.bad_nodes import draw_bad_nodes
from tests.simulation.draws.between import draw_between
from tests.simulation.draws.blamed import draw_blamed
from tests.simulation.draws.busy import draw_busy
from tests.simulation.draws.called_off import draw_called_off
from tests.simulation.draws.checks import draw_checks
from tests.simulation.draws.closings import draw_closings
from tests.simulation.draws.cut_saves import draw_cut_saves
from tests.simulation.draws.cut_stops import draw_cut_stops
from tests.simulation.draws.deaf import draw_deaf
from tests.simulation.draws.disks import draw_disks
from tests.simulation.draws.drained import draw_drained
from tests.simulation.draws.failures import draw_failures
from tests.simulation.draws.farewells import draw_farewells
from tests.simulation.draws.firsts import draw_firsts
from tests.simulation.draws.flapping import draw_flapping
from tests.simulation.draws.foretold import draw_foretold
from tests.simulation.draws.general import draw
from tests.simulation.draws.goodbyes import draw_goodbyes
from tests.simulation.draws.health import draw_health
from tests.simulation.draws.host import draw_host
from tests.simulation.draws.interrupts import draw_interrupts
from tests.simulation.draws.large import draw_large
from tests.simulation.draws.last_losses import draw_last_losses
from tests.simulation.draws.last_terms import draw_last_terms
from tests.simulation.draws.late_others import draw_late_others
from tests.simulation.draws.limits import draw_limits
from tests.simulation.draws.machines import draw_machines
from tests.simulation.draws.mixed import draw_mixed
from tests.simulation.draws.moved import draw_moved
from tests.simulation.draws.notices import draw_notices
from tests.simulation.draws.odd_moments import draw_odd_moments
from tests.simulation.draws.overdue import draw_overdue
from tests.simulation.draws.overtaken import draw_overtaken
from tests.simulation.draws.overwritten import draw_overwritten
from tests.simulation.draws.parted import draw_parted
from tests.simulation.draws.pauses import draw_pauses
from tests.simulation.draws.quorum import draw_quorum
from tests.simulation.draws.relayed import draw_relayed
from tests.simulation.draws.requests import draw_requests
from tests.simulation.draws.requeues import draw_requeues
from tests.simulation.draws.restarted import draw_restarted
from tests.simulation.draws.resumed import draw_resumed
from tests.simulation.draws.roles import draw_roles
from tests.simulation.draws.saves import draw_saves
from tests.simulation.draws.scarce import draw_scarce
from tests.simulation.draws.search import draw_search
from tests.simulation.draws.second_notices import draw_second_notices
from tests.simulation.draws.sick import draw_sick
from tests.simulation.draws.slow_heads import draw_slow_heads
from tests.simulation.draws.slow_rounds import draw_slow_rounds
from tests.simulation.draws.spares import draw_spares
from tests.simulation.draws.stacks import draw_stacks
from tests.simulation.draws.stand_ins import draw_stand_ins
from tests.simulation.draws.starts import draw_second_start, draw_silent_ends
from tests.simulation.draws.states import draw_states
from tests.simulation.draws.taken import draw_taken
from tests.simulation.draws.terms import draw_terms
from tests.simulation.draws.timeouts import draw_timeouts
from tests.simulation.draws.unfit import draw_unfit
from tests.simulation.draws.unheard import draw_unheard
from tests.simulation.draws.unkillable import draw_unkillable
from tests.simulation.draws.unopened import draw_unopened
from tests.simulation.draws.unreached import draw_unreached
from tests.simulation.draws.unstarted import draw_unstarted
from tests.simulation.draws.unsure import draw_unsure
from tests.simulation.draws.untold import draw_untold
from tests.simulation.draws.waits import draw_waits
from tests.simulation.draws.wide import draw_wide
from tests.simulation.draws.wrapped import draw_wrapped
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
    "unreached": draw_unreached,
    "slow-heads": draw_slow_heads,
    "slow-rounds": draw_slow_rounds,
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
    "scarce": draw_scarce,
    "checks": draw_checks,
    "limits": draw_limits,
    "moved": draw_moved,
    "terms": draw_terms,
    "last-terms": draw_last_terms,
    "interrupts": draw_interrupts,
    "stacks": draw_stacks,
    DRAWN_ANYHOW: draw,
    "alone": draw_alone,
    "firsts": draw_firsts,
    "unfit": draw_unfit,
    "unopened": draw_unopened,
    "late-others": draw_late_others,
    "untold": draw_untold,
    "starts": draw_second_start,
    "silent-ends": draw_silent_ends,
    "restarted": draw_restarted,
    "resumed": draw_resumed,
    "host": draw_host,
    "closings": draw_closings,
    "unheard": draw_unheard,
    "last-losses": draw_last_losses,
    "called-off": draw_called_off,
    "parted": draw_parted,
    "overtaken": draw_overtaken,
    "cut-stops": draw_cut_stops,
    "unkillable": draw_unkillable,
    "requests": draw_requests,
    "odd-moments": draw_odd_moments,
    "drained": draw_drained,
    "spares": draw_spares,
    "health": draw_health,
    "notices": draw_notices,
    "second-notices": draw_second_notices,
    "states": draw_states,
    "asked-saves": draw_asked_saves,
    "cut-saves": draw_cut_saves,
    "overwritten": draw_overwritten,
    "requeues": draw_requeues,
    "relayed": draw_relayed,
    "saves": draw_saves,
    "machines": draw_machines,
    "large": draw_large,
    "flapping": draw_flapping,
    "wide": draw_wide,
}
# How many seeds of each kind an edit is played with, against others: more where the rules foretell more of a run, and
# fewer where one run takes long.
# What happens in the scenarios of each kind, in the words of `python -m tests.simulation --help`.
SCENARIOS: Mapping[str, str] = {
    "foretold": "of which all that comes is foretold",
    "failures": "in which workers fail again and again",
    "roles": "of several roles whose workers fail",
    "pauses": "of long pauses before restarts",
    "overdue": "of ranks that run on when others have exited 0",
    "unstarted": "of ignored workers that do not start",
    "timeouts": "in which ranks time out in a collective",
    "wrapped": "in which programs of wrappers fail",
    "taken": "in which ranks take a notice, and exit 75",
    "search": "in which a node cannot reach the first head",
    "unreached": "in which most nodes cannot reach the first head",
    "slow-heads": "of a first head that stands still",
    "slow-rounds": "of a new head that stands still as it gathers",
    "absent": "in which nodes do not come, or are unfit",
    "disks": "in which a run directory refuses for a while",
    "busy": "of disks that are busy with what can wait",
    "unsure": "in which a claim is made and seems to fail",
    "deaf": "in which a lost member was deaf before",
    "sick": "in which an unhealthy node is lost",
    "blamed": "in which a node is lost in start after start",
    "avoided": "of blames that the next start hears of",
    "mixed": "of several roles that lose or lack nodes",
    "bad-nodes": "of bad nodes of several roles",
    "goodbyes": "in which a member grows deaf",
    "farewells": "in which deaf members say goodbye",
    "stand-ins": "of spares that take another role's place",
    "quorum": "in which a node that is needed is away for a while",
    "between": "of losses between two attempts",
    "waits": "in which people ask while nodes are awaited",
    "scarce": "in which two nodes are lost, and most are needed",
    "checks": "of health checks while roles restart",
    "limits": "in which the scheduler ends the job",
    "moved": "in which a time limit is moved at the last",
    "terms": "in which a TERM comes that is explained late",
    "last-terms": "of a TERM while ranks exit 0",
    "interrupts": "of a person's Ctrl-C without a scheduler",
    "stacks": "in which people ask where the ranks are",
    "alone": "in which one thing goes wrong",
    "firsts": "in which a node does not come at first",
    "unfit": "of nodes without which the run cannot begin",
    "unopened": "of heads that are lost before any attempt",
    "late-others": "of unfit nodes that come late",
    "untold": "of heads that are lost as an attempt opens",
    "starts": "in which the job starts twice",
    "silent-ends": "of starts that end without a word",
    "restarted": "in which the start before is busy, or fails",
    "resumed": "in which another job goes on with the run",
    "host": "in which the script's machine is lost late",
    "closings": "of losses as a run ends",
    "unheard": "of heads that are lost with their result",
    "last-losses": "of losses while the last workers stop",
    "called-off": "of a TERM while an agent has no head",
    "parted": "in which the network is cut as a run ends",
    "overtaken": "of a head that ends a run too late",
    "cut-stops": "of losses while workers are stopped",
    "unkillable": "in which a worker survives its KILL",
    "requests": "in which a person asks for something",
    "odd-moments": "in which people ask at odd moments",
    "drained": "of drained nodes under a new head",
    "spares": "of worlds that die beside their spares",
    "health": "in which nodes are unhealthy",
    "notices": "in which notices are given",
    "second-notices": "in which several notices are given",
    "states": "in which ranks save their states in memory",
    "asked-saves": "in which people ask for saves",
    "cut-saves": "in which a save is cut short",
    "overwritten": "of states overwritten as they are saved",
    "requeues": "in which the next allocation goes on",
    "relayed": "of states that others write at the end",
    "saves": "in which ranks save while others are lost",
    "machines": "of machines that fail in odd ways",
    "large": "of large worlds that lose their head",
    "flapping": "in which a node is lost again and again",
    "wide": "of more nodes than records name",
}
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
    "scarce": 2.0,
    DRAWN_ANYHOW: 2.0,
    "machines": 0.5,
    "large": 0.5,
    "flapping": 0.5,
    "wide": 0.25,
}
LONG = frozenset({"machines", "large", "flapping", "wide"})  # whose runs take longest
