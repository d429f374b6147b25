import socket
from datetime import timedelta

import torch.distributed as dist
from common import RANK, meet, wait

if RANK == 1:
    server = socket.socket()
    server.bind(("127.0.0.1", 29472))
    server.listen()
meet(4)
if RANK == 0:
    store = dist.TCPStore("127.0.0.1", 29472, 4, is_master=True, timeout=timedelta(seconds=5))
wait()
