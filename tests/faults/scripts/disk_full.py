from common import RANK, wait

if RANK == 1:
    with open("data/part", "wb") as file:
        for _ in range(100):
            file.write(b"\1" * (1 << 16))
wait()
