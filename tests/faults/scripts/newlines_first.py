from common import RANK, wait

if RANK == 1:
    raise RuntimeError("\n\n   \nit broke\nand more")
wait()
