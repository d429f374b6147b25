"""`python -m tests.simulation.mutate`: changes the shipped code in one place at a time; the simulation has to notice.

Theory of operation. A mutation is an edit of the syntax tree of one module of membership or of its drivers: a condition
turned round, a statement left out, a bound changed. It is tried in a child of a process that has all loaded, in which
the edited function takes the place of the shipped one (`edited`), or in a new process that loads the edited module,
where the edit is of what runs only then. There schedules are played until one breaks a rule: those that run the edited
line (`reach`, `aimed`) first. One that the code as it is does not survive does not count. A schedule is bounded by its
steps and by its own processor time, not by the time of a machine that others use. What no schedule notices survives,
and is printed: a rule or a fault is missing, or the edit changes nothing that matters, which `EQUIVALENT` then says
with the reason. A module that cannot be loaded with its edit is no mutation.

Four scores are printed. An edit that no drawn schedule notices is held against the tests of the simulation that have
schedules of their own (`scenes`). And one that breaks no rule may change how a schedule ends, what it costs or what
happens in it, which is recorded (`recorded`): the tests of the simulation fail then, too, but it is not said that what
changed was a promise.

`mutated_code` says which code is edited: what only people read is not, nor what the simulation does not play.

`--replay MODULE:LINE:EDIT` tries one again, to see that a new rule catches it. It is named as in the output: the module
without the package's name, the line, and as much of the edit's name as is enough, as in `membership.lease:72:cond`.

All of it plays a copy of the checkout, so that whoever works on the code meanwhile changes no verdict; and the code as
it is has to survive first.
"""

from __future__ import annotations

import argparse
import ast
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from types import ModuleType

from tests.simulation.garbage import collect, collect_between_runs
from tests.simulation.mutation.aimed import Trial, aimed, lines_that_show, telling, trial_in, trials
from tests.simulation.mutation.edited import Functions, bounded, loaded_functions, replace_function
from tests.simulation.mutation.edits import Replace, edits
from tests.simulation.mutation.mutated_code import ROOT, nodes
from tests.simulation.mutation.reach import Reach, measure, sources
from tests.simulation.mutation.scenes import failed_test

