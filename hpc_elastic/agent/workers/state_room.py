"""Says how much memory the training states of this node's ranks may take: a share of it, and none after a kill.

Theory of operation. States take memory that the training may need later, when it is too late to ask: a cgroup that is
full refuses nothing, and the kernel kills the largest process in it, which is a worker. The states are in no process,
so they outlive it, and the next attempt would be killed in the same way, until the run ends. So no state is saved any
more after a kill for memory while states took more of it than they leave free; the next attempt begins with what is
there, and gives it back.
"""

from __future__ import annotations

from collections.abc import Callable

from hpc_elastic.agent.system.memory import MemoryWatch
from hpc_elastic.cgroup_memory import MemoryRoom, read_room
from hpc_elastic.state_memory import KEPT_FREE

_MIB = 1024 * 1024


class StateRoom:
    """The memory for states on this node.

    Args:
        on_closed: takes the line that says that no state is saved from now on, and why; may be called in any thread.
        percent: the share of the node's memory that the states of all its ranks may take.
        copies: returns how many bytes copies of other nodes' states take here.
        watch: counts the kills for memory.
        find_room: returns how much memory there is.
    """

    def __init__(
        self,
        on_closed: Callable[[str], None],
        *,
        percent: int = 40,
        copies: Callable[[], int] = lambda: 0,
        watch: MemoryWatch | None = None,
        find_room: Callable[[], MemoryRoom] = read_room,
    ) -> None:
        self.percent = percent
        self._on_closed = on_closed
        self._copies = copies
        self._find_room = find_room
        self._watch = MemoryWatch() if watch is None else watch
        self._total = 0  # read once because it takes longer than all the rest
        self._is_watching = False
        self.is_open = True  # whether states may be saved

    @property
    def total(self) -> int:
        """How many bytes may be used on this node."""
        if not self._total:
            self._total = self._find_room().total
        return self._total

    @property
    def most(self) -> int:
        """How many bytes the states of all ranks may take."""
        return self.total * self.percent // 100

    def look(self, taken: int) -> bool:
        """Take notice of kills for memory since the last look; return whether there were some.

        Args:
            taken: how many bytes the states of the ranks take.
        """
        use, _ = self._watch.look(0) if self._is_watching else (None, 0)
        self._watch.mark()
        self._is_watching = True
        if use is None or not use.oom_kills:
            return False
        taken += self._copies()
        if self.is_open and taken > KEPT_FREE * self.total:
            self.is_open = False
            self._on_closed(
                f"the out-of-memory killer has ended a process of this node while training states took "
                f"{taken / _MIB:.0f} of {self.total / _MIB:.0f} MiB: no state is saved in memory here from now on, and "
                "without this node's part nobody can load what ranks of other nodes save without replicated=True"
            )
        return True
