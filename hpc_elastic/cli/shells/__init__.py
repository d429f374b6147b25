"""What shells and `man` know of the command line, made from the parsers of the verbs: nothing is written twice."""
