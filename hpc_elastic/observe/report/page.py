"""Writes a report as one HTML page that loads nothing: style, script, data and the drawing library are in it.

What workers wrote is text in it and nothing else: it is escaped in the tables, it cannot end the block of data, and a
browser runs the page's own three scripts alone, because its policy names their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone

from hpc_elastic.errors import UsageError
from hpc_elastic.observe.clock_steps import describe_steps, known_span
from hpc_elastic.observe.narrate import (
    count,
    describe_left_out,
    describe_nodes,
    describe_state,
    describe_useful_time,
    of_limit,
)
from hpc_elastic.observe.report.charts import chart_data
from hpc_elastic.observe.report.collect import FailureSeen, ReportData
from hpc_elastic.useful_time.division import TimeUse

MISSING = "no report can be drawn: the package plotly is not installed here"
MISSING_TIP = "pip install 'hpc-elastic[report]'"


_VIEWS = (
    '<select id="view"><option value="alike">nodes that did the same together</option>'
    '<option value="node">each node</option><option value="rank">each rank</option></select>'
)
_PAGES = (
    '<button id="before" type="button" title="the rows before">&lsaquo;</button> <span id="shown"></span> '
    '<button id="after" type="button" title="the rows after">&rsaquo;</button>'
)


def drawing_library() -> str:
    """Return the source of plotly.js, from the package plotly.

    Raises:
        UsageError: it is not installed.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise UsageError(MISSING, tip=MISSING_TIP) from error
    return str(get_plotlyjs())


def render_page(data: ReportData, library: str) -> str:
    """Return the page.

    Args:
        data: what it shows.
        library: the source of plotly.js.
    """
    scripts = [_as_parsed(library), _shipped("page.js")]
    policy = (
        "default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; "
        f"script-src {' '.join(map(_hash, scripts))}"
    )
    name = shown(data.snapshot.name)
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f"<title>{name}: report</title>",
            f"<style>{_shipped('page.css')}</style>\n</head>\n<body>",
            *_head(data),
            *_time_use(data),
            *_timeline(),
            *_attempts(data),
            *_slow(data),
            *_failures(data),
            *_metrics(data),
            f'<script type="application/json" id="data">{_as_data(chart_data(data))}</script>',
            *(f"<script>{script}</script>" for script in scripts),
            "</body>\n</html>\n",
        ]
    )


def shown(text: object) -> str:
    """Return text of anybody as HTML: escaped, and without characters that control a terminal or turn the line."""
    plain = "".join(char if char.isprintable() or char in "\n\t" else "\ufffd" for char in str(text))
    return html.escape(plain)


