"""Decides how agents get into an image: the runtime, what it mounts and passes, and what contradicts it; pure."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from hpc_elastic.job.spec import ContainerSpec, JobSpec
from hpc_elastic.plan.container import ContainerPlan, MountPlan, parse_mount, why_no_mount
from hpc_elastic.plan.references import has_reference, quote_dollars
from hpc_elastic.site.config import SiteConfig

_WORDS_OF_EXPORT = ("ALL", "NIL", "NONE")  # srun(1): all variables of the submission, or none
IMAGE_PYTHON = "python3"  # where nobody names another one: that of the submission is not in the image


def is_contained(spec: JobSpec) -> bool:
    """Return whether agents run in an image; a site's defaults alone, without an image or a command, ask for none."""
    container = spec.container
    return container is not None and (container.image is not None or container.command is not None)


def check_container(spec: JobSpec, asked: JobSpec, site: SiteConfig) -> Iterator[str]:
    """Yield what cannot work.

    Args:
        spec: the job with the site's defaults.
        asked: the job alone.
        site: the site.
    """
    container = spec.container
    if container is None or (asked.container is None and not is_contained(spec)):
        return
    runtime = container.runtime
    if runtime is None:
        yield "container.runtime: missing; expected pyxis, apptainer or command"
        return
    if site.scheduler != "slurm":
        yield f"container: expected a site of Slurm; the site {site.name} starts agents without a container"
        return
    if site.container_runtimes and runtime not in site.container_runtimes:
        page = f" (page {site.url})" if site.url else ""
        known = " or ".join(site.container_runtimes)
        yield f"container.runtime: expected {known}, which site {site.name} has{page}, found {runtime}"
    if runtime == "command" and container.command is None:
        yield "container.command: missing; the runtime command needs the program that starts the agent in the image"
    if runtime != "command" and container.command is not None:
        yield f"container.command: expected the runtime command beside it, found {runtime}"
    for name in container.env or ():
        if runtime == "pyxis" and name in _WORDS_OF_EXPORT:
            yield f"container.env: {name} is a word of srun's --export, by which pyxis is told; name each variable"
    if runtime != "command" and container.image is None:
        yield f"container.image: missing; the runtime {runtime} needs one"


def resolve_container(
    container: ContainerSpec,
    *,
    job_dir: str,
    own: Iterable[MountPlan],
) -> ContainerPlan:
    """Return the plan of a container that `check_container` has nothing against.

    Args:
        container: the job's keys with the site's defaults.
        job_dir: the folder of the job file.
        own: what the run itself needs to be mounted.
    """
    given = [_of_user(parse_mount(text), job_dir) for text in container.mounts or ()]
    chosen: dict[str, MountPlan] = {}
    for mount in (*own, *given):  # the user's word is the last one about a place
        chosen[mount.target] = mount
    # A folder comes before what is in it, or a mount would hide those that were made before it.
    mounts = sorted(chosen.values(), key=lambda mount: mount.target.rstrip("/").count("/"))
    assert container.runtime is not None
    return ContainerPlan(
        runtime=container.runtime,
        image=None if container.image is None else _image(container.image, container.runtime, job_dir),
        command=None if container.command is None else _program(container.command, job_dir),
        mounts=tuple(mounts),
        env=tuple(dict.fromkeys(container.env or ())),
    )


def own_mounts(
    *, run_dir: str, package_dir: str, workdir: str, files: Iterable[str] = (), scratch: str | None = None
) -> Iterator[MountPlan]:
    """Yield what every image has at the same place as the node: files are known by the same paths inside and outside.

    Args:
        run_dir: the run directory.
        package_dir: the folder of this package.
        workdir: where workers start, with `${NAME}` and `$$`.
        files: other places that the plan names, likewise.
        scratch: the site's local scratch, likewise; left out on a node that has none.
    """
    for path in (quote_dollars(run_dir), workdir, *files):
        yield MountPlan(source=path, target=path)
    if scratch is not None:
        yield MountPlan(source=scratch, target=scratch, is_optional=True)
    package = quote_dollars(package_dir)
    yield MountPlan(source=package, target=package, is_read_only=True)


def find_unmountable(mounts: Iterable[MountPlan]) -> Iterator[str]:
    """Yield which of the run's own paths no runtime could be told."""
    for mount in mounts:
        if why := why_no_mount(mount.source, separators=":"):
            yield f"container: {mount.source} cannot be mounted: {why}; take another path (--run-dir, workdir)"


def _of_user(mount: MountPlan, job_dir: str) -> MountPlan:
    if mount.source.startswith("${"):
        return mount
    joined = os.path.join(quote_dollars(job_dir), mount.source)
    source = joined if has_reference(joined) else os.path.normpath(joined)
    target = source if mount.target == mount.source else mount.target
    return MountPlan(source=source, target=target, is_read_only=mount.is_read_only)


def _image(image: str, runtime: str, job_dir: str) -> str:
    """Make a path absolute; leave the name of an image in a registry as it is."""
    is_name = "://" in image or image.startswith(("/", "${"))
    if runtime == "pyxis":  # a path begins with / or . there, anything else is the name of an image
        is_name = is_name or not image.startswith(".")
    if is_name or runtime == "command":
        return image
    return os.path.normpath(os.path.join(quote_dollars(job_dir), image))


def _program(program: str, job_dir: str) -> str:
    return os.path.normpath(os.path.join(job_dir, program)) if os.sep in program else program
