"""The meter of useful time: what each second of a run's allocations was spent on.

`division` divides (pure), `history` finds in the records what it divides (pure), `reading` reads the records.
"""
