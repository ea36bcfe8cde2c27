"""The commands that need the workshop, one file each."""
