"""Every kind of schedule that the simulation draws, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tests.simulation.draw import draw
from tests.simulation.draw_alone import draw_alone
from tests.simulation.draw_failures import draw_failures
from tests.simulation.draw_flapping import draw_flapping
from tests.simulation.draw_foretold import draw_foretold
from tests.simulation.draw_health import draw_health
from tests.simulation.draw_large import draw_large
from tests.simulation.draw_limits import draw_limits
from tests.simulation.draw_machines import draw_machines
from tests.simulation.draw_notices import draw_notices
from tests.simulation.draw_requests import draw_requests
from tests.simulation.draw_requeues import draw_requeues
from tests.simulation.draw_saves import draw_saves
from tests.simulation.draw_spares import draw_spares
from tests.simulation.draw_starts import draw_second_start
from tests.simulation.draw_states import draw_states
from tests.simulation.scenario import Scenario

DRAWN_ANYHOW = "any"
KINDS: Mapping[str, Callable[[int], Scenario]] = {
    DRAWN_ANYHOW: draw,
    "failures": draw_failures,
    "foretold": draw_foretold,
    "alone": draw_alone,
    "limits": draw_limits,
    "large": draw_large,
    "starts": draw_second_start,
    "machines": draw_machines,
    "spares": draw_spares,
    "health": draw_health,
    "notices": draw_notices,
    "states": draw_states,
    "flapping": draw_flapping,
    "requeues": draw_requeues,
    "requests": draw_requests,
    "saves": draw_saves,
}
