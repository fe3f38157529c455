"""What the commands print: tables, JSON documents and progress."""
