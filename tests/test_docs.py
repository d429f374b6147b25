"""The documentation is held against the code: links, job files, site files, commands, exit codes, records."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import re
import shlex
import subprocess
import sys
from enum import Enum
from functools import cache
from pathlib import Path

import pytest

from hpc_elastic.cli.arguments import VerbParser
from hpc_elastic.cli.verbs import EXIT_CODES, MODULES
from hpc_elastic.errors import ExitCode, UsageError
from hpc_elastic.job.parse import parse_job
from hpc_elastic.membership import discovery, member, messages, phases
from hpc_elastic.observe.schemas import RECORD_NAMES
from hpc_elastic.rundir.records import RESULT_REASONS
from hpc_elastic.site.parse import parse_site
from publish.options_page import PAGE, options_page

REPOSITORY = Path(__file__).parents[1]
FOLDERS = ("", "docs", "examples", "site-configs", "templates")
PAGES = sorted({page for folder in FOLDERS for page in (REPOSITORY / folder).glob("**/*.md" if folder else "*.md")})
NAMES = [page.relative_to(REPOSITORY).as_posix() for page in PAGES]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
CONTRIBUTING = REPOSITORY / "CONTRIBUTING.md"
every_page = pytest.mark.parametrize("page", PAGES, ids=NAMES)


def fences(page: Path, *languages: str) -> list[str]:
    return [body for language, body in FENCE.findall(page.read_text()) if language in languages]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@every_page
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if re.match(r"https?://", target):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked), target


@every_page
def test_yaml_examples_are_accepted(page: Path) -> None:
    for text in fences(page, "yaml"):
        if re.search(r"^scheduler:", text, re.M):
            parse_site(text, path="mycluster.yaml")
        else:
            parse_job(text, file="job.yaml")


def commands(page: Path) -> list[list[str]]:
    """The command lines of ours on a page: from shell examples, transcripts and inline code."""
    lines = [line for text in fences(page, "bash") for line in text.splitlines()]
    lines += [line[2:] for text in fences(page, "console") for line in text.splitlines() if line.startswith("$ ")]
    lines += [line.strip() for line in page.read_text().splitlines() if line.startswith("    hpc-elastic ")]
    lines += re.findall(r"`(hpc-elastic [^`\n]+)`", FENCE.sub("", page.read_text()))
    found = []
    for line in (line for line in lines if "hpc-elastic" in line and not line.startswith("ln ")):
        words = shlex.split(line, comments=True)
        starts = [number for number, word in enumerate(words) if word.rpartition("/")[2] == "hpc-elastic"]
        found += [words[start + 1 :] for start in starts[:1]]
    return [words for words in found if words and words[0] not in ("VERB", "--version", "--help")]


SHELL = {"|", "&&", "||", ";", ">", ">>", "<", "2>", "&"}
SHORTENED = re.compile(r"\.\.\.|\[|^(?:RUN|DIR|NAME|FILE|SITE|NODE|OLD|SCRIPT|SHELL)$")  # a form, not a command to type


def our_words(words: list[str]) -> list[str]:
    """The words of a command line up to what the shell takes for itself."""
    end = next((number for number, word in enumerate(words) if word in SHELL or word.startswith((">", "2>"))), None)
    return [word.rstrip(";") for word in words[:end]]


def our_options(verb: str, words: list[str]) -> list[str]:
    """The options of a command line, without those that belong to a script."""
    options = []
    for word in words:
        if verb == "run" and word.endswith(".py"):
            break
        if word.startswith("-") and word != "-":
            options.append(word.partition("=")[0])
    return options


@cache
def parser_of(verb: str) -> VerbParser:
    parser = importlib.import_module(f"hpc_elastic.cli.{MODULES[verb]}").make_parser()
    assert isinstance(parser, VerbParser)
    return parser


@every_page
def test_no_example_keeps_the_random_numbers_of_one_rank_for_all(page: Path) -> None:
    for text in fences(page, "python"):
        assert not ("replicated=True" in text and "random_state(" in text), text


@every_page
def test_commands_exist(page: Path) -> None:
    for verb, *words in commands(page):
        assert verb in MODULES, verb
        known = {option for action in parser_of(verb)._actions for option in action.option_strings}
        for option in our_options(verb, our_words(words)):
            assert option in known, f"hpc-elastic {verb} {option}"


def typed_commands(page: Path) -> list[list[str]]:
    """The command lines of ours that can be typed as they stand; prose may leave out the job file."""
    found = [[verb, *our_words(words)] for verb, *words in commands(page)]
    return [words for words in found if not any(SHORTENED.search(word) for word in words)]


PARTLY_SHOWN = re.compile("the following arguments are required|expected one argument")  # in prose: `run --nodes`


def complaint_of(verb: str, words: list[str]) -> str:
    """What the parser of a verb says of a command line, if it does not take it."""
    parse = parser_of(verb).parse_args if verb == "run" else parser_of(verb).parse_intermixed_args
    with contextlib.suppress(SystemExit):  # --help
        try:
            parse(words)
        except UsageError as error:
            return error.message
    return ""


@every_page
def test_commands_are_taken_by_their_parsers(page: Path) -> None:
    for verb, *words in typed_commands(page):
        complaint = complaint_of(verb, words)
        assert not complaint or PARTLY_SHOWN.search(complaint), f"hpc-elastic {verb} {shlex.join(words)}: {complaint}"


MAKEFILE = (REPOSITORY / "Makefile").read_text()


def made(page: Path) -> list[list[str]]:
    """The words after `make` on a page: targets and variables."""
    lines = [line.partition("#")[0] for text in fences(page, "bash") for line in text.splitlines()]
    lines += re.findall(r"`([^`\n]+)`", FENCE.sub("", page.read_text()))
    return [line.split()[1:] for line in lines if line.startswith("make ")]


@every_page
def test_make_makes_what_pages_name(page: Path) -> None:
    for word in [word for words in made(page) for word in words]:
        name, is_variable, _ = word.partition("=")
        form = rf"^{name} \?=|\$\({name}\)" if is_variable else rf"^{re.escape(name)}:"
        assert re.search(form, MAKEFILE, re.M), word


def test_contributing_names_targets() -> None:
    """Else the test above would hold whatever the Makefile makes."""
    assert {"check", "test", "test-all", "test-slurm", "soak", "fuzz"} <= {words[0] for words in made(CONTRIBUTING)}


@every_page
def test_programs_and_files_of_the_tests_that_pages_name_are_there(page: Path) -> None:
    text = page.read_text()
    for module in re.findall(r"python3? -m ((?:tests|benchmarks)[\w.]*\w)", text):
        path = REPOSITORY / module.replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module
    for name in re.findall(r"(?<![\w/.(])((?:tests|benchmarks|hpc_elastic)/[\w/]+(?:\.\w+)+)", text):
        assert (REPOSITORY / name).exists(), name


def test_pages_have_commands_that_can_be_typed() -> None:
    """Else the test above would hold whatever the parsers take."""
    assert sum(len(typed_commands(page)) for page in PAGES) > 150


def test_the_readme_has_commands() -> None:
    """Else the test above would hold whatever the pages say."""
    verbs = {words[0] for words in commands(REPOSITORY / "README.md")}
    assert {"submit", "run", "check", "status", "logs", "cancel", "list"} <= verbs


@pytest.mark.parametrize("name", ["README.md", "docs/reference/command-line.md"])
def test_the_table_of_exit_codes_is_that_of_the_code(name: str) -> None:
    rows = re.findall(r"^\| (\d+) \| .+ \|$", (REPOSITORY / name).read_text(), re.M)
    of_the_program = {70, 74, 130} if "reference" in name else set()
    assert [int(code) for code in rows if int(code) not in of_the_program] == [int(code) for code in ExitCode]


def test_the_help_lists_every_exit_code() -> None:
    assert {int(code) for code in re.findall(r"(?:^| ) ?(\d+) ", EXIT_CODES, re.M)} == set(map(int, ExitCode))


def test_the_page_of_options_is_what_the_parsers_have() -> None:
    assert PAGE.read_text() == options_page(), "`make reference` writes it anew"


def test_the_reference_lists_every_record_and_reason() -> None:
    text = (REPOSITORY / "docs/reference/run-directory.md").read_text()
    assert set(RECORD_NAMES) <= set(re.findall(r"^\| `([^`]+)`", text, re.M))
    assert set(RESULT_REASONS) == set(re.findall(r"^\| `(\w+)` \| ", text.partition("| reason | meaning |")[2], re.M))


def test_the_reference_lists_every_event() -> None:
    code = "".join(path.read_text() for path in (REPOSITORY / "hpc_elastic").glob("**/*.py"))
    events = set(re.findall(r'\b(?:name=|note\()"([a-z]+\.[a-z_]+)"', code))
    text = (REPOSITORY / "docs/reference/run-directory.md").read_text()
    named = text.partition("\n### nodes/NODE/events.jsonl\n")[2].partition("\n### ")[0]
    listed = {name for cell in re.findall(r"^\| (`.+?) \|", named, re.M) for name in re.findall(r"`(\S+)`", cell)}
    assert events == listed


def transitions(machine: str) -> list[list[str]]:
    """The rows of a machine's table of transitions: phases, event, action, next phase."""
    text = (REPOSITORY / "docs/explanation/membership.md").read_text()
    section = text.partition(f"\n### {machine}\n\n| phase |")[2].partition("\n#")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| `")]
    assert all(len(row) == 4 for row in rows)
    return rows


@pytest.mark.parametrize(
    ("machine", "enum"),
    [("Member", member.MemberPhase), ("Head", phases.HeadPhase), ("HeadDiscovery", discovery.DiscoveryPhase)],
)
def test_the_transitions_have_the_phases_of_the_machine(machine: str, enum: type[Enum]) -> None:
    rows = transitions(machine)
    named = {phase for row in rows for cell in (row[0], row[3]) for phase in re.findall(r"`(\w+)`", cell)}
    assert named == {phase.value for phase in enum}


@pytest.mark.parametrize("machine", ["Member", "Head", "HeadDiscovery"])
def test_the_transitions_name_messages_that_exist(machine: str) -> None:
    rows = transitions(machine)
    named = {name for row in rows for cell in row[1:3] for name in re.findall(r"`([A-Z]\w+)`", cell)}
    assert named <= set(vars(messages)), named - set(vars(messages))


@every_page
def test_prose_names_no_path_of_one_machine(page: Path) -> None:
    assert not re.search(r"/(?:work|root|tmp)/", page.read_text())


def examples_with_torch() -> list[tuple[str, str]]:
    """The commands of the page about what is not in torch, and what they print there."""
    page = REPOSITORY / "docs/explanation/not-in-torch.md"
    text = "".join(fences(page, "console"))
    return re.findall(r'^\$ python -c "(.+)"\n((?:(?!\$ ).*\n)*)', text, re.M)


@pytest.mark.long
def test_what_is_not_in_torch_is_not_in_the_installed_one() -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    examples = examples_with_torch()
    assert len(examples) >= 10
    program = "import contextlib, io, json, sys\nprinted = []\nfor code in json.loads(sys.argv[1]):\n"
    program += "    with contextlib.redirect_stdout(io.StringIO()) as out:\n        exec(code, {})\n"
    program += "    printed.append(out.getvalue())\njson.dump(printed, sys.stdout)"
    codes = json.dumps([code for code, _ in examples])
    done = subprocess.run([sys.executable, "-c", program, codes], capture_output=True, text=True, check=True)
    assert list(zip([code for code, _ in examples], json.loads(done.stdout), strict=True)) == examples


def test_each_decision_has_a_date_a_status_and_a_row() -> None:
    folder = REPOSITORY / "docs/decisions"
    rows = (folder / "README.md").read_text()
    for page in sorted(folder.glob("0*.md")):
        title, _, dated = page.read_text().split("\n")[:3]
        assert title.startswith(f"# {page.name[:4]}: "), page
        assert re.fullmatch(r"\d{4}-\d\d-\d\d, (accepted|superseded by [\d, and]+)\.", dated), page
        assert f"]({page.name})" in rows, page
