from common import ATTEMPT, wait

if ATTEMPT == 1:
    wait()
