"""Modules of the standard library behave as if nobody had used them before."""

import asyncio
import concurrent.futures
import copyreg
import decimal
import locale
import logging
import mimetypes
import multiprocessing
import re
import signal
import socket
import tempfile
import threading
import warnings

import state

state.note("after")
print(tempfile.tempdir, mimetypes.inited, socket.getdefaulttimeout(), decimal.getcontext().prec, threading.stack_size())
print(multiprocessing.current_process()._config.keys(), multiprocessing.get_start_method(allow_none=True))
print(
    multiprocessing.current_process()._identity,
    multiprocessing.current_process().name,
    multiprocessing.active_children(),
)
print(asyncio.get_event_loop_policy()._local.__dict__, logging.getLogger().handlers, logging.root.manager.disable)
print([name for name in ("__warningregistry__",) if name in vars(warnings)], threading._active_limbo_lock.locked())
