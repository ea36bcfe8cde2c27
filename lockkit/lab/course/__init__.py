"""What the notebooks show and no other package offers: one file for each subject."""
