"""Floor plans as others keep them: one module per layout, each reads a file and says what it could not take and why."""
