"""The program that `doctor` starts on each node, as a run starts its agents; standard library only."""
