import contextlib
import tempfile
import weakref

import destructors_neighbour


class Loud:
    def __init__(self, name):
        self.name = name

    def __del__(self):
        print("deleted", self.name)


@contextlib.contextmanager
def manage():
    try:
        yield
    finally:
        print("left")


def generate():
    try:
        yield 1
    finally:
        print("closed")


_private, public = Loud("private"), Loud("public")
generator = generate()
next(generator)
manager = manage()
manager.__enter__()
finalizer = weakref.finalize(Loud, print, "finalized")
folder = tempfile.TemporaryDirectory(prefix="folder", dir=".")
file = open("left_open.txt", "w")
file.write("unflushed")
destructors_neighbour.keep(open("left_open_by_neighbour.txt", "w")).write("unflushed")
print("end")
