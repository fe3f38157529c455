"""Dataset formats: a folder for each, with its schema, writer, reader and checks; what they share lies here."""
