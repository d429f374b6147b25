"""Its folder holds modules with names that torch, and what torch imports, have already taken."""

import networkx
import profile
import sympy
import filelock.own

print(networkx.__file__, profile.__file__, sympy.value, filelock.own.__name__)
