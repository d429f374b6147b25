import sys

sys.tracebacklimit = 0


def again():
    again()


again()
