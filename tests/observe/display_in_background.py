"""Shows a run on the terminal of its session: in the background, in the foreground, and in the background again.

Usage: python -m tests.observe.display_in_background FOLDER, in a session of its own, with the terminal as its output.
It goes on from step to step when it reads a line.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import termios
from pathlib import Path

from hpc_elastic.observe.display import open_display
from hpc_elastic.observe.snapshot import take_snapshot
from hpc_elastic.scheduler.protocol import JobState
from tests.observe.builders import RunBuilder
from tests.observe.test_snapshot import TellingScheduler


def main() -> None:
    """Play the steps."""
    run = RunBuilder(Path(sys.argv[1])).submit().allocate().open_attempt(1)
    snapshot = take_snapshot(run.layout, TellingScheduler(JobState.RUNNING))
    fcntl.ioctl(1, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # what one gets who gives the foreground away without having it
    shell = os.posix_spawnp("sleep", ["sleep", "60"], os.environ, setpgroup=0)
    os.tcsetpgrp(1, shell)
    with open_display(sys.stderr, sys.stdout) as display:
        display.show(snapshot)
        display.say("began")
        display.output("\x1b[31mred\x1b[0m \x07bell")
        sys.stdin.readline()
        os.tcsetpgrp(1, os.getpgrp())
        sys.stdin.readline()
        os.tcsetpgrp(1, shell)
        display.say("goes on")
    os.kill(shell, signal.SIGKILL)
    os.waitpid(shell, 0)


if __name__ == "__main__":
    main()
