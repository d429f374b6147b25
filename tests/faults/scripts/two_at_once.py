from common import RANK, meet, wait

meet(4)
if RANK in (1, 3):
    raise ValueError("bad batch 17")
wait()
