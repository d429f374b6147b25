import subprocess
import sys

import state

print(subprocess.run([sys.executable, "-c", "import sys; print(sys.path, sys.flags)"], capture_output=True, text=True))
print(subprocess.run(["sh", "-c", "kill -TERM $$"]).returncode)
process = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
print(process.communicate(b"through a pipe"), state.look()["children"])
try:
    subprocess.run(["no-such-program"])
except FileNotFoundError as error:
    print(error)
subprocess.run([sys.executable, "-c", "import os; os.execvp('sh', ['sh', '-c', 'echo $RANK; exit 3'])"], check=True)
