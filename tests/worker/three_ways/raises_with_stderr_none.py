import sys

print("out")
sys.stderr = None
raise ValueError("nobody reads this")
