"""What agents use of the operating system: threads, processes, signals, clocks, and the event loop over them."""
