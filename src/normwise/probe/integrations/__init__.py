"""The monitor in other people's training loops."""
