from common import RANK, wait

batch = []
if RANK == 1:
    assert batch
wait()
