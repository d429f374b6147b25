import importlib

from common import RANK, wait


def load(name):
    return importlib.import_module(f"settings.{name}")


load("base" if RANK != 2 else "cluster")
wait()
