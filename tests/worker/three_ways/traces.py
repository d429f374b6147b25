import os
import sys


def report(frame, event, argument):
    print(event, os.path.basename(frame.f_code.co_filename), frame.f_code.co_name, frame.f_lineno)
    return report


def work(number):
    return number + 1


sys.settrace(report)
work(1)
sys.settrace(None)
sys.setprofile(
    lambda frame, event, argument: print(event, frame.f_code.co_name) if frame.f_code.co_name == "work" else None
)
work(2)
