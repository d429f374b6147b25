import sys

sys.stdout.reconfigure(line_buffering=True, encoding="latin-1", errors="replace")
print("gr\u00fc\u00dfe", sys.stdout)
sys.stdout = open(1, "w", closefd=False, encoding="utf-8")
print("gr\u00fc\u00dfe")
