"""Decides what each node copies to its own disk before its agent starts; pure."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta

from hpc_elastic.job.spec import JobSpec, StageSpec
from hpc_elastic.plan.launch_plan import StagePlan
from hpc_elastic.plan.references import has_reference, quote_dollars
from hpc_elastic.site.config import SiteConfig
from hpc_elastic.stage_variables import IN_STAGE

TIMEOUT = timedelta(minutes=10)


def check_stage(spec: JobSpec, site: SiteConfig) -> Iterator[str]:
    """Yield what cannot work of a job with the site's defaults."""
    stage = spec.stage or StageSpec()
    if stage.source is None:
        if (spec.python or "").startswith(IN_STAGE):
            yield f"python: {IN_STAGE} is the copy that stage makes; give stage.source"
        return
    target = stage.target or site.scratch
    if target is None:
        yield f"stage.target: missing; expected a folder of the node's own disk, for site {site.name} names no scratch"
    elif not target.startswith(("/", "${")):
        yield f"stage.target: expected an absolute path, found {target!r}"
    if spec.container is not None and spec.container.runtime == "pyxis":
        yield "stage: with the runtime pyxis nothing runs on a node before the image; stage on the node of the script"


def resolve_stage(spec: JobSpec, site: SiteConfig, job_dir: str) -> StagePlan | None:
    """Return the plan of a stage that `check_stage` has nothing against; None if the job asks for none."""
    stage = spec.stage
    if stage is None or stage.source is None:
        return None
    source, target = stage.source, stage.target or site.scratch
    assert target is not None
    if not source.startswith("${"):
        source = os.path.join(quote_dollars(job_dir), source)
        source = source if has_reference(source) else os.path.normpath(source)
    return StagePlan(source=source, target=target, timeout_s=(stage.timeout or TIMEOUT).total_seconds())
