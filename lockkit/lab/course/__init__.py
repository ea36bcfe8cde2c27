"""The experiments of the notebooks, one file for each subject."""
