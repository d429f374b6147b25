"""A scheduler whose answers a test chooses."""

from __future__ import annotations

from collections.abc import Callable, Collection

from hpc_elastic.scheduler.protocol import Exclusion, JobOutlook, JobState


class Answers:
    """Answers a journal's questions; `is_requeued` holds the answers in their order; the last one is repeated."""

    def __init__(
        self,
        *,
        is_over: Callable[[str], bool | None] = lambda _: None,
        is_requeued: Collection[bool | None] = (False,),
        is_at_work: bool | None = True,
        dead: Collection[str] = (),
    ) -> None:
        self._is_over = is_over
        self._is_requeued = list(is_requeued)
        self._is_at_work = is_at_work
        self._dead = frozenset(dead)
        self.end: JobOutlook | None = None  # given back instead of what follows from `is_requeued`
        self.started_again: list[str] = []
        self.without: list[Exclusion] = []
        self.refusal = ""
        self.is_passing = False  # the refusal
        self.is_disabled = False  # it is never requeued; another job may follow it

    def is_over(self, job_id: str) -> bool | None:
        return self._is_over(job_id)

    def is_requeued(self, job_id: str, restart_count: int) -> bool | None:
        return self._is_requeued.pop(0) if len(self._is_requeued) > 1 else self._is_requeued[0]

    def outlook(self, job_id: str) -> JobOutlook | None:
        is_requeued = self.is_requeued(job_id, 0)
        return self.end or (
            None if is_requeued is None else JobOutlook(state=JobState.RUNNING, restarts=int(is_requeued))
        )

    def start_again(self, job_id: str, without: Exclusion) -> str:
        self.started_again.append(job_id)
        self.without.append(without)
        return "presently disabled" if self.is_disabled else self.refusal

    def submit_after(self, job_id: str, without: Exclusion) -> tuple[str, str]:
        self.started_again.append(f"{without.script} after {job_id}")
        self.without.append(without)
        return ("", self.refusal) if self.refusal else ("43", "")

    def forbids_requeue(self) -> bool:
        return self.is_disabled

    def may_be_accepted_later(self) -> bool:
        return self.is_passing

    def may_answer_later(self) -> bool:
        return True

    def is_at_work(self, job_id: str, restart_count: int) -> bool | None:
        return self._is_at_work

    def dead_nodes(self, job_id: str, nodes: Collection[str]) -> frozenset[str]:
        return self._dead.intersection(nodes)
