import os
import sys

from common import RANK, meet, wait

meet(4)
if RANK == 2:
    wait()
print(
    f"[rank{RANK}]:[E1123 20:11:04.123456789 ProcessGroupNCCL.cpp:616] [Rank {RANK}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=1311, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600012 "
    "milliseconds before timing out.\n"
    "terminate called after throwing an instance of 'c10::DistBackendError'\n"
    f"  what():  [PG ID 0 PG GUID 0(default_pg) Rank {RANK}] Process group watchdog thread terminated with exception: "
    f"[Rank {RANK}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1311, OpType=ALLREDUCE, NumelIn=4, "
    "NumelOut=4, Timeout(ms)=600000) ran for 600012 milliseconds before timing out.",
    file=sys.stderr,
    flush=True,
)
os.abort()
