"""The command in a folder of its own, as for the integration tests."""

from tests.integration.conftest import door as door
from tests.integration.conftest import folder as folder
