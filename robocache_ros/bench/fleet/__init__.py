"""What an export with Ray costs beside its conversions, and how it scales with the number of workers."""
