"""The variables of a template about the image that agents run in: pure, from the plan alone."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hpc_elastic.errors import TemplateError
from hpc_elastic.job_ids import ARRAY_MARK, TIME_LEFT_VARIABLE
from hpc_elastic.plan.container import PASSED_VARIABLES, ContainerPlan, MountPlan
from hpc_elastic.plan.launch_plan import LaunchPlan
from hpc_elastic.plan.references import referenced_names
from hpc_elastic.render.quoting import ShellText, checked, shell_word

ENTERS = "hpc_elastic_contain"  # the function of the shipped template that enters an image on a node
PYXIS = "--container-image="
HOST_PYTHON = "python3"  # where the Python of the submission is not on the node of the script
# pyxis starts enroot with these, and enroot's hooks read them; every other variable of the node stays outside.
_OF_ENROOT = ("HOME", "USER", "TERM", "NVIDIA_VISIBLE_DEVICES", "MELLANOX_VISIBLE_DEVICES", "ENROOT_CONFIG_PATH")
_PIECES = re.compile(r"\$\$|\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A mount in a template: `word` is `SOURCE:TARGET` or `SOURCE:TARGET:ro`, `source` its source alone, both shell."""

    word: ShellText
    source: ShellText
    is_optional: bool


def container_values(plan: LaunchPlan) -> Mapping[str, str | Sequence[str] | Sequence[Mount] | None]:
    """Return what a template can say of the image; of a run without one that there is none."""
    container = plan.container
    if container is None:
        return {"container": None, "export": "ALL"}
    _check(container)
    return {
        "container": container.runtime,
        "export": _export(container),
        "container_image": None if container.image is None else expand_in_shell(container.image),
        "container_command": container.command,
        "container_mounts": [_mount(mount) for mount in container.mounts],
        "container_env": (*PASSED_VARIABLES, *container.env),
        "container_overrides": ",".join(container.env) or None,
        "container_references": _references(container),
    }


def enters_image(script: str, container: ContainerPlan) -> bool:
    """Return whether a script puts its agents into the image."""
    return (PYXIS if container.runtime == "pyxis" else ENTERS) in script


def expand_in_shell(text: str) -> ShellText:
    """Return a word of bash in which `${NAME}` expands, `$$` is a dollar sign and nothing else means anything."""
    words, end = "", 0
    for match in _PIECES.finditer(text):
        literal = text[end : match.start()]
        words += shell_word(literal) if literal else ""
        words += f'"${{{match[1]}}}"' if match[1] else r"\$"
        end = match.end()
    rest = text[end:]
    return ShellText(words + (shell_word(rest) if rest or not words else ""))


def _mount(mount: MountPlan) -> Mount:
    option = ":ro" if mount.is_read_only else ""
    return Mount(
        word=expand_in_shell(f"{mount.source}:{mount.target}{option}"),
        source=expand_in_shell(mount.source),
        is_optional=mount.is_optional,
    )


def _export(container: ContainerPlan) -> str:
    """Return srun's --export: with pyxis a list, for it would hand all variables of the node on to the image."""
    if container.runtime != "pyxis":
        return "ALL"
    names = (*_OF_ENROOT, *PASSED_VARIABLES, TIME_LEFT_VARIABLE, ARRAY_MARK, *container.env)
    return ",".join(dict.fromkeys(names))


def _references(container: ContainerPlan) -> tuple[str, ...]:
    """Return the variables without which the agents cannot get into the image."""
    texts = [container.image or "", *(mount.source for mount in container.mounts if not mount.is_optional)]
    texts += [mount.target for mount in container.mounts if not mount.is_optional]
    return tuple(dict.fromkeys(name for text in texts for name in referenced_names(text)))


def _check(container: ContainerPlan) -> None:
    for field, value in (("image", container.image), ("command", container.command)):
        checked(value or "", field=f"container.{field}")
    for mount in container.mounts:
        checked(mount.source + mount.target, field="container.mounts")
    if container.runtime == "command" and not container.command:
        raise TemplateError("container.command is empty", tip="name the program that starts the agent in the image")
