put = [("release", "after", 46)]
