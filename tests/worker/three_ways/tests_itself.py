"""A script that is its own test.

>>> double(4)
8
>>> double("a")
'aaa'
"""

import doctest
import os
import unittest


def double(value):
    return value * 2


class Double(unittest.TestCase):
    def test_number(self):
        self.assertEqual(double(2), 4)


print(doctest.testmod())
runner = unittest.TextTestRunner(stream=open(os.devnull, "w"))  # it would say how long it took
program = unittest.main(exit=False, testRunner=runner, argv=["program"])
print(program.result.testsRun, program.module)
