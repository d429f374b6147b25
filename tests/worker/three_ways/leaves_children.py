"""Ends while processes that it started still run: daemons are stopped, others waited for."""

import multiprocessing
import time


def work(name, seconds):
    time.sleep(seconds)
    print("done", name, flush=True)


if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    daemon = context.Process(target=work, args=("daemon", 30), daemon=True)
    daemon.start()
    context.Process(target=work, args=("not a daemon", 0.05)).start()
    print("end", flush=True)
