"""One OpenMP thread, here and in every process that a test starts: pools that compete for two cores are 20x slower."""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is imported, so nothing of prl may be imported here