def readable_span(seconds: float) -> str:
    """Return a time as people say it: `3.2 s`, `4 min 10 s`, `2 h 05 min`, `3 d 4 h`."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def _span(data: ReportData, begin: float, end: float) -> str:
    seconds = known_span(begin, end, data.snapshot.clock_steps)
    return "-" if seconds is None else readable_span(seconds)


def _head(data: ReportData) -> list[str]:
    snapshot = data.snapshot
    share = data.useful_time.share
    cause = snapshot.cause or (data.attempts[-2].cause if len(data.attempts) > 1 else "")
    label = "Cause" if snapshot.cause else "Last restart"
    tiles = [
        ("Time", _span(data, data.begin, data.end)),
        ("Useful", "-" if share is None else f"{100 * share:.0f} %"),
        ("Attempts", str(snapshot.attempts)),
        ("Restarts", of_limit(snapshot.restarts, snapshot.max_restarts)),
        ("Nodes lost", str(snapshot.node_losses)),
        ("World", f"{count(snapshot.workers, 'worker')}" if snapshot.workers else "-"),
        ("Nodes", str(len(snapshot.nodes))),
    ]
    state = f'<span class="state {snapshot.state.value.lower()}">{shown(describe_state(snapshot))}</span>'
    where = f"run {shown(snapshot.run)}, job {shown(snapshot.job_id or '-')}, from {_moment(data.begin)} to "
    where += f"{_moment(data.end)} UTC{'' if snapshot.is_over else ', not over'}"
    return [
        f"<header><h1>{shown(snapshot.name)} {state}</h1>",
        f'<p class="cause"><b>{label}:</b> {shown(cause)}</p>' if cause else "",
        f'<p class="note"><b>Left out:</b> {shown(describe_left_out(snapshot.left_out))}</p>'
        if snapshot.left_out
        else "",
        f'<p class="note"><b>Clock:</b> {shown(describe_steps(data.snapshot.clock_steps))}</p>'
        if data.snapshot.clock_steps
        else "",
        f'<p class="note">{where}</p></header>',
        '<section class="tiles">',
        *(f"<div><b>{shown(value)}</b><span>{shown(title)}</span></div>" for title, value in tiles),
        "</section>",
    ]


def _time_use(data: ReportData) -> list[str]:
    sums = data.useful_time.seconds
    whole = sum(sums.values())
    rows = [
        (f'<i class="use" data-use="{use.value}"></i>{use.value}', readable_span(sums[use]), _percent(sums[use], whole))
        for use in TimeUse
        if sums[use] > 0
    ]
    queued_s, note = data.useful_time.history.queued_s, ""
    if not data.useful_time.history.has_steps:
        note = "No rank said its step (heartbeat), so work that was done again counts as training."
    elif not data.useful_time.has_repeats:
        note = (
            "The steps of the heartbeats begin anew within an attempt, so work that was done again counts as training."
        )
    if data.useful_time.forbidden:
        rows, note = [], f"It is {describe_useful_time(data.useful_time)}."
    queue = "" if queued_s is None else f": {readable_span(queued_s)}"
    return [
        "<section><h2>Useful and lost time</h2>",
        '<div id="uses" class="chart short"></div>',
        *_table(("on", "time", "share"), rows, numbers=(1, 2)),
        f'<p class="note">Each second of an allocation counts once; the queue is not part of it{queue}. {note}</p>',
        "</section>",
    ]


def _timeline() -> list[str]:
    return [
        "<section><h2>Nodes over time</h2>",
        f'<p class="tools"><label>Rows {_VIEWS}</label> {_PAGES}</p>',
        '<div id="timeline" class="chart"></div>',
        '<p class="note">Times are UTC. A cross is a rank that failed. Drag to zoom, double-click to see all.</p>',
        "</section>",
    ]


def _attempts(data: ReportData) -> list[str]:
    rows = []
    for index, each in enumerate(data.attempts):
        later = data.attempts[index + 1].times.opened if index + 1 < len(data.attempts) else data.end
        until = each.times.ended if each.times.ended is not None else later
        world = f"{count(each.workers, 'worker')} on {describe_nodes(each.nodes)}" if each.workers else "-"
        rows.append(
            (
                str(each.times.number),
                _moment(each.times.opened),
                _span(data, each.times.opened, max(each.times.opened, until)),
                shown(world),
                shown(each.cause),
            )
        )
    if not rows:
        return []
    return [
        "<section><h2>Attempts and restarts</h2>",
        '<div id="restarts" class="chart short"></div>' if len(rows) > 1 else "",
        *_table(("attempt", "opened", "took", "world", "ended because"), rows, numbers=(0, 2)),
        "</section>",
    ]


def _slow(data: ReportData) -> list[str]:
    rows = [
        (str(each.rank), shown(each.node), str(each.step), f"{each.behind:g}", f"{each.age_s:.0f} s")
        for each in data.pace.slow[:20]
    ]
    if not rows:
        return []
    return [
        "<section><h2>Slow ranks</h2>",
        *_table(("rank", "node", "step", "behind the median", "since its heartbeat"), rows, numbers=(0, 2, 3, 4)),
        "</section>",
    ]


def _failures(data: ReportData) -> list[str]:
    if not data.failures:
        return []
    rows = [
        (
            str(each.attempt),
            _moment(each.at) if each.at else "-",
            str(each.rank),
            shown(each.node),
            shown(each.failure_class),
            _message(each),
        )
        for each in data.failures
    ]
    left_out = f"<p class='note'>and {data.failures_left_out} more</p>" if data.failures_left_out else ""
    return [
        f"<section><h2>Failures</h2><p class='note'>{count(len(rows), 'rank')}; a click shows the stack.</p>",
        *_table(("attempt", "time", "rank", "node", "class", "message"), rows, numbers=(0, 2)),
        left_out,
        "</section>",
    ]


def _message(failure: FailureSeen) -> str:
    first, _, rest = failure.message.partition("\n")
    stack = failure.stack or rest
    if not stack:
        return shown(first)
    return f"<details><summary>{shown(first)}</summary><pre>{shown(stack)}</pre></details>"


def _metrics(data: ReportData) -> list[str]:
    if not data.samples:
        return [
            "<section><h2>Nodes</h2><p class='note'>No samples: the run was shorter than 10 s, or older.</p></section>"
        ]
    return ['<section><h2>Nodes</h2><div id="metrics"></div></section>']


def _table(header: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[int]) -> list[str]:
    """Return a table; the cells are HTML already."""

    def cell(tag: str, column: int, content: str) -> str:
        kind = ' class="number"' if column in numbers else ""
        return f"<{tag}{kind}>{content}</{tag}>"

    lines = [[cell("td", column, content) for column, content in enumerate(row)] for row in rows]
    return [
        '<div class="wide"><table><thead><tr>',
        *(cell("th", column, title) for column, title in enumerate(header)),
        "</tr></thead><tbody>",
        *(f"<tr>{''.join(line)}</tr>" for line in lines),
        "</tbody></table></div>",
    ]


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %"


def _moment(seconds: float) -> str:
    try:
        moment = datetime.fromtimestamp(seconds, timezone.utc)
    except (ValueError, OverflowError):  # no time at all: the record is damaged
        return "-"
    return f"<time>{moment.strftime('%Y-%m-%d %H:%M:%S')}</time>"


def _as_data(value: object) -> str:
    """Return JSON that cannot end the block it stands in."""
    return (
        json.dumps(value, separators=(",", ":")).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    )


def _as_parsed(script: str) -> str:
    """Return a script as an HTML parser hands it on: with plain line ends, for its hash is of that."""
    return script.replace("\r\n", "\n").replace("\r", "\n")


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _shipped(name: str) -> str:
    with open(os.path.join(os.path.dirname(__file__), name), encoding="utf-8") as file:
        return _as_parsed(file.read())
