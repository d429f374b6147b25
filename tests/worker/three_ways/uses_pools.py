import concurrent.futures
import multiprocessing
import multiprocessing.shared_memory
from dataclasses import dataclass


@dataclass
class Square:
    side: int

    def area(self):
        return self.side**2


def grow(square):
    return Square(square.side + 1)


if __name__ == "__main__":
    print(multiprocessing.get_start_method(allow_none=True))
    with multiprocessing.Pool(2) as pool:
        print(pool.map(grow, map(Square, range(4))), pool.map(Square.area, map(Square, range(4))))
        try:
            pool.apply(Square.area, ("none",))
        except AttributeError as error:
            print(error, type(error.__cause__).__name__)
    with concurrent.futures.ProcessPoolExecutor(2) as executor:
        print(list(executor.map(grow, map(Square, range(4)))))
    memory = multiprocessing.shared_memory.SharedMemory(create=True, size=16)
    memory.buf[:4] = b"text"
    print(bytes(memory.buf[:4]), multiprocessing.Value("i", 3).value)
    memory.close()
    memory.unlink()
    with multiprocessing.Manager() as manager:
        shared = manager.dict(a=Square(1))
        print(shared["a"])
    print(multiprocessing.active_children())
