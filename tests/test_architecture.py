"""Holds the package against the house's own rules: who imports whom, what is pure, how large things get."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from tests.architecture import (
    AGENT_FLOORS,
    LONG_MODULE,
    LONGEST_MODULE,
    PACKAGE,
    PURE,
    THIRD_PARTY,
    Module,
    find_cycle,
    find_floor_breaks,
    find_impurities,
    find_layer_breaks,
    find_long,
    find_namesakes,
    find_oversized,
    find_patched_times,
    find_slurms_variables,
    find_strangers,
    find_stray_times,
    find_unplaced,
    find_untold,
    find_wrong_loads,
    is_below,
    parse_module,
    read_package,
    says_it_is_pure,
)

PAGE = "docs/explanation/architecture.md"


def hold(found: Iterable[str]) -> None:
    """Fail with everything that breaks a rule: of two lists that differ pytest shows the first item."""
    if lines := list(found):
        pytest.fail("\n".join([*lines, f"{PAGE} says what stands where; the rules are in tests/architecture.py"]))


@pytest.fixture(scope="module")
def package() -> Mapping[str, Module]:
    return read_package(PACKAGE)


def test_a_package_imports_only_from_above(package: Mapping[str, Module]) -> None:
    hold(find_layer_breaks(package))


def test_a_floor_of_the_agent_imports_only_those_below(package: Mapping[str, Module]) -> None:
    hold(find_floor_breaks(package))


def test_every_package_is_in_a_layer_and_each_of_the_agent_on_a_floor(package: Mapping[str, Module]) -> None:
    hold(find_unplaced(package))


def test_every_floor_of_the_agent_has_a_module(package: Mapping[str, Module]) -> None:
    assert [floor for floor in AGENT_FLOORS if f"hpc_elastic.agent.{floor}" not in package] == []


def test_a_package_from_elsewhere_is_imported_only_where_it_belongs(package: Mapping[str, Module]) -> None:
    hold(find_strangers(package))


def test_nothing_loads_what_it_must_do_without(package: Mapping[str, Module]) -> None:
    hold(find_wrong_loads(package))


def test_pure_modules_are_pure(package: Mapping[str, Module]) -> None:
    named = [module for name, module in package.items() if any(is_below(name, prefix) for prefix in PURE)]
    pure = named + [module for module in package.values() if says_it_is_pure(module) and module not in named]
    hold(found for module in pure for found in find_impurities(module))


def test_what_slurm_sets_is_read_by_the_module_for_it(package: Mapping[str, Module]) -> None:
    hold(find_slurms_variables(package))


def test_times_that_safety_rests_on_stand_in_one_module(package: Mapping[str, Module]) -> None:
    hold(find_stray_times(package))


def test_there_is_no_cycle(package: Mapping[str, Module]) -> None:
    cycle = find_cycle(package)
    hold([f"modules import each other: {' imports '.join(cycle)}"] if cycle else [])


def test_every_module_says_what_it_is_for(package: Mapping[str, Module]) -> None:
    hold(find_untold(package))


def test_no_module_and_no_function_is_too_long(package: Mapping[str, Module]) -> None:
    for found in find_long(package):
        warnings.warn(found, stacklevel=1)
    hold(find_oversized(package))


def test_no_package_has_a_name_that_means_nothing(package: Mapping[str, Module]) -> None:
    vague = {"utils", "util", "common", "helpers", "helper", "core", "manager", "misc"}
    hold(f"{name}: a name that says what is in it" for name in package if name.rpartition(".")[2] in vague)


def test_no_two_classes_share_a_name(package: Mapping[str, Module]) -> None:
    hold(find_namesakes(package))


def test_no_test_replaces_a_constant_of_time() -> None:
    tests = PACKAGE.parent / "tests"
    sources = [path for path in sorted(tests.rglob("*.py")) if path.relative_to(tests).parts[0] != "simulation"]
    assert Path(__file__) in sources
    found = [
        breach for path in sources for breach in find_patched_times(str(path.relative_to(tests)), path.read_text())
    ]
    hold(found)


@pytest.fixture(scope="module")
def page() -> str:
    return (PACKAGE.parent / PAGE).read_text()


def test_the_page_on_architecture_names_only_what_there_is(page: str) -> None:
    top = PACKAGE.parent
    paths = re.findall(r"`((?:hpc_elastic|templates|tests|docs|site-configs)/[\w./*-]*)`", page)
    hold(f"{PAGE} names {path}, which is not there" for path in paths if not list(top.glob(path)))
    shorter = re.findall(r"`(?!hpc_elastic/|tests/|docs/|templates/|publish/)([\w/]+\.(?:py|js))`", page)
    hold(f"{PAGE} names {path}, which is not there" for path in shorter if not list(PACKAGE.glob(f"**/{path}")))


def test_the_page_on_architecture_has_each_package(page: str, package: Mapping[str, Module]) -> None:
    packages = {name for name, module in package.items() if module.is_package and name.count(".") in (1, 2)}
    named = {name for name in packages if not name.startswith("hpc_elastic.agent.")}  # each of these is a floor
    missing = [name for name in sorted(named) if f"`{name.replace('.', '/')}`" not in page]
    hold(f"{PAGE} does not name {name.replace('.', '/')}" for name in missing)


def test_the_page_on_architecture_says_what_each_package_may_load(page: str) -> None:
    table = page.partition("## Packages")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ((?:`hpc_elastic/[\w/]+`(?:, )?)+) \|.*\|(.*)\|$", table, re.M)
    told = {name: set(re.findall(r"`(\w+)`", cell)) for names, cell in rows for name in re.findall(r"[\w/]+", names)}
    allowed = {
        name: {
            top for top, places in THIRD_PARTY.items() if any(is_below(each, name.replace("/", ".")) for each in places)
        }
        for name in told
    }
    assert len(told) > 10
    hold(
        f"{PAGE} says that {name} may load {told[name]}: {allowed[name]}"
        for name in told
        if told[name] != allowed[name]
    )


def test_the_page_on_architecture_says_what_each_floor_imports(page: str) -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \|.*\|(.*)\|$", page, re.M))
    told = {floor: " ".join(re.findall(r"`(\w+)`", rows[floor])) for floor in AGENT_FLOORS if floor != "drivers"}
    assert told == {floor: below for floor, below in AGENT_FLOORS.items() if floor != "drivers"}
    everything = set(AGENT_FLOORS) - {"drivers"}
    assert (rows["drivers"].strip(), set(AGENT_FLOORS["drivers"].split())) == (
        "all but `guard` and `keeper`",
        everything - {"guard", "keeper"},
    )


def test_the_page_on_architecture_names_eighteen_changes(page: str) -> None:
    table = page.partition("## Eighteen changes")[2].partition("\n## ")[0]
    assert len(re.findall(r"^\| [a-z]", table, re.M)) - len(["the table's head"]) == 18


def made_up(**sources: str) -> dict[str, Module]:
    """A package from module names, with `__` for a dot, and their text."""
    names = {name.replace("__", "."): text for name, text in sources.items()}
    packages = {name.rpartition(".")[0]: "" for name in names if name.count(".") > 0}
    everything = {"": "", **packages, **names}
    return {
        (full := f"hpc_elastic.{name}".rstrip(".")): parse_module(full, text, is_package=name in ("", *packages))
        for name, text in everything.items()
    }


def test_the_rules_catch_an_import_from_below() -> None:
    modules = made_up(observe__facts="def look():\n    from hpc_elastic.agent import policy\n", agent__policy="")
    (found,) = find_layer_breaks(modules)
    expected = "observe may import base plan rundir failures useful_time scheduler only"
    assert found == f"hpc_elastic.observe.facts:2 imports hpc_elastic.agent.policy: {expected}"


def test_the_rules_catch_an_import_from_a_floor_above() -> None:
    modules = made_up(agent__records__chain="from hpc_elastic.agent.net import listener\n", agent__net__listener="")
    (found,) = find_floor_breaks(modules)
    expected = "agent.records may import system node only"
    assert found == f"hpc_elastic.agent.records.chain:1 imports hpc_elastic.agent.net.listener: {expected}"


def test_the_rules_catch_a_package_that_has_no_place() -> None:
    modules = made_up(
        quota__read="import hpc_elastic.rundir", agent__gpu2__cards="", agent__node__gpus="", rundir__a=""
    )
    layer, floor = find_unplaced(modules)
    assert layer.startswith("hpc_elastic.quota is in no layer")
    assert floor.startswith("hpc_elastic.agent.gpu2 is on no floor of the agent")
    assert list(find_layer_breaks(modules)) == [], "one message is enough"


@pytest.mark.parametrize(
    "source", ["x = environ['SLURM_JOB_ID']", "x = b'SLURM_JOB_ID='", "x = ('a', 'SLURMD_NODENAME')"]
)
def test_the_rules_catch_a_variable_of_slurm_outside_of_its_folder(source: str) -> None:
    (found,) = find_slurms_variables(made_up(cli__run=source, scheduler__slurm__step=source))
    assert found.startswith("hpc_elastic.cli.run:1 names SLURM")


@pytest.mark.parametrize("source", ["WAITS_S = 2.0", "_WAITS_S: float = 2.0"])
def test_the_rules_catch_a_time_of_membership_outside_of_its_module(source: str) -> None:
    (found,) = find_stray_times(made_up(membership__head=source, membership__timing=source, agent__policy=source))
    assert found.startswith("hpc_elastic.membership.head:1 ")


def test_the_rules_catch_a_relative_import() -> None:
    modules = made_up(membership__head="from ..agent import policy", agent__policy="")
    assert len(list(find_layer_breaks(modules))) == 1


def test_the_rules_catch_what_is_loaded_on_the_way() -> None:
    source = "from hpc_elastic.scheduler import slurm"
    modules = made_up(agent__main=source, agent__stage=source, scheduler__slurm="import yaml")
    first, _ = [found for found in find_wrong_loads(modules) if "yaml" in found]
    assert first.startswith("hpc_elastic.agent.main loads hpc_elastic.scheduler.slurm (through hpc_elastic.agent.main)")
    above = made_up(agent__main="from hpc_elastic.agent import a", agent__a=source, scheduler__slurm="import yaml")
    (found,) = [found for found in find_wrong_loads(above) if "yaml" in found]
    assert found.startswith("hpc_elastic.agent.main and 1 more loads hpc_elastic.scheduler.slurm ")
    assert len(list(find_strangers(modules))) == 1


def test_the_rules_catch_a_cycle() -> None:
    modules = made_up(agent__a="from hpc_elastic.agent.b import x", agent__b="from hpc_elastic.agent import a")
    assert find_cycle(modules) == ["hpc_elastic.agent.a", "hpc_elastic.agent.b", "hpc_elastic.agent.a"]


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "from asyncio import sleep",
        "import os\nx = os.environ['A']",
        "import os\nx = os.path.exists('a')",
        "import signal\nsignal.signal(signal.SIGTERM, None)",
        "x = open('a')",
        "from datetime import datetime\nx = datetime.now()",
        "from datetime import datetime as when\nx = when.now()",
        "from os import environ",
        "from hpc_elastic.clock import now",
    ],
)
def test_the_rules_catch_an_impure_module(source: str) -> None:
    assert list(find_impurities(parse_module("hpc_elastic.units", source)))


def test_the_rules_let_paths_be_joined_and_signals_be_named() -> None:
    source = "import os, signal\nx = os.path.join('a', 'b')\ny = signal.SIGTERM"
    assert list(find_impurities(parse_module("hpc_elastic.units", source))) == []


def test_the_rules_catch_two_classes_of_one_name() -> None:
    (found,) = find_namesakes(made_up(units="class Stage: ...", clock="class Stage: ...\nclass _Own: ..."))
    assert "Stage is also a class of hpc_elastic." in found


def test_the_rules_catch_what_is_long_or_untold() -> None:
    modules = made_up(units="def f():\n" + "    pass\n" * LONGEST_MODULE)
    assert len(list(find_oversized(modules))) == 2
    assert not list(find_long(modules))
    assert len(list(find_long(made_up(units="pass\n" * (LONG_MODULE + 1))))) == 1
    assert any(found.startswith("hpc_elastic.units:") for found in find_untold(modules))


@pytest.mark.parametrize(
    "source",
    [
        "monkeypatch.setattr(retries, 'FOR_S', 0.1)",
        "monkeypatch.setattr('hpc_elastic.agent.records.retries.FOR_S', 0.1)",
        "monkeypatch.setattr(retries, name='_FOR_S', value=0.1)",
        "setattr(retries, 'FOR_S', 0.1)",
        "mock.patch.object(retries, 'FOR_S', 0.1)",
        "retries.FOR_S = 0.1",
        "retries.FOR_S /= 10",
    ],
)
def test_the_rules_catch_a_constant_of_time_that_a_test_replaces(source: str) -> None:
    (found,) = find_patched_times("test_x.py", f"def test_x():\n    {source}\n")
    assert found.startswith("test_x.py:2 replaces ")


def test_the_rules_let_a_test_replace_what_is_no_time_and_read_what_is() -> None:
    source = "setattr(os, 'link', None)\nPATIENCE_S = 1\nself.bound_s = retries.FOR_S\nsetattr(x, 'FOR_SIZE', 1)\n"
    assert list(find_patched_times("test_x.py", source)) == []
