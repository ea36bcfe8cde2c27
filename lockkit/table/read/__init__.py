"""What a reader sees: snapshots, increments and the rows of file slices."""
