put = [("barrier", "before", 17), ("barrier", "before", 23)]
