import os
import subprocess

reading, writing = os.pipe()
os.close(reading)
try:
    os.write(writing, b"text")
except BrokenPipeError as error:
    print(error)
print(subprocess.run("yes | head -n 1; kill -PIPE $$; echo not reached", shell=True, capture_output=True))
os.dup2(writing, 1)
print("at the end")
