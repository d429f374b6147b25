class Quiet:
    """Tells a file, for at the end of plain Python there is no output left."""

    def __init__(self):
        import os

        self.write, self.file = os.write, os.open("deleted", os.O_CREAT | os.O_WRONLY)

    def __del__(self):
        self.write(self.file, b"deleted")


quiet = Quiet()
kept = []


def keep(thing):
    kept.append(thing)
    return thing
