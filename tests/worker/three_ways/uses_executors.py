import concurrent.futures
import queue
import threading

executor = concurrent.futures.ThreadPoolExecutor(2, thread_name_prefix="pool")
print(list(executor.map(lambda number: number * 2, range(4))), threading.active_count() <= 3)
answers = queue.Queue()
future = executor.submit(lambda: threading.Event().wait(0.05) or "late")
future.add_done_callback(lambda done: print("future", done.result()))
context = __import__("contextvars").copy_context()
print(len(context), __import__("decimal").getcontext())
