"""The page in a real browser: everything is drawn, in light, dark and print, and nothing of a worker's is run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from hpc_elastic.observe.report.collect import collect_report
from hpc_elastic.observe.report.page import drawing_library, render_page
from hpc_elastic.observe.snapshot import take_snapshot
from tests.observe.report.build_run import Fault, build_run
from tests.tiers import variants

BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")
EVIL = "</script><script>document.title='owned'</script><b>bold</b>"
pytestmark = pytest.mark.long  # a browser takes seconds to start


@pytest.fixture
def browser() -> str:
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None and os.environ.get("CI"):
        pytest.fail("there is no browser, which .ci/run installs")
    if found is None:
        pytest.skip(f"needs a browser: {', '.join(BROWSERS)}")
    return found


@pytest.fixture
def page(tmp_path: Path) -> Path:
    pytest.importorskip("plotly")
    faults = [Fault(1, EVIL), Fault(2, "CUDA out of memory"), Fault(3, "gone", is_lost=True)]
    layout = build_run(tmp_path / "run", nodes=4, spares=1, faults=faults)
    path = tmp_path / "report.html"
    path.write_text(
        render_page(collect_report(layout, take_snapshot(layout, None)), drawing_library()), encoding="utf-8"
    )
    return path


def show(browser: str, page: Path, *options: str) -> subprocess.CompletedProcess[str]:
    common = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", f"--user-data-dir={page.parent / 'profile'}"]
    command = [browser, "--headless", *common, "--enable-logging=stderr", "--virtual-time-budget=10000", *options]
    return subprocess.run([*command, page.as_uri()], capture_output=True, text=True, timeout=120, check=True)


def test_the_charts_are_drawn_and_a_worker_s_script_is_not_run(browser: str, page: Path) -> None:
    done = show(browser, page, "--dump-dom")
    assert 'data-drawn="yes"' in done.stdout
    assert re.findall(r"<title>(.*?)</title>", done.stdout)[0] == "digits: report"
    assert len(re.findall(r'class="main-svg"', done.stdout)) >= 4
    for node in ("node000", "node003", "node004"):
        assert f">{node}</text>" in done.stdout
    assert not [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.mark.parametrize(
    "options",
    [
        pytest.param((), id="light"),
        *variants(
            (("--blink-settings=preferredColorScheme=0",),),
            of="test_the_page_is_a_picture_in_light_and_in_dark",
            ids=["dark"],
        ),
    ],
)
def test_the_page_is_a_picture_in_light_and_in_dark(browser: str, page: Path, options: tuple[str, ...]) -> None:
    picture = page.with_suffix(".png")
    show(browser, page, f"--screenshot={picture}", "--window-size=1200,1000", *options)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 20_000, "an empty page is smaller"


@pytest.mark.variant(of="test_the_page_is_a_picture_in_light_and_in_dark")
def test_the_page_can_be_printed(browser: str, page: Path) -> None:
    printed = page.with_suffix(".pdf")
    show(browser, page, f"--print-to-pdf={printed}")
    assert printed.read_bytes().startswith(b"%PDF")
    assert printed.stat().st_size > 50_000, "a page without its charts is smaller"


@pytest.mark.parametrize(
    ("nodes", "label"),
    [
        (30, "30 nodes: node000 ..."),
        *variants((4, "node001"), of="test_few_nodes_have_a_row_each_and_many_that_did_the_same_have_one"),
    ],
)
def test_few_nodes_have_a_row_each_and_many_that_did_the_same_have_one(
    nodes: int, label: str, browser: str, tmp_path: Path
) -> None:
    layout = build_run(tmp_path / "run", nodes=nodes)
    page = tmp_path / "report.html"
    page.write_text(render_page(collect_report(layout, take_snapshot(layout, None)), drawing_library()), "utf-8")
    assert f">{label}</text>" in show(browser, page, "--dump-dom").stdout


def test_a_part_of_the_time_before_the_first_attempt_is_not_called_attempt_0(browser: str, page: Path) -> None:
    tell = "document.title = document.getElementById('uses').data.flatMap((trace) => trace.hovertext).join('|')"
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page.read_text("utf-8"))
    page.write_text(
        text.replace("</body>", f"<script>addEventListener('load', () => {{ {tell} }})</script></body>"), "utf-8"
    )
    told = re.findall(r"<title>(.*?)</title>", show(browser, page, "--dump-dom").stdout)[0].split("|")
    assert any(each.startswith("waiting for nodes&lt;br&gt;before the first attempt") for each in told), told
    assert any("attempt 2" in each for each in told)
    assert not any("attempt 0" in each for each in told)
