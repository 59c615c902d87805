"""One file and one dataclass per position scheme. Dropping a file here is all it takes."""
