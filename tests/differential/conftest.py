"""Runs of ours beside runs of torch's."""

from __future__ import annotations

from tests.integration.conftest import door as door
from tests.integration.conftest import folder as folder
