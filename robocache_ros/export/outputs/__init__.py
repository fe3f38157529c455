"""The datasets of an export: what each is made of, and what was made."""
