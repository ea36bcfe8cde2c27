"""The incident console: what `lockkit incident` and `lockkit lock break` do, by buttons."""
