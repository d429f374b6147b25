"""The plan and a template become the script."""

from __future__ import annotations

import re
import traceback
from collections.abc import Mapping
from typing import NoReturn

from jinja2 import TemplateError as JinjaError

from hpc_elastic.errors import TemplateError
from hpc_elastic.plan.launch_plan import LaunchPlan
from hpc_elastic.render.container import enters_image
from hpc_elastic.render.template import (
    CONTRACT,
    ScriptEnvironment,
    Template,
    check_template,
    find_launch_block,
    load_template,
    script_environment,
)
from hpc_elastic.render.values import AGENT_MODULE, STAGE_MODULE, template_values

__all__ = ["Template", "check_template", "load_template", "render_script"]

_LAUNCH_LINE = re.compile(rf"^(?![ \t]*#).*\b{re.escape(AGENT_MODULE)}\b", re.MULTILINE)


def render_script(plan: LaunchPlan, template: Template, environment: ScriptEnvironment | None = None) -> str:
    """Return the text of `job.sh`.

    Args:
        plan: the run's.
        template: the one that it names.
        environment: Jinja2 with this template, if it is there already.

    Raises:
        TemplateError: the template does not render with this plan, or starts no agent, or a value
            of the plan cannot stand in a script.
    """
    script = render_template(template, template_values(plan), environment)
    if not _LAUNCH_LINE.search(script):
        source, line = find_launch_block(template)
        raise TemplateError(
            f"{source.path}:{line}: the block launch starts no agent: {AGENT_MODULE} is not in the script",
            tip='start `"$hpc_elastic_python" {{ agent }}` in it, or keep {{ super() }}',
        )
    if plan.container is not None and not enters_image(script, plan.container):
        source, line = find_launch_block(template)
        raise TemplateError(
            f"{source.path}:{line}: the block launch starts the agents outside of the image that `container` asks for",
            tip="keep {{ super() }} in it, or leave container out",
        )
    if plan.stage is not None and STAGE_MODULE not in script:
        source, line = find_launch_block(template)
        raise TemplateError(
            f"{source.path}:{line}: the block launch does not copy what `stage` asks for",
            tip="keep {{ super() }} in it, or leave stage out",
        )
    return script


def render_template(
    template: Template, values: Mapping[str, object], environment: ScriptEnvironment | None = None
) -> str:
    """Return the text of any template of ours.

    Raises:
        TemplateError: it does not render with these values.
    """
    try:
        return (environment or script_environment(template)).get_template(template.name).render(values)
    except (JinjaError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
        _fail(template, error)


def _fail(template: Template, error: Exception) -> NoReturn:
    """Name the place in the innermost template that was at work."""
    paths = {source.path for source in template.sources.values()}
    places = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in paths]
    place = f"{places[-1].filename}:{places[-1].lineno}" if places else template.sources[template.name].path
    raise TemplateError(f"{place}: {error}", tip=CONTRACT) from error
