"""The scenario `table`: the shipped writers, services and readers of a table, and their judge."""
