class Loud:
    def __del__(self):
        print("deleted")


def fail():
    loud = Loud()
    raise ValueError("while something is held")


fail()
