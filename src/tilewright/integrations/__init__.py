"""What tilewright does inside other frameworks."""
