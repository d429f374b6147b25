from common import RANK, wait

if RANK != 1:
    wait()
raise ValueError(
    "bad batch 17\n\nDuring handling of the above exception, another exception occurred:\n\n"
    'Traceback (most recent call last):\n  File "x.py", line 3, in f\nOSError: [Errno 28] No space left on device'
)
