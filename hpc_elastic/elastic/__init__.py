"""The words of torch.distributed.elastic without torch: specs, workers, groups, events and metrics as values."""

from __future__ import annotations

from hpc_elastic.elastic.events import construct_event as construct_event
from hpc_elastic.elastic.group import Worker as Worker
from hpc_elastic.elastic.group import WorkerGroup as WorkerGroup
from hpc_elastic.elastic.spec import WorkerSpec as WorkerSpec
from hpc_elastic.plan.std_streams import Std as Std
from hpc_elastic.rundir.records import Event as Event
from hpc_elastic.rundir.records import EventSource as EventSource
from hpc_elastic.rundir.records import FailureRecord as FailureRecord
from hpc_elastic.rundir.records import MetricData as MetricData
from hpc_elastic.rundir.records import NodeResult as NodeResult
from hpc_elastic.rundir.records import RunResultRecord as RunResultRecord
from hpc_elastic.rundir.records import WorkerState as WorkerState

RunResult = RunResultRecord  # torch's word for it
