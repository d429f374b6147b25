raise BaseExceptionGroup("exits", [SystemExit(3), KeyboardInterrupt()])
