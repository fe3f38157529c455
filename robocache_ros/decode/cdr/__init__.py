"""CDR: message definitions, and the values at some of a message's paths."""
