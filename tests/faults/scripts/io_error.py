from common import RANK, wait

if RANK == 2:
    with open("/proc/self/mem", "rb", buffering=0) as file:
        file.read(1)
wait()
