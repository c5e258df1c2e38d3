"""What a run depends on besides its arguments."""
