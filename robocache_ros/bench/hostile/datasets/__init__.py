"""Small datasets of every format, and what reading damaged copies of them gives."""
