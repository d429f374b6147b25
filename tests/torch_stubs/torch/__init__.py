import os

__version__ = f"{os.environ['STUB_TORCH']}.0+stub"
VERSION = tuple(int(part) for part in os.environ["STUB_TORCH"].split("."))
