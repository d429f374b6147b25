from common import RANK, wait

if RANK == 1:
    raise ValueError("\x1b[31mred\x1b[0m \x00 \x07 and \x9b2J")
wait()
