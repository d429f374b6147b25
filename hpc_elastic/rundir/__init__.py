"""The contract on the shared file system: file names, records, atomic writes and claims."""
