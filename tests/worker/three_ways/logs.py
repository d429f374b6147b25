import logging
import sys

print(logging.root.handlers, logging.root.level, logging.getLevelName(10), logging.raiseExceptions, logging.lastResort)
logging.getLogger("early").warning("to the last resort")
logging.basicConfig(
    level=logging.INFO, format="%(levelname)s %(name)s %(module)s %(processName)s %(threadName)s: %(message)s"
)
logging.captureWarnings(True)
logging.info("information")
__import__("warnings").warn("a warning that is logged")
try:
    1 / 0
except ZeroDivisionError:
    logging.exception("with a traceback", stack_info=False)
logging.getLogger("x").info("%d", "not a number")
print(sys.stderr is logging.root.handlers[0].stream)