SURVIVES = "survives"
FAILS = "fails a test"  # of the simulation, which has a schedule of its own
COSTS = "costs else"  # what no rule forbids, and the record of what schedules cost shows
HAPPENS = "does else"  # what costs the same, and the record of what happens in them shows
NOT_LOADED = "does not load"
CRASHED = "the trial itself failed"
EDITED = ("membership", "agent/drivers", "agent/records", "agent/rendezvous")  # every module of these
SAID = "what it writes is for people and other programs, and decides nothing of a run"
OWN = "the simulation has its own in its place"
# But for these, and why.
NOT_EDITED = {
    "membership.authentication": "the simulation's network lets in whom the schedule does; attacks are tests of it",
    "membership.node_news": SAID,
    "agent.records.another_start": OWN,
    "agent.records.kept_states": OWN,
    "agent.records.log_room": OWN,
    **{
        f"agent.records.{name}": SAID
        for name in (
            *("clock_steps", "event_log", "failure_messages", "job_comment", "output_name", "progress"),
            *("samples", "scripts", "step_notes", "telemetry", "textfile"),
        )
    },
}
ALSO = ("agent.policy",)
PLAYED = 400  # some six of each kind: with 60, a third of what survived was a matter of seeds
COMPARED = 100  # recorded schedules that run an edit's line, besides those
AS_IT_IS = 33  # that the code as it is has to survive first; the tests play more
TRIED = 8  # seeds of each kind, to see which lines they run
TRIED_MORE = 32  # of each kind whose runs are short, for lines that few of these run
TRIED_RARELY = 160  # of the same kinds after those, for lines that none of these run
UNTRUE = 8  # schedules that break a rule of the code as it is, and say nothing of an edit
SEED_CPU_S = 20.0  # of the processor, not of the wall: a seed takes a tenth of a second
CLOSED = (
    "the machine is over when its driver is: it takes nothing in and wants nothing, and the tasks that would still "
    "call it are cancelled in the next turn of the event loop"
)
RUNG = (
    "what is due is done whether the timer counts as set or not; but where one rings early by the resolution of the "
    "loop's clock, as asyncio allows and the simulation's do not, it has to be set again"
)
NUMBERS = 'tuple(int(number) for number in re.findall(r"[0-9]+", public)[:3])'
ONE_ROLE = (
    "it only saves time: where there is one role, nobody has a place of another, and a role that lacks none takes none"
)
MANY_NODES = "no cluster has as many nodes, either way"
ROLE = "a role has no space in its name, in a job file; a unit test has one that does"
REMEDY = "it only decides which remedy the text names beside two versions that differ"
# Edits that change nothing that matters, by name, and why.
EQUIVALENT: dict[str, str] = {
    f"hpc_elastic.{name}": why
    for name, why in {
        "agent.drivers.coordinator: left out: self._is_closed = True": CLOSED,
        "agent.drivers.coordinator: true for false: self._is_closed = True": CLOSED,
        "agent.drivers.coordinator: left out: self._timer = None": RUNG,
        "agent.drivers.local_member: left out: self._timer = None": RUNG,
        "membership.members: and for or: is_gone and (may_return or not self._may_have_restarted(node, now))": (
            "who is lost without a word of its kernel was silent for as long as a machine takes to start again, unless "
            "only its answers were lost: then the machine is up, and that nobody but its script ends the job is right"
        ),
        "membership.member: left out: self._leave = leave": (
            "only `_depart` is meant, for `_end` has set it: an agent that leaves while it has no head to lose, or has "
            "just told that it got a TERM, does so at once"
        ),
        "membership.discovery: left out: self.phase = DiscoveryPhase.OVER": (
            "the driver stops the search before it lets the agent leave, and nothing reaches the machine after that"
        ),
        "agent.drivers.coordinator: left out: self._forget(connection)": (
            "a connection that was closed here brings nothing any more, and its end is told of one who is no member"
        ),
        "membership.gathering: true for false: self._is_waiting_for_returns = False": (
            "what is asked when the round may close sets it; a head is only asked once more, at once"
        ),
        "membership.state_save: left out: self.phase = SavePhase.PINNING": (
            "the driver calls `begin` as soon as it has made it, which sets it again before anything reads it"
        ),
        "membership.gathering: left out: self.begin(now)": "the head that makes it begins its first round itself",
        "agent.records.journal: and for or: request.kind in ASKED and request.id": (
            "what else has an id is a stop: one at once is read beside it, and those of an earlier head are passed over"
        ),
        "agent.records.allocation_claims: condition turned round: if mine.changed_scripts: "
        "line, names = describe_changed(mine.changed_scripts), list(mine.changed_scr": (
            "it decides whether people are told of other scripts, and whoever has claimed keeps the same number next"
        ),
        "membership.head: and for or: message.attempt == member.attempt and member.is_in_world": (
            "a member reports no attempt that it was not told of, and nothing of one after it has stopped its workers"
        ),
        "membership.roster: a quarter: 2": ONE_ROLE,
        "membership.roster: and for or: not short or len(least) < 2": ONE_ROLE,
        "agent.rendezvous.findings: left out: file.seek(max(0, os.fstat(file.fileno()).st_size - LAST_LINE_BYTES))": (
            "it only saves reading: the last line is the same"
        ),
        **{
            f"agent.rendezvous.findings: {what}: {constant}": "how much of an agent's last line people are shown"
            for what in ("a quarter", "four times as much")
            for constant in ("LAST_LINE_BYTES = 4096", "LONGEST_LINE = 200")
        },
        'membership.held_states: four times as much: ranks, role_ranks, role = part.split(" ", 2)': ROLE,
        "membership.held_states: four times as much: "
        'return place.removeprefix("* ") if place.startswith("* ") else place.split(" ", 2)[-1]': ROLE,
        "membership.ranks: four times as much: NO_LIMITS = NodeLimits(all_nodes=2**31)": MANY_NODES,
        "membership.ranks: a quarter: NO_LIMITS = NodeLimits(all_nodes=2**31)": MANY_NODES,
        f"membership.versions: condition turned round: {NUMBERS} if public[:1].isdigit() else ()": REMEDY,
        f"membership.versions: four times as much: return {NUMBERS} if public[:1].isdigit() el": REMEDY,
        f"membership.versions: a quarter: return {NUMBERS} if public[:1].isdigit() el": REMEDY,
        "membership.member: and for or: "
        "attempt != self.attempt or self.phase not in (MemberPhase.WORKING, MemberPhase.STOPPING)": (
            "an agent reports the exits of an attempt's workers before it says that they are stopped, and none after "
            "it: of a worker that survives its KILL the stop explains the end"
        ),
    }.items()
}
REACH = "reach.json"
VERDICT_WIDTH = 110  # of the first column of the output
NAMES = [
    f"hpc_elastic.{name}"
    for name in (
        *(
            f"{package.replace('/', '.')}.{path.stem}"
            for package in EDITED
            for path in sorted((ROOT / "hpc_elastic" / package).glob("*.py"))
            if path.stem != "__init__"
        ),
        *ALSO,
    )
    if name not in NOT_EDITED
]


