class Unprintable(Exception):
    def __str__(self):
        raise ValueError("no text")


def middle():
    try:
        {}["missing"]
    except KeyError as error:
        raise RuntimeError("caf\u00e9 \udcff\nsecond line") from error


try:
    try:
        middle()
    except RuntimeError:
        raise Unprintable
except Unprintable as error:
    if hasattr(error, "add_note"):
        error.add_note("a note")
    raise OSError(28, "No space left on device", "file") from None
