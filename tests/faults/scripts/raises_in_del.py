class Batch:
    def __del__(self):
        raise RuntimeError("cannot close it")


batch = Batch()
del batch
