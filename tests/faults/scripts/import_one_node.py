import os
import sys

from common import NODE, wait

sys.path.insert(0, os.path.join(os.getcwd(), f"site-{NODE}"))

import tokens  # noqa: E402

print(tokens)
wait()
