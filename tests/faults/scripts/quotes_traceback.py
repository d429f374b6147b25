from common import RANK, wait

if RANK != 2:
    wait()
raise RuntimeError("""evaluation failed on the server:
Traceback (most recent call last):
  File "/srv/eval.py", line 3, in main
    dist.all_reduce(x)
RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:538] Connection closed by peer [10.0.0.1]:80
""")
