"""Evidence for people: what is known of the rungs of a ladder, gathered into rows, and the tables made of them."""
