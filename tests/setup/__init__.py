"""Scripts that install what the tests use, and `paths`, which says where it is."""
