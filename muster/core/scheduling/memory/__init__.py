"""What a pass over the queue takes over from the one before: it changes what decisions cost, not the decisions."""
