"""What a job of this folder needs whose ranks talk to each other."""

import time
from datetime import timedelta

import torch
import torch.distributed as dist
from common import here


def join(seconds=60):
    dist.init_process_group("gloo", timeout=timedelta(seconds=seconds))


def together(size=4):
    value = torch.ones(size)
    dist.all_reduce(value)
    return value


def train(steps=1_000_000):
    for step in range(steps):
        together()
        if step == 3:
            here()
        time.sleep(0.01)
