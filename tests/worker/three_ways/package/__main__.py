import sys

import state

from . import script

state.note("module")
print(__name__, __package__, __spec__.name, __file__, sys.argv, sys.path[0], script.__name__)
sys.exit("left by the package")
