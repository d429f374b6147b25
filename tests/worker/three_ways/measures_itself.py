import resource
import time

print(time.process_time() < 1, time.thread_time() < 1, resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime)
times = __import__("os").times()
print(times.children_user, times.children_system, times.user < 1)
