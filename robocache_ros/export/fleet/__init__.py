"""What the exports of a fleet have made, what failed, and what they left."""
