"""From the topics into the engine."""
