"""What a training refuses before its first iteration."""
