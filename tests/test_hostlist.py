from __future__ import annotations

import os
import shutil
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpc_elastic.errors import ExitCode
from hpc_elastic.hostlist import HostlistError, expand_hostlist


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("", ""),
        ("node1", "node1"),
        ("node[1-3,7]", "node1 node2 node3 node7"),
        ("node10,node2", "node10 node2"),
        ("gpu[01-02]-ib", "gpu01-ib gpu02-ib"),
        ("a[1-2]b[3-4]", "a1b3 a1b4 a2b3 a2b4"),
        ("a[1-2][3-4]", "a13 a14 a23 a24"),
        ("n[08-11]", "n08 n09 n10 n11"),
        ("n[1-03]", "n1 n2 n3"),
        ("n[7,3,3]", "n7 n3 n3"),
        ("n[1],m[2-3]x.site.org", "n1 m2x.site.org m3x.site.org"),
        (" a, b,,c\n", "a b c"),
        ("a-b[1-3,7]-c[01-02]", "a-b1-c01 a-b1-c02 a-b2-c01 a-b2-c02 a-b3-c01 a-b3-c02 a-b7-c01 a-b7-c02"),
        (
            "x1000c[0-1]s[3]b0n[0-1],a-1,a-1-[2-3]",
            "x1000c0s3b0n0 x1000c0s3b0n1 x1000c1s3b0n0 x1000c1s3b0n1 a-1 a-1-2 a-1-3",
        ),
    ],
)
def test_expands(text: str, hosts: str) -> None:
    assert expand_hostlist(text) == tuple(hosts.split())


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("node[1-3", "brackets"),
        ("node1]", "brackets"),
        ("n[[1-2]]", "brackets"),
        ("n[]", "'' is no number"),
        ("n[1,]", "'' is no number"),
        ("n[1-]", "'1-' is no number"),
        ("n[-1]", "'-1' is no number"),
        ("n[1-2-3]", "'1-2-3' is no number"),
        ("n[1 -3]", "'1 -3' is no number"),
        ("n[a-b]", "'a-b' is no number"),
        ("n[٣]", "is no number"),
        ("n[3-1]", "backwards"),
        ("../n[1-2]", "'../n' is no part of a host name"),
        ("(null)", "'(null)' is no part"),
        ("n[1-65537]", "65537 hosts"),
        ("n[1-9][1-65536]", "589824 hosts"),
        ("n[0-999999999999999999]" * 5, "the most"),
        ("n[" + "9" * 5000 + "]", "is no number"),
    ],
)
def test_expand_rejects_what_is_no_host_list(text: str, problem: str) -> None:
    with pytest.raises(HostlistError, match="is not a host list") as caught:
        expand_hostlist(text)
    assert problem in caught.value.message
    assert len(caught.value.message) < 400
    assert isinstance(caught.value, ValueError)
    assert caught.value.exit_code is ExitCode.SETUP


def test_expand_rejects_more_than_the_limit() -> None:
    assert len(expand_hostlist("n[1-3],m", limit=4)) == 4
    with pytest.raises(HostlistError, match="names 4 hosts, and 3 are the most"):
        expand_hostlist("n[1-3],m", limit=3)


def zero_padded(numbers: tuple[int, int, int]) -> str:
    first, length, width = numbers
    return f"{first:0{width}d}-{first + length}" if length else f"{first:0{width}d}"


RANGES = st.tuples(st.integers(0, 1200), st.integers(0, 5), st.integers(1, 5)).map(zero_padded)
BRACKETS = st.lists(RANGES, min_size=1, max_size=3).map(lambda ranges: f"[{','.join(ranges)}]")
NAMES = st.from_regex(r"[a-z][a-z0-9-]{0,4}[a-z]", fullmatch=True)
EXPRESSIONS = st.one_of(
    NAMES,
    st.tuples(NAMES, BRACKETS).map("".join),
    st.tuples(NAMES, BRACKETS, NAMES, BRACKETS).map("".join),
    st.tuples(NAMES, BRACKETS, BRACKETS).map("".join),
)


@pytest.fixture(scope="session")
def no_cluster(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which `scontrol` finds a configuration, as it insists on, and no controller."""
    path = tmp_path_factory.mktemp("slurm") / "slurm.conf"
    path.write_text("ClusterName=none\nSlurmctldHost=nowhere(192.0.2.1)\n")
    return {**os.environ, "SLURM_CONF": str(path)}


@pytest.mark.long
@pytest.mark.skipif(not shutil.which("scontrol"), reason="needs scontrol (Debian: slurm-client)")
@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(EXPRESSIONS, min_size=1, max_size=4).map(",".join), min_size=5, max_size=5))
def test_expands_as_scontrol_does(no_cluster: dict[str, str], texts: list[str]) -> None:
    """Several a process, for a process costs more than the rest."""
    done = subprocess.run(
        ["scontrol", "show", "hostnames", ",".join(texts)], env=no_cluster, capture_output=True, text=True, check=True
    )
    assert list(expand_hostlist(",".join(texts))) == done.stdout.split()


@given(st.text(alphabet="n1-3[], 0a.\n", max_size=30))
def test_expand_never_fails_otherwise(text: str) -> None:
    try:
        hosts = expand_hostlist(text, limit=1000)
    except HostlistError:
        return
    assert len(hosts) <= 1000
