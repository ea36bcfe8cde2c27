"""What a writer puts into a table: appends, merges and file groups."""
