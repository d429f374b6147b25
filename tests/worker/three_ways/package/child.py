import multiprocessing
import sys


def work():
    print("child", sys.modules["__main__"].__spec__ is not None, sys.argv, flush=True)


def run(method):
    process = multiprocessing.get_context(method).Process(target=work)
    process.start()
    process.join()
    print(process.exitcode)
