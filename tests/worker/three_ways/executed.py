import sys

import state

state.note("executed")
print(sys.argv, sys.orig_argv[1:], state.look()["os.environ"]["ADDED"])
sys.exit(12)
