"""Keeps a command alive for as long as another process lives: no way of ending pytest leaves a server behind.

python keeper.py PID COMMAND...
"""

import contextlib
import os
import signal
import subprocess
import sys
import time


def keep(watched: int, command: list[str]) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    child = subprocess.Popen(command, start_new_session=True)
    try:
        while child.poll() is None:
            os.kill(watched, 0)
            time.sleep(0.3)
    except ProcessLookupError:
        pass
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)


if __name__ == "__main__":
    keep(int(sys.argv[1]), sys.argv[2:])
