"""A script that is its own test.

>>> double(4)
8
>>> double("a")
'aaa'
"""

import doctest
import sys
import unittest


def double(value):
    return value * 2


class Double(unittest.TestCase):
    def test_number(self):
        self.assertEqual(double(2), 4)


print(doctest.testmod())
sys.stderr = sys.stdout
program = unittest.main(exit=False, verbosity=0, argv=["program"])
print(program.result.testsRun, program.module)
