import os
import signal
import threading

signal.signal(signal.SIGTERM, lambda number, frame: print("handled", number, frame.f_code.co_name, flush=True))
os.kill(os.getpid(), signal.SIGTERM)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
os.kill(os.getpid(), signal.SIGUSR1)
print(signal.sigpending(), signal.sigwait([signal.SIGUSR1]), signal.pthread_sigmask(signal.SIG_BLOCK, []))
alarmed = threading.Event()
signal.signal(signal.SIGALRM, lambda *_: alarmed.set())
signal.setitimer(signal.ITIMER_REAL, 0.01)
print(alarmed.wait(30), signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGPIPE))
os.kill(os.getpid(), signal.SIGUSR2)