@dataclass(frozen=True)
class Mutation:
    """One edit: the module, and which node of its tree is changed how."""

    module: str
    node: int
    line: int
    what: str
    source: str

    @property
    def name(self) -> str:
        """How `EQUIVALENT` and `--only` call it; lines move, so it has none."""
        return f"{self.module}: {self.what}: {self.source}"

    @property
    def place(self) -> str:
        """How `--replay` calls it, in this state of the code."""
        return f"{self.module.removeprefix('hpc_elastic.')}:{self.line}:{self.what}"


def _path(module: str) -> Path:
    return ROOT / (module.replace(".", "/") + ".py")


def mutations() -> list[Mutation]:
    """All that the program can make."""
    found = []
    for module in NAMES:
        source = _path(module).read_text()
        lines = [line.encode() for line in source.splitlines(keepends=True)]  # columns of trees are bytes
        tree = ast.parse(source)
        numbers = {node: number for number, node in enumerate(ast.walk(tree))}
        told = _statements(tree)
        for node in nodes(tree):
            for what, _ in edits(node):
                number = numbers[node]
                line = " ".join(_segment(lines, told.get(node, node)).split())
                found.append(Mutation(module, number, getattr(node, "lineno", 0), what, line[:100]))
    return found


def _statements(tree: ast.Module) -> dict[ast.AST, ast.AST]:
    """By constant, the statement that it is in, which tells more of it; none where that is longer than a line or so."""
    simple = (each for each in ast.walk(tree) if isinstance(each, ast.stmt) and not hasattr(each, "body"))
    return {child: each for each in simple for child in ast.walk(each) if isinstance(child, ast.Constant)}


def _segment(lines: Sequence[bytes], node: ast.AST) -> str:
    """Return the text of a node, "" where it has no place. `ast.get_source_segment` splits the file for each again."""
    first, last = getattr(node, "lineno", None), getattr(node, "end_lineno", None)
    if first is None or last is None:
        return ""
    text = b"".join(lines[first - 1 : last])
    end = len(text) - len(lines[last - 1]) + getattr(node, "end_col_offset", 0)
    return text[getattr(node, "col_offset", 0) : end].decode()


