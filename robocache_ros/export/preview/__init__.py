"""What an export would make of recordings, found without making it."""
