"""What every test process shares.

One OpenMP thread, here and in every process that a test starts: pools that compete for two cores are 20x slower.
Ctrl-C interrupts, also where the shell that started pytest in the background had it ignored.
"""

import os
import signal

signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is imported, so nothing of prl may be imported here
