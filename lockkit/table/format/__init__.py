"""What a table looks like in the store: names, properties, schemas, base files and plans."""
