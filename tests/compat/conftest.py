"""The environment of Lightning, accelerate and transformers, which `make test-all` makes: not that of the tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.conftest import REPOSITORY
from tests.integration.conftest import door as door
from tests.integration.conftest import folder as folder
from tests.integration.conftest import slurm_door as slurm_door


@pytest.fixture(scope="session")
def python() -> Path:
    """Return the interpreter of that environment."""
    environment = REPOSITORY / ".venv-compat"
    if not (environment / ".installed").exists():
        pytest.skip("there is no .venv-compat: `make .venv-compat/.installed` makes it")
    return environment / "bin" / "python"
