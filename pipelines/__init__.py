"""The jobs: one file each; read, call the library, write."""
