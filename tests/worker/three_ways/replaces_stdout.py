import io
import sys


class Doubling(io.TextIOBase):
    def write(self, text):
        sys.__stdout__.write(text.upper())
        return len(text)

    def flush(self):
        sys.__stdout__.write("[flushed]\n")


print("as it is", end="")
sys.stdout = Doubling()
print("upper")
