import multiprocessing
import os
import sys


class Point:
    def __init__(self, x):
        self.x = x


def child(queue, point):
    queue.put((type(point).__module__, point.x, os.path.basename(sys.argv[0]), sys.path[0], __name__))
    print("child", flush=True)
    queue.put(Point(8))  # of the script, which this process knows by another name unless it is a fork
    sys.exit(6)


if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    queue = context.Queue()
    process = context.Process(target=child, args=(queue, Point(7)))
    process.start()
    answer = queue.get(timeout=60)
    own = queue.get(timeout=60)
    print(own.x, type(own).__module__, isinstance(own, Point))
    process.join()
    print(answer, multiprocessing.current_process().name, multiprocessing.parent_process())
    print(process.exitcode, process.name)
