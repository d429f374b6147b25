"""Keeps log lines in a buffer, which `logging` itself writes out at the exit."""

import logging.handlers
import sys

logging.getLogger().addHandler(logging.handlers.MemoryHandler(1000, target=logging.StreamHandler(sys.stdout)))
logging.warning("kept until the end")
print("end")
