"""A Slurm that sbatch logs in to by a token: it reaches sbatch, and nobody in the job."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.conftest import Door
from tests.integration.slurm_jobs import write_job
from tests.slurm_sandbox.cluster import Cluster
from tests.slurm_sandbox.versions import why_impossible

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("login")]

PLUGINS = ("/usr/lib/x86_64-linux-gnu/slurm-wlm", "/usr/lib/aarch64-linux-gnu/slurm-wlm")
TELLS = """
import os
from pathlib import Path

parent = Path(f"/proc/{os.getppid()}/environ").read_bytes().split(b"\\0")
print("worker", "SLURM_JWT" in os.environ)
print("agent", any(line.startswith(b"SLURM_JWT=") for line in parent))
"""


@pytest.fixture
def tokens(tmp_path: Path) -> Iterator[Cluster]:
    """A Slurm that takes tokens beside munge's credentials."""
    if reason := why_impossible():
        pytest.skip(reason)
    if not any(os.path.exists(f"{folder}/auth_jwt.so") for folder in PLUGINS):
        pytest.skip("not installed: Slurm's plugin for tokens (Debian: slurm-wlm-jwt-plugin)")
    key = tmp_path / "jwt.key"
    key.write_bytes(secrets.token_bytes(32))
    key.chmod(0o600)
    settings = {"AuthAltTypes": "auth/jwt", "AuthAltParameters": f"jwt_key={key}"}
    cluster = Cluster.start(1, owner=os.getpid(), settings=settings)
    yield cluster
    cluster.down()


def test_a_token_logs_in_sbatch_and_the_commands_that_ask_and_is_not_in_the_job(
    tokens: Cluster, folder: Path, tmp_path: Path
) -> None:
    token = tokens.run("scontrol", "token", "lifespan=600").stdout.strip().removeprefix("SLURM_JWT=")
    broken = {"SLURM_JWT": "not.a.token", "XDG_STATE_HOME": str(tmp_path / "state")}
    refused = Door(folder, {**tokens.environment, **broken})
    write_job(refused, TELLS, nodes="1", workers="1")
    assert refused.run("submit", "job.yaml", "--set", "start=spawn", exit_code=4).stderr  # so it reaches sbatch
    door = Door(folder, {**tokens.environment, **broken, "SLURM_JWT": token})
    run = door.submit("job.yaml", wait=True)
    assert run.stdout(1, 0).split() == ["worker", "False", "agent", "False"], run.story()
    assert token not in run.story()


def test_plain_sbatch_hands_the_token_to_the_job(tokens: Cluster, tmp_path: Path) -> None:
    """What the script takes away; it says what is known of Slurm (22.05), not of us."""
    token = tokens.run("scontrol", "token", "lifespan=600").stdout.strip().removeprefix("SLURM_JWT=")
    environment = {**tokens.environment, "SLURM_JWT": token}
    told = tmp_path / "told"
    tokens.run("sbatch", "--wait", f"--output={told}", "--wrap=echo token: $SLURM_JWT", environment=environment)
    assert told.read_text() == f"token: {token}\n"
