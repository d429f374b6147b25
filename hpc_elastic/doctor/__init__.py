"""`hpc-elastic doctor`: tries what runs need of a cluster, and says what is wrong, for whom, and what to do."""
