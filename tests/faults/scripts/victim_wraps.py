from common import RANK
from group import join, train

join()
try:
    train()
except RuntimeError as error:
    raise SystemError(f"training of rank {RANK} failed") from error
