"""What keeps the payloads of samples and makes frames of them: one interface, a CPU and a GPU backend."""
