import faulthandler

from common import RANK, wait

if RANK == 1:
    faulthandler.dump_traceback_later(1, exit=True)
wait()
