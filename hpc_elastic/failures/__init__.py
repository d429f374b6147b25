"""Why workers fail: the classes of failures, the rules that tell them apart, and which failure caused the others."""
