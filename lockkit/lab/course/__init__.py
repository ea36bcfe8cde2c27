"""What a notebook of the course shows, where no other room has it: one file for each."""