class _Loader(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads one module with an edit."""

    def __init__(self, mutation: Mutation) -> None:
        self._mutation = mutation

    def find_spec(self, name: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:
        if name != self._mutation.module:
            return None
        return importlib.util.spec_from_file_location(name, _path(name), loader=self)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(_edited(self._mutation), str(_path(self._mutation.module)), "exec"), vars(module))


def load_edited(edit: str) -> None:
    """Have a module loaded with an edit, which is given in JSON, in a process that has not loaded it yet."""
    sys.meta_path.insert(0, _Loader(Mutation(**json.loads(edit))))


def _edited(mutation: Mutation) -> ast.Module:
    """The tree of its module with the edit."""
    tree = ast.parse(_path(mutation.module).read_text())
    node = list(ast.walk(tree))[mutation.node]
    edit = dict(edits(node))[mutation.what]
    changed: ast.Module = Replace(node, edit).visit(tree)  # type: ignore[assignment]
    return ast.fix_missing_locations(changed)


def unplayed(drawn: Sequence[Mutation], reach: Reach) -> list[str]:
    """The lines in functions whose edits no measured schedule would run, as `module:line: source`."""
    found = {}
    for each in drawn:
        first = lines_that_show(each.module, each.node, each.line)[0]
        if first == [f"{each.module}:{each.line}"] and first[0] not in reach:
            found[first[0]] = f"{first[0]}: {each.source}"
    return list(found.values())


def play(mutation: Mutation | None, count: int, reach: Reach, untrue: Collection[Trial] = ()) -> str:
    """Play schedules with a mutation, in a process of its own; return the verdict, as it is printed.

    Args:
        mutation: None for the code as it is.
        count: how many schedules.
        reach: which seeds run which line.
        untrue: schedules that break a rule of the code as it is.
    """
    if mutation is not None and "hpc_elastic.membership" not in sys.modules:
        sys.meta_path.insert(0, _Loader(mutation))
    try:
        from tests.simulation.draws.kinds import KINDS, WEIGHTS
        from tests.simulation.world import SimulatedRun  # noqa: F401
    except Exception as error:
        return f"{NOT_LOADED}: {type(error).__name__}: {error}"
    ran: list[tuple[str, int]] = []
    first: list[tuple[str, int]] = []
    if mutation is not None:
        ran = aimed(reach, mutation.module, mutation.node, mutation.line)
        first = telling(reach, mutation.module, mutation.node, ran)
    noticed: dict[str, str] = {}  # by what has
    listed = trials(ran, WEIGHTS, TRIED, count, first)
    for trial in listed:
        why, what = (None, None) if trial in untrue else _outcome(trial)
        collect()
        if why is not None:
            return f"{trial.name}: {why}"
        _note(noticed, trial, what)
    if mutation is None:
        return SURVIVES
    more = (Trial(*seed) for seed in ran)
    if COSTS not in noticed and (why := _compare([each for each in more if each not in listed], noticed)) is not None:
        return why
    for by in (COSTS, HAPPENS):
        if by in noticed:
            return noticed[by]
    own, among = reach.get(f"{mutation.module}:{mutation.line}", ()), TRIED * len(KINDS)  # others ran its function
    return (
        f"{SURVIVES} {count} seeds; {sum(seed < TRIED for _, seed in own)} of {among} run the line, {len(own)} in all"
    )


def _outcome(trial: Trial) -> tuple[str | None, str | None]:
    """How a schedule breaks a rule, if it does; and what it costs else than is recorded, if it does."""
    from tests.simulation.recorded import difference
    from tests.simulation.world import SimulatedRun

    run = SimulatedRun(trial.scenario())
    try:
        with bounded(SEED_CPU_S):
            run.play()
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0], None
    return None, None if trial.dice else difference(trial.kind, trial.seed, run)


def _note(noticed: dict[str, str], trial: Trial, what: str | None) -> None:
    """Keep the first recorded schedule that costs something else, and the first in which something else happens."""
    from tests.simulation.recorded import SAME_COST

    if what is not None:
        by = HAPPENS if what == SAME_COST else COSTS
        noticed.setdefault(by, f"{by}: {trial.name}: {what}")


def _compare(more: Sequence[Trial], noticed: dict[str, str]) -> str | None:
    """Play more of the recorded schedules until one costs something else; return how one breaks a rule."""
    from tests.simulation.recorded import recorded

    for trial in [each for each in more if (each.kind, each.seed) in recorded()][:COMPARED]:
        why, what = _outcome(trial)
        collect()
        if why is not None:
            return f"{trial.name}: {why}"
        _note(noticed, trial, what)
        if COSTS in noticed:
            break
    return None


def serve() -> None:
    """Try each mutation that comes in by its own line, or each schedule without one, in a child of this process.

    The child has the shipped code already, and the functions of the edit are changed in it: a new process has to load
    all again, which takes longer than most verdicts. What runs when a module is loaded needs one all the same.
    """
    from tests.simulation import world  # noqa: F401
    from tests.simulation.draws import kinds  # noqa: F401

    reach, functions = _kept_reach(), loaded_functions()
    collect_between_runs()
    for line in sys.stdin:
        word, count, names = json.loads(line)
        listed = [Trial(*each) for each in names]
        if word is None:
            print(_in_child(lambda: _outcome(listed[0])[0]), flush=True)  # noqa: B023
        else:
            mutation = Mutation(**word)
            print(_in_child(lambda: _play_edited(mutation, count, reach, functions, listed)), flush=True)  # noqa: B023


def _play_edited(
    mutation: Mutation, count: int, reach: Reach, functions: Functions, untrue: Collection[Trial]
) -> str | None:
    """The verdict; None if the edit is of what runs as the module is loaded."""
    source = _path(mutation.module).read_text()
    changed = _edited(mutation)
    if not replace_function(str(_path(mutation.module)), ast.parse(source), changed, mutation.node, functions):
        return None
    return play(mutation, count, reach, untrue)


def _in_child(work: Callable[[], str | None]) -> str:
    """What it returns, as a line."""
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # an edit may have the agent print a line
        try:
            text = json.dumps(work())
        except BaseException as error:
            text = json.dumps(f"{CRASHED}: {type(error).__name__}: {error}")
        os.write(theirs, text.encode()[:4000])
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return said.decode() or json.dumps(f"{CRASHED}: the process died")


class Server:
    """A process that has a checkout loaded, and tries one mutation after the other."""

    def __init__(self, checkout: Path) -> None:
        self._checkout = checkout
        command = [sys.executable, "-m", "tests.simulation.mutate", "--serve"]
        self._process = subprocess.Popen(
            command, cwd=checkout, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def verdict(self, mutation: Mutation, count: int) -> str:
        """Try one; a schedule that the code as it is does not survive either says nothing of it."""
        untrue: list[Trial] = []
        while True:
            said = self._ask(mutation, count, untrue)
            verdict = _try(mutation, count, self._checkout, untrue) if said is None else said
            trial = trial_in(verdict)
            if trial is None or len(untrue) == UNTRUE or self._ask(None, 1, [trial]) is None:
                return verdict
            untrue.append(trial)

    def _ask(self, mutation: Mutation | None, count: int, listed: Sequence[Trial]) -> str | None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        word = None if mutation is None else asdict(mutation)
        self._process.stdin.write(json.dumps([word, count, listed]) + "\n")
        self._process.stdin.flush()
        said: str | None = json.loads(self._process.stdout.readline())
        if said is not None and said.startswith(CRASHED):
            raise RuntimeError(f"{mutation}: {said}")
        return said

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def _try(mutation: Mutation | None, count: int, checkout: Path, untrue: Sequence[Trial] = ()) -> str:
    word = "null" if mutation is None else json.dumps(asdict(mutation))
    command = [sys.executable, "-m", "tests.simulation.mutate", "--play", word, "--count", str(count)]
    command += ["--but", json.dumps(untrue)]
    ended = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {ended.returncode}: {ended.stderr[-2000:]}")
    return ended.stdout.splitlines()[-1]


def _kept_reach() -> Reach:
    """That of this checkout, if it was measured."""
    path = ROOT / REACH
    return json.loads(path.read_text()) if path.exists() else {}


def _measure_reach(checkout: Path, keep: Path | None) -> None:
    """In a checkout's copy, or taken from where an earlier call has kept it."""
    if keep is None or not keep.exists():
        command = [sys.executable, "-m", "tests.simulation.mutate", "--measure-reach"]
        subprocess.run(command, cwd=checkout, check=True)
        if keep is not None:
            shutil.copy(checkout / REACH, keep)
    else:
        shutil.copy(keep, checkout / REACH)


def _copy_checkout(to: str) -> Path:
    for folder in ("hpc_elastic", "tests", "templates", "site-configs"):
        shutil.copytree(ROOT / folder, Path(to, folder), ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", to)
    return Path(to)


def _key(place: str, source: str) -> tuple[str, str, str]:
    """A mutation, without its line."""
    module, _, what = place.split(":", 2)
    return module, what, source


def _survivors(output: str) -> set[tuple[str, str, str]]:
    """What no rule and no test has noticed, in what a campaign has printed; code may have moved since."""
    lines = [line[VERDICT_WIDTH + 1 :] for line in output.splitlines() if line.startswith((SURVIVES, COSTS, HAPPENS))]
    return {_key(place, source) for place, _, source in (line.partition(": ") for line in lines)}


def _verdict_of(mutation: Mutation, count: int, servers: SimpleQueue[Server], checkout: Path) -> str:
    server = servers.get()
    try:
        verdict = server.verdict(mutation, count)
        if not verdict.startswith(SURVIVES):
            return verdict
        failed = failed_test(checkout, json.dumps(asdict(mutation)))
        return f"{FAILS}: {failed}" if failed else verdict
    finally:
        servers.put(server)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mutate", description=__doc__)
    parser.add_argument("-n", type=int, default=120, help="how many, drawn among all; 0: all")
    parser.add_argument("--draw", type=int, default=1, help="which draw")
    parser.add_argument("--count", type=int, default=PLAYED, help="the seeds that each has to survive")
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--only", default="", help="those whose name has this in it")
    parser.add_argument("--modules", nargs="*", default=[""], help="draw among those of modules whose names end so")
    parser.add_argument("--replay", default="", metavar="MODULE:LINE:EDIT", help="that one, if no draw is wanted")
    parser.add_argument(
        "--again", type=Path, metavar="OUTPUT", help="those that survived in what an earlier call printed"
    )
    parser.add_argument("--least", type=float, default=0.0, help="fails below this share, in percent")
    parser.add_argument(
        "--reach", type=Path, help="a file that keeps which seeds run which lines; made if it is absent"
    )
    parser.add_argument(
        "--unplayed", action="store_true", help="only name the lines that would be edited and that no schedule runs"
    )
    parser.add_argument("--play", default="", help="one, in this process")
    parser.add_argument("--but", default="[]", help="schedules that are not played then")
    parser.add_argument("--measure-reach", action="store_true", help="in this process")
    parser.add_argument(
        "--serve", action="store_true", help="those that standard input names, in children of this process"
    )
    arguments = parser.parse_args(words)
    if arguments.play:
        what = json.loads(arguments.play)
        mutation = None if what is None else Mutation(**what)
        untrue = [Trial(*each) for each in json.loads(arguments.but)]
        print(play(mutation, arguments.count, _kept_reach(), untrue))
        return 0
    if arguments.serve:
        serve()
        return 0
    if arguments.measure_reach:
        from tests.simulation.draws.kinds import KINDS, LONG

        more = {kind: TRIED_MORE // (4 if kind in LONG else 1) for kind in KINDS}
        rarely = {kind: TRIED_RARELY for kind in KINDS if kind not in LONG}
        (ROOT / REACH).write_text(json.dumps(measure(sources(ROOT, NAMES), TRIED, more, rarely)))
        return 0
    everything = mutations()
    numbers = [
        number
        for number, each in enumerate(everything)
        if arguments.only in each.name
        and each.place.startswith(arguments.replay)
        and each.module.endswith(tuple(arguments.modules))
    ]
    numbers = [number for number in numbers if everything[number].name not in EQUIVALENT]
    if arguments.again is not None:
        survived = _survivors(arguments.again.read_text())
        numbers = [
            number for number in numbers if _key(everything[number].place, everything[number].source) in survived
        ]
    elif arguments.n and not (arguments.only or arguments.replay):
        numbers = random.Random(arguments.draw).sample(numbers, min(arguments.n, len(numbers)))
    began = time.monotonic()
    verdicts: Counter[str] = Counter()
    with TemporaryDirectory() as folder, ThreadPoolExecutor(arguments.at_once) as pool:
        checkout = _copy_checkout(folder)
        if (verdict := _try(None, AS_IT_IS, checkout)) != SURVIVES:
            print(f"the code as it is does not survive: {verdict}")
            return 1
        _measure_reach(checkout, arguments.reach)
        drawn = [everything[number] for number in numbers]
        if arguments.unplayed:
            lines = unplayed(drawn, json.loads((checkout / REACH).read_text()))
            print("\n".join([*lines, f"{len(lines)} lines"]))
            return 0
        if failed := failed_test(checkout, None):
            print(f"the code as it is fails a test of the simulation: {failed}")
            return 1
        servers: SimpleQueue[Server] = SimpleQueue()
        for _ in range(arguments.at_once):
            servers.put(Server(checkout))
        results = pool.map(lambda each: _verdict_of(each, arguments.count, servers, checkout), drawn)
        for each, result in zip(drawn, results, strict=True):
            verdicts[
                next((end for end in (SURVIVES, FAILS, COSTS, HAPPENS, NOT_LOADED) if result.startswith(end)), "caught")
            ] += 1
            print(f"{result[:VERDICT_WIDTH]:{VERDICT_WIDTH}} {each.place}: {each.source}", flush=True)
        for _ in range(arguments.at_once):
            servers.get().close()
    counted = max(1, len(numbers) - verdicts[NOT_LOADED])
    shares = list(accumulate(100 * verdicts[by] / counted for by in ("caught", FAILS, COSTS, HAPPENS)))
    print(
        f"{verdicts['caught']} of {counted} mutations break a rule ({shares[0]:.1f} %); {verdicts[FAILS]} more fail a "
        f"test with a schedule of its own ({shares[1]:.1f} %), {verdicts[COSTS]} change what schedules cost "
        f"({shares[2]:.1f} %), and {verdicts[HAPPENS]} what happens in them ({shares[3]:.1f} %); "
        f"{verdicts[NOT_LOADED]} do not load; {len(everything)} there are; in {time.monotonic() - began:.0f} s"
    )
    return 1 if shares[-1] < arguments.least else 0


if __name__ == "__main__":
    sys.exit(main())
