import os

os.remove(__file__)
print(os.path.exists(__file__))


def fail():
    raise ValueError("no source left")


fail()
