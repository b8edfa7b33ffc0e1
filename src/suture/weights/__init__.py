"""Names, shapes and bytes of checkpoints: what is read from files and written to them."""
