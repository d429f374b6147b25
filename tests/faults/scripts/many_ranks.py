from common import RANK, meet, wait

meet(8)
if RANK != 7:
    raise FloatingPointError("loss is nan")
wait()
