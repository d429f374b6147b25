"""What must be another in every process, in which nobody has set a seed."""

import json
import multiprocessing
import multiprocessing.synchronize
import os
import random
import secrets
import tempfile
import uuid

import torch

numbers = {
    "random": random.random(),
    "Random": random.Random().random(),
    "secrets": secrets.token_hex(),
    "uuid1": str(uuid.uuid1()),
    "uuid4": str(uuid.uuid4()),
    "temporary file": os.path.basename(tempfile.mktemp()),
    "authentication key": multiprocessing.current_process().authkey.hex(),
    "semaphore": multiprocessing.synchronize.SemLock._make_name(),
    "urandom": os.urandom(8).hex(),
    "torch": torch.rand(1).item(),
    "torch's seed": torch.initial_seed(),
}
print(json.dumps(numbers))
