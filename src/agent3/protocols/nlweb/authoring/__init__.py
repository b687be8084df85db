"""Making and trying interfaces: files, learning from a page, recording a person, checking, and running once."""
