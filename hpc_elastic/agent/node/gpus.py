"""Counts the GPUs that this node's step sees, and checks whether they are what the plan and Slurm say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hpc_elastic.agent.system.child_programs import ChildPrograms, NoAnswerError
from hpc_elastic.hardware.accelerators import Ask, find_accelerators
from hpc_elastic.hardware.device_lists import Listing, VisibleDevices, select_devices
from hpc_elastic.plan.launch_plan import LaunchPlan
from hpc_elastic.scheduler.slurm.step import StepGpus, find_step_gpus


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGpus:
    """What is known of the GPUs of this node's step: what the node shows, what a process sees, what Slurm says."""

    listing: Listing | None = None
    seen: VisibleDevices | None = None
    of_step: StepGpus | None = None

    @property
    def count(self) -> int | None:
        """Return how many GPUs workers see, by what can be seen, else by Slurm's word; None if nothing tells."""
        if self.seen is not None:
            return len(self.seen)
        return None if self.of_step is None else self.of_step.count

    def evidence(self) -> str:
        """Return what the count rests on, as a part of a sentence in brackets; empty if it is plain."""
        told = list(self.seen.variables) if self.seen is not None else []
        if self.listing is not None and told:
            told.append(f"the node shows {self.listing.count}")
        if self.seen is not None and self.seen.remark:
            told.append(self.seen.remark)
        if self.of_step is not None and self.seen is not None:
            told.append(f"Slurm gave it {self.of_step}")
        return f" ({'; '.join(told)})" if told else ""


def ask_tool(command: Sequence[str], within_s: float) -> tuple[int, str]:
    """Run a vendor's tool, which may hang in the driver.

    Raises:
        OSError: it is not there, or gives no answer.
    """
    try:
        return ChildPrograms().run(command, within_s)
    except NoAnswerError:
        raise TimeoutError(f"{command[0]} gave no answer within {within_s:g} s") from None


def count_gpus(environ: Mapping[str, str], *, ask: Ask = ask_tool, root: str = "/") -> NodeGpus:
    """Return what is known of this node's GPUs; runs the vendor's tool, so it must not run in the event loop."""
    listing = find_accelerators(ask, root=root)
    return NodeGpus(listing=listing, seen=select_devices(environ, listing), of_step=find_step_gpus(environ))


def gpu_problem(plan: LaunchPlan, gpus: NodeGpus) -> str | None:
    """Return what is wrong with this node's GPUs, None if nothing is or their number is unknown."""
    asked, count = plan.resources.gpus_per_node, gpus.count
    if not asked or count is None or count == asked or (gpus.seen is not None and gpus.seen.is_number(asked)):
        return None
    if gpus.seen is None:
        return f"Slurm gave the step {gpus.of_step}, the job asked for gpus_per_node: {asked}"
    return f"the step sees {count} GPUs, the job asked for gpus_per_node: {asked}{gpus.evidence()}"


def gpu_remarks(plan: LaunchPlan, gpus: NodeGpus, workers: int) -> list[str]:
    """Return what is odd about this node's GPUs, though the run can go on with them."""
    lines = []
    seen, of_step = gpus.seen, gpus.of_step
    if seen is not None and of_step is not None and of_step.count is not None and not seen.is_number(of_step.count):
        lines.append(f"the step sees {len(seen)} GPUs, and by Slurm it has another number{gpus.evidence()}")
    parts = [device for device in seen.devices if device is not None and device.parts] if seen is not None else []
    if len(parts) > 1 and workers > 1 and not plan.virtual_local_rank:
        lines.append(
            f"the step has {len(parts)} MIG parts, and CUDA shows a process one of them only, the first: "
            "virtual_local_rank: true gives each worker its own"
        )
    return lines
