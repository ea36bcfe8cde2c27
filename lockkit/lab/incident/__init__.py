"""What stands at a table's URL, what happened there, which known pattern it is, and what to do."""
